"""A replay's files and figures: complete, consistent with each other, the same every time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import workloads
from hicache_ref.account.misses import Miss
from hicache_ref.account.summary import SCHEMA
from hicache_ref.build import activator, make_cache, make_engine
from hicache_ref.config.server_args import ServerArgs
from hicache_ref.control.log import Entry, EntryKind
from hicache_ref.control.log import replay as replay_log
from hicache_ref.control.types import Op
from hicache_sim.api import Options, replay
from hicache_sim.build import RunConfig, plan
from hicache_sim.cli import main

L3 = "--hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout"
SMALL = "--page-size 64 --max-total-tokens 200000 --hicache-ratio 2"


def run(out: Path | None, words: str) -> Any:
    more = [] if out is None else ["--out", str(out)]
    done = CliRunner().invoke(main, ["replay", *words.split(), *more])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    run(out, f"synthetic --limit 400 --speed 0.2 {SMALL} {L3}")
    return out


def summary(folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return figures


def test_the_summary_has_the_documented_keys(folder: Path) -> None:
    assert set(summary(folder)) == set(SCHEMA)


def test_rows_add_up_to_the_summary(folder: Path) -> None:
    figures, rows = summary(folder), pd.read_parquet(folder / "requests.parquet")
    tokens = figures["tokens"]
    assert len(rows) == figures["requests"]["total"] == 400
    assert rows.input_tokens.sum() == tokens["input"]
    assert rows.device_hit_tokens.sum() == tokens["device_hit"] > 0
    assert rows.loaded_tokens.sum() == tokens["loaded"] > 0
    assert rows.storage_hit_tokens.sum() == tokens["storage_hit"] > 0
    assert rows.ttft_s.mean() == pytest.approx(figures["latency"]["ttft"]["mean_s"])
    assert rows.e2e_s.quantile(0.99) == pytest.approx(figures["latency"]["e2e"]["p99_s"])


def test_every_prompt_token_is_accounted_for(folder: Path) -> None:
    """L12, per request and reason."""
    rows = pd.read_parquet(folder / "requests.parquet")
    missed = rows[[f"miss_{miss.name.lower()}_tokens" for miss in Miss]]
    assert (rows.device_hit_tokens + rows.loaded_tokens + missed.sum(axis=1) == rows.input_tokens).all()
    assert (missed >= 0).all(axis=None)
    figures = summary(folder)
    assert sum(figures["misses"].values()) == figures["tokens"]["computed"]
    assert (rows.first_token_s > rows.arrival_s).all()
    assert (rows.ended_s >= rows.first_token_s).all()


def test_the_timeline_ends_with_the_totals(folder: Path) -> None:
    figures, timeline = summary(folder), pd.read_parquet(folder / "timeline.parquet")
    last = timeline.iloc[-1]
    assert timeline.time_s.is_monotonic_increasing
    assert last.time_s == pytest.approx(figures["run"]["makespan_s"])
    assert last.prompt_tokens == figures["tokens"]["input"]
    assert last.pcie_d2h_bytes == pytest.approx(figures["links"]["pcie_d2h"]["bytes"])
    assert last.waiting == last.running == 0


def test_the_perfetto_trace_loads(folder: Path) -> None:
    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices} >= {"compute", "backup", "load", "probe", "fetch", "store"}
    assert all(event["dur"] >= 0 for event in slices)


def test_the_event_log_replays_to_the_same_operations(folder: Path) -> None:
    """L6, from the file."""
    figures, events = summary(folder), pd.read_parquet(folder / "events.parquet")
    flags = {name: figures["config"]["flags"][name] for name in figures["config"]["flags"]}
    made = plan(RunConfig(ServerArgs(**flags)))
    engine = make_engine(made.resolved, make_cache(made.resolved))
    schedule = workloads.OpenLoop(speed=0.2)
    requests = {request.id: request for request in workloads.open_workload("synthetic").requests(schedule)}
    activate = activator(made.page_tokens)
    kinds = {kind.name.lower(): int(kind) for kind in EntryKind}
    entries = (
        Entry(kinds[kind], time_s, subject, pages)
        for kind, time_s, subject, pages in events.itertuples(index=False, name=None)
    )
    counted: dict[str, int] = {}
    for op in replay_log(entries, engine, lambda number, _: activate(requests[number])):
        if isinstance(op, Op):
            counted[op.kind.name.lower()] = counted.get(op.kind.name.lower(), 0) + 1
    assert counted == {kind: count for kind, count in figures["run"]["operations"].items() if count}
    assert engine.idle


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    """L7; and another seed is another run."""
    words = f"synthetic --limit 120 --speed 0.2 {SMALL} {L3}"
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run(tmp_path / name, f"{words} --seed {seed}")
    a, b, c = ((tmp_path / name / "events.parquet").read_bytes() for name in "abc")
    assert a == b != c
    assert (tmp_path / "a/requests.parquet").read_bytes() == (tmp_path / "b/requests.parquet").read_bytes()


def test_prompts_longer_than_l1_are_rejected_and_the_run_goes_on() -> None:
    result = replay("synthetic", options=Options(limit=200), page_size=64, max_total_tokens=20_000)
    requests = result.summary["requests"]
    assert requests["rejected"] > 0
    assert requests["done"] + requests["rejected"] == 200
    assert (result.requests[result.requests.status == "rejected"].input_tokens > 19_000).all()


def test_a_launch_line_behind_dashes() -> None:
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --host 0.0.0.0 --page-size 64"
    done = run(None, f"synthetic --limit 20 --json -- {line} --enable-hierarchical-cache --hicache-ratio 3")
    figures = json.loads(done.stdout)
    assert figures["config"]["model"] == "Qwen3-8B"
    assert figures["config"]["flags"]["tp_size"] == 2
    assert figures["config"]["l2_tokens"] > 2.9 * figures["config"]["l1_tokens"]
    done = run(None, f"synthetic --limit 20 -- {line}")
    assert "--host 0.0.0.0" in done.stderr
    assert "no L2" in done.stderr


def test_the_laws_hold_while_it_runs() -> None:
    run(None, f"synthetic --limit 40 --speed 0.5 --check {SMALL} {L3}")
    run(None, f"synthetic --limit 40 --speed 0.5 --check {SMALL} --hicache-write-policy write_back --profile v0.5.23")


@pytest.mark.parametrize(
    "fault", ["outage:0:1e6", "owner-lost:20:1", "slow:0:1e6:50", "partial:0:1e6:0.3", "refuse:0:1e6"]
)
def test_faults_end_no_run(fault: str) -> None:
    done = run(None, f"synthetic --limit 150 --speed 0.2 --json {SMALL} {L3} --storage-fault {fault}")
    figures = json.loads(done.stdout)
    assert figures["requests"]["done"] == 150


def test_tensor_parallel_ranks_share_the_node() -> None:
    """MHA: each rank writes its shard. MLA: all hold the same, one writes."""
    written = {}
    for model, tp in (("qwen3-32b", 2), ("qwen3-32b", 4), ("deepseek-v3", 8)):
        words = f"synthetic --limit 30 --json --page-size 64 --max-total-tokens 200000 {L3} --model-path {model}"
        figures = json.loads(run(None, f"{words} --tp-size {tp} --hardware h200").stdout)
        per_token = figures["levels"]["L3"]["written_bytes"] / figures["writes"]["stored_tokens"]
        written[model, tp] = per_token
    assert written["qwen3-32b", 2] == written["qwen3-32b", 4] == 262144
    assert written["deepseek-v3", 8] == 70272


def test_the_same_from_python() -> None:
    result = replay("synthetic", options=Options(limit=50), page_size=64, hicache_ratio=2.0)
    assert len(result.requests) == 50
    assert result.summary["requests"]["done"] == 50
    assert {"time_s", "l1_used_tokens"} <= set(result.timeline.columns)


@pytest.mark.parametrize("name", [name for name in workloads.GENERATORS if name != "speed"])
def test_generators_run(name: str) -> None:
    figures = json.loads(run(None, f"{name} --limit 60 --json {SMALL} {L3}").stdout)
    assert figures["requests"]["total"] == 60


def test_an_l1_only_server() -> None:
    figures = json.loads(run(None, f"synthetic --limit 60 --json {SMALL} --no-hicache").stdout)
    assert figures["config"]["l2_tokens"] == 0
    assert figures["tokens"]["loaded"] == 0 < figures["tokens"]["device_hit"]
