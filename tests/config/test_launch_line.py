"""Lines as they stand in guides and issues, and what is wrong with wrong ones."""

from __future__ import annotations

import pytest

from hicache_ref.config.launch_line import parse_launch_line
from hicache_ref.config.resolve import ConfigError, resolve
from hicache_ref.config.server_args import ServerArgs
from tests.config.facts import H200, MHA

PLAIN = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B"


def test_a_line_of_a_guide() -> None:
    line = parse_launch_line(
        r"""SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=/data/cache CUDA_VISIBLE_DEVICES=0,1 \
        python3 -m sglang.launch_server \
          --model-path Qwen/Qwen3-235B-A22B-Instruct-2507 --tp 8 --page-size 64 \
          --host 0.0.0.0 --port 30000 --trust-remote-code \
          --context-length 65536 --mem-fraction-static=0.85 --chunked-prefill-size -1 \
          --enable-hierarchical-cache --hicache-ratio 2 --hicache-size 30 \
          --hicache-mem-layout page_first_direct --hicache-io-backend direct \
          --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout \
          --hicache-storage-backend-extra-config '{"prefetch_threshold": 512, "master": "a b"}' \
          --cuda-graph-bs 1 2 4 8 --hybrid-kvcache-ratio --schedule-policy lpm > server.log 2>&1 &"""
    )
    assert line.args == {
        "model_path": "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "tp_size": 8,
        "page_size": 64,
        "context_length": 65536,
        "mem_fraction_static": 0.85,
        "chunked_prefill_size": -1,
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_size": 30,
        "hicache_mem_layout": "page_first_direct",
        "hicache_io_backend": "direct",
        "hicache_storage_backend": "mooncake",
        "hicache_storage_prefetch_policy": "timeout",
        "hicache_storage_backend_extra_config": '{"prefetch_threshold": 512, "master": "a b"}',
        "schedule_policy": "lpm",
    }
    assert line.ignored == [
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=/data/cache",
        "CUDA_VISIBLE_DEVICES=0,1",
        "--host 0.0.0.0",
        "--port 30000",
        "--trust-remote-code",
        "--cuda-graph-bs 1 2 4 8",
        "--hybrid-kvcache-ratio",
        "> server.log 2>&1 &",
    ]
    assert line.notes == [
        "--cuda-graph-bs: only SGLang v0.5.7 has this flag",
        "--hybrid-kvcache-ratio: only SGLang v0.5.7 has this flag",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "python -m sglang.launch_server --model m --tp 2",
        "nohup /usr/bin/python3.11 -m sglang.launch_server --model-path m --tensor-parallel-size 2 &",
        "sglang serve --model-path m --tp-size=2",
        "sglang serve m --tp 2",
        "/opt/venv/bin/sglang serve m --tp 4 --tp 2",
        "--model-path m --tensor-par 2",
        ["python", "-m", "sglang.launch_server", "\n", "--model-path", "m", "--tp", "2"],
    ],
)
def test_ways_to_say_the_same(line: str | list[str]) -> None:
    assert parse_launch_line(line).args == {"model_path": "m", "tp_size": 2}


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--enable-hicache", "enable_hierarchical_cache", True),
        ("--dp 4", "dp_size", 4),
        ("--pp 2", "pp_size", 2),
        ("--speculative-algo EAGLE", "speculative_algorithm", "EAGLE"),
        ("--max-total-tokens 64Ki", "max_total_tokens", 65536),
        ("--hicache-total-tokens 1000", "hicache_total_tokens", 1000),
        ("--hicache-storage-backend redis", "hicache_storage_backend", "redis"),
    ],
)
def test_spellings(flags: str, field: str, value: object) -> None:
    assert parse_launch_line(f"{PLAIN} {flags}").args[field] == value


def test_notes() -> None:
    line = parse_launch_line(f"{PLAIN} --enable-hicache --hicache-total-tokens 64 --attn-dp-size 2")
    assert line.notes == [
        "--enable-hicache: only SGLang v0.5.23 has this flag",
        "--hicache-total-tokens: no SGLang has this flag",
        "--attn-dp-size: only SGLang v0.5.23 has this flag",
    ]


def test_many_values_end_at_the_next_flag() -> None:
    line = parse_launch_line(f"{PLAIN} --lora-paths a=/x b=/y --custom-weight-loader --tp 2")
    assert line.ignored == ["--lora-paths a=/x b=/y", "--custom-weight-loader"]
    assert line.args["tp_size"] == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--hicache-ration 2", "--hicache-ration: neither SGLang 0.5.7 nor 0.5.23 has this flag; did you mean"),
        ("--zzz 1", "drop it"),
        ("--hicache 2", "several flags begin so"),
        ("--page-size", "its value is missing"),
        ("--page-size --tp 2", "its value is missing"),
        ("--page-size sixty", "takes a whole number"),
        ("--cuda-graph-bs --tp 2", "its value is missing"),
        ("--enable-hierarchical-cache=true", "takes no value"),
        ("--enable-hierarchical-cache true", "belongs to no flag"),
        ("--config server.yaml", "write its flags on the line"),
        ("-tp 2", "belongs to no flag"),
    ],
)
def test_errors(flags: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_launch_line(f"{PLAIN} {flags}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_close_matches_name_the_flag_meant() -> None:
    with pytest.raises(ConfigError, match="--hicache-ratio"):
        parse_launch_line(f"{PLAIN} --hicache-ration 2")


@pytest.mark.parametrize("line", ["vllm serve m --tp 2", "python server.py --tp 2"])
def test_other_commands(line: str) -> None:
    with pytest.raises(ConfigError, match="starts no SGLang server"):
        parse_launch_line(line)


def test_from_line_to_sizes() -> None:
    line = parse_launch_line(f"{PLAIN} --tp 2 --page-size 64 --enable-hierarchical-cache --hicache-ratio 3")
    resolved = resolve(ServerArgs(**line.args), "article", model=MHA, device=H200)
    assert resolved.l2_pages == resolved.l1_pages * 3 + 1
    assert resolved.args.hicache_write_policy == "write_through_selective"
