"""Bad input ends in one line that says what, where and what to do, and exit code 2."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hicache_sim.cli import main

ROW = {"timestamp": 0, "input_length": 1500, "output_length": 10, "hash_ids": [1, 2, 3]}


def trace(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def fails(*words: object) -> str:
    """The one line a command ends with."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 2, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("hicache: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.output
    return lines[0]


def test_missing_file(tmp_path: Path) -> None:
    assert "nowhere.jsonl" in fails("replay", tmp_path / "nowhere.jsonl")


def test_truncated_file(tmp_path: Path) -> None:
    whole = gzip.compress(("".join(json.dumps(ROW | {"timestamp": at}) + "\n" for at in range(500))).encode())
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "cut.jsonl.gz" in fails("replay", cut)


def test_wrong_block_size(tmp_path: Path) -> None:
    line = fails("replay", trace(tmp_path / "t.jsonl", ROW), "--block-tokens", 16)
    assert "wrong block size" in line
    assert "512" in line


def test_malformed_row_has_its_line_number(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", ROW, ROW, '{"timestamp": 1, "input_length": "many"\n')
    assert "t.jsonl:3" in fails("replay", path, "--page-size", 64)


def test_times_that_go_back(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", ROW | {"timestamp": 9000}, ROW)
    assert "t.jsonl:2" in fails("replay", path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hicache-ratio", "0.5"], "L2 must exceed L1"),
        (["--disable-radix-cache"], "radix"),
        (["--hicache-mem-layout", "page_head", "--model-path", "deepseek-v3", "--tp-size", "8"], "page_head"),
        (["--chunked-prefill-size", "100", "--page-size", "64"], "page"),
        (["--hicache-storage-backend-extra-config", "{", "--hicache-storage-backend", "file"], "JSON"),
        (["--model-path", "gpt-oss-20b"], "MHA and MLA"),
        (["--model-path", "no-such-model"], "Llama-3.1-8B"),
        (["--radix-eviction-policy", "clock"], "lru"),
        (["--hicache-write-policy", "write_around"], "write_through"),
        (["--hardware", "abacus"], "h100-pcie5"),
        (["--rule", "gravity=1"], "backup_ancestors"),
        (["--store", "mooncake-tcp"], "--hicache-storage-backend"),
        (["--hicache-storage-backend", "file", "--storage-fault", "flood:1:1"], "outage"),
        (["--hicache-storage-backend", "file", "--storage-fault", "slow:soon"], "KIND:START"),
        (["--hicache-storage-backend", "file", "--store", "abacus"], "mooncake-tcp"),
        (["--hicache-storage-backend", "eic", "--hicache-mem-layout", "page_first"], "--store"),
        (["--hicache-storage-backend", "file", "--store-set", "speed=3"], "read_bytes_per_s"),
        (["--arrivals", "sometimes"], "poisson"),
        (["--schedule", "closed"], "session"),
        (["--set", "turns"], "NAME=VALUE"),
    ],
)
def test_impossible_configuration(words: list[str], told: str) -> None:
    assert told in fails("replay", "conversation", "--limit", 5, "--page-size", 64, *words)


def test_unknown_flag_of_a_launch_line() -> None:
    line = fails("replay", "conversation", "--", "python", "-m", "sglang.launch_server", "--hicache-ratoi", "2")
    assert "--hicache-ratio" in line
    line = fails("replay", "conversation", "--", "python", "-m", "sglang.launch_server", "--no-such-flag")
    assert "--no-such-flag" in line


def test_importing_the_simulator_does_not_import_torch() -> None:
    code = "import sys, hicache_sim.cli, hicache_sim.api; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
