"""Whole sweeps on a small generated workload: files, failures, resuming, what each flag is worth, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from hicache_ref.config.launch_line import parse_launch_line
from hicache_sim import Sweep, replay, sweep
from hicache_sim.build import RunConfig, ServerArgs
from hicache_sim.cli import main
from hicache_sim.sweeps import fingerprint
from hicache_sim.sweeps.ask import Ask
from hicache_sim.sweeps.fingerprint import Fingerprints
from hicache_sim.sweeps.journal import Journal, Outcome
from hicache_sim.sweeps.metrics import METRICS, UNTIMED
from hicache_sim.sweeps.point import Kept
from hicache_sim.sweeps.worth import sglang_knows, uses, why_not
from workloads import ClosedLoop, OpenLoop, generator, write_mooncake

SMALL = {"page_size": 64, "max_total_tokens": 4000}
WORDS = "bench-multiturn --set clients=6 --set rounds=4 --page-size 64 --max-total-tokens 4000 --jobs 1"
BASE = Ask("bench-multiturn", parameters={"clients": 6, "rounds": 4}, flags=SMALL)


def run(out: Path, words: str) -> Any:
    return CliRunner().invoke(main, ["sweep", *WORDS.split(), "--out", str(out), *words.split()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep")
    words = "--vary hicache-ratio=0.5,1.5,4 --vary hicache-write-policy=write_back,write_through --vary seed=0..1"
    done = run(out, f"{words} --hicache-storage-backend mooncake --slo ttft_p99<60")
    assert done.exit_code == 0, done.output
    (out / "screen.txt").write_text(done.output)
    return out


def test_one_row_a_point_and_failures_beside(folder: Path) -> None:
    points = pd.read_parquet(folder / "points.parquet")
    swept, worth = points[points.part == "sweep"], points[points.part == "worth"]
    assert len(swept) == 3 * 2 * 2
    assert set(METRICS) < set(points.columns)
    failed = swept[swept.error.notna()]
    assert set(failed.hicache_ratio) == {0.5}
    assert len(failed) == 4
    assert failed.error.str.contains("L2 must exceed L1").all()
    assert swept[swept.error.isna()].hit_rate.between(0, 1).all()
    assert swept.pareto.any()
    assert swept.best.sum() == 2  # one setting, under two seeds
    assert swept[swept.best].qualifies.all()
    assert set(worth.without) >= {"--page-size", "--enable-hierarchical-cache", "--hicache-storage-backend"}


def test_a_point_is_the_replay_it_stands_for(folder: Path) -> None:
    row = Sweep.open(folder).points.query("hicache_ratio == 4 and hicache_write_policy == 'write_back' and seed == 1")
    args = ServerArgs(**SMALL, hicache_ratio=4.0, hicache_write_policy="write_back", hicache_storage_backend="mooncake")
    alone = replay(generator("bench-multiturn", clients=6, rounds=4), config=RunConfig(args, seed=1)).summary
    point = row[row.part == "sweep"].iloc[0]
    assert point.hit_rate == alone["hit_rates"]["total"] > 0
    assert point.ttft_p99 == alone["latency"]["ttft"]["p99_s"]
    assert point.store_bytes == alone["levels"]["L3"]["written_bytes"] + alone["levels"]["L3"]["read_bytes"]
    assert point.host_bytes == alone["config"]["l2_tokens"] * alone["config"]["kv_bytes_per_token_per_rank"]


def test_the_line_is_sglangs_and_ends_the_screen(folder: Path) -> None:
    best = json.loads((folder / "best.json").read_text())
    line = parse_launch_line(best["line"])
    assert not line.ignored
    assert line.args == {
        **SMALL,
        "enable_hierarchical_cache": True,
        "hicache_storage_backend": "mooncake",
        **{name: value for name, value in best["setting"].items() if value not in (2.0, "write_through")},
    }
    assert best["line"] in (folder / "screen.txt").read_text().splitlines()[-2]


def test_it_opens_to_a_page_with_the_same_answer(folder: Path) -> None:
    flags = json.loads((folder / "best.json").read_text())["flags"]
    page = (folder / "report.html").read_text()
    assert " \\\n  ".join(flags) in page
    assert str(folder / "report.html") in (folder / "screen.txt").read_text().splitlines()[-1]


def test_worth_is_the_change_when_the_flag_alone_is_at_its_default(folder: Path) -> None:
    swept = Sweep.open(folder)
    rows = {row["flag"]: row for row in swept.best["worth"]}
    whole = rows["--enable-hierarchical-cache"]
    args = ServerArgs(**SMALL, enable_hierarchical_cache=False)
    bare = replay(generator("bench-multiturn", clients=6, rounds=4), config=RunConfig(args)).summary
    gain = swept.best["figures"]["hit_rate"] - bare["hit_rates"]["total"]
    assert whole["change"]["hit_rate"] == pytest.approx(gain)
    assert gain > 0.05
    page = rows["--page-size"]
    assert page["default"] is None
    assert page["error"] is None
    assert page["without"]["hit_rate"] >= swept.best["figures"]["hit_rate"]


def test_settings_effects_and_figures(folder: Path) -> None:
    swept = Sweep.open(folder)
    assert len(swept.settings) == 4
    effect = swept.effects["knobs"]["hicache_ratio"]
    assert [each["value"] for each in effect["values"]] == [1.5, 4.0]
    rates = swept.points.query("part == 'sweep'").groupby("hicache_ratio").hit_rate.mean()
    assert effect["spread"]["hit_rate"] == pytest.approx(rates[4.0] - rates[1.5])
    for figure in (swept.plot_pareto(), swept.plot_effects("hit_rate"), swept.plot()):
        assert figure.axes
        figure.canvas.draw()


def test_what_is_there_is_not_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "points.jsonl").read_bytes()
    words = "--vary hicache-ratio=0.5,1.5,4 --vary hicache-write-policy=write_back,write_through --vary seed=0..1"
    monkeypatch.setattr(
        fingerprint, "code_version", lambda: json.loads((folder / "sweep.json").read_text())["hicache"]["code"]
    )
    done = run(folder, f"{words} --hicache-storage-backend mooncake --slo ttft_p99<60 --json")
    assert done.exit_code == 0, done.output
    counts = json.loads((folder / "sweep.json").read_text())["counts"]
    assert counts["run"] == 0
    assert counts["reused"] == counts["points"] > 12
    assert (folder / "points.jsonl").read_bytes() == before


def test_a_killed_sweep_continues(tmp_path: Path) -> None:
    """kill -9 in the middle: workers end too, no record is lost, the rest is run and nothing else."""
    words = "bench-multiturn --set clients=40 --set rounds=5 --page-size 64 --max-total-tokens 40000 --no-worth"
    words += " --vary hicache-ratio=1.1..2.3:0.1 --jobs 2"
    command = [sys.executable, "-m", "hicache_sim.cli", "sweep", *words.split(), "--out", str(tmp_path)]
    journal = tmp_path / "points.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    _until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _until(lambda: not _alive(process.pid))
    done = journal.read_bytes().count(b"\n")
    assert 2 <= done < 13
    with open(journal, "ab") as file:
        file.write(b'{"key":"cut o')
    again = CliRunner().invoke(main, ["sweep", *words.split(), "--jobs", "1", "--out", str(tmp_path)])
    assert again.exit_code == 0, again.output
    counts = json.loads((tmp_path / "sweep.json").read_text())["counts"]
    assert (counts["reused"], counts["run"]) == (done, 13 - done)
    assert pd.read_parquet(tmp_path / "points.parquet").error.isna().all()
    assert len(journal.read_bytes().splitlines()) == 13 + 1


def _until(true: Callable[[], bool], most_s: float = 60) -> None:
    ends_s = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_keys_are_contents_not_names(tmp_path: Path) -> None:
    requests = list(generator("bench-multiturn", clients=2, rounds=2).requests(OpenLoop()))
    one, other, changed = (tmp_path / name for name in ("one.jsonl", "other.jsonl", "changed.jsonl"))
    for path, rows in ((one, requests), (other, requests), (changed, requests[:-1])):
        write_mooncake(rows, path)
    key = Fingerprints().key
    asks = [Ask(str(path), flags={"page_size": 64}) for path in (one, other, changed)]
    assert key(replace(asks[0], trace=str(other))) == key(asks[1])
    assert key(asks[0]) != key(asks[2])
    assert key(asks[0]) != key(replace(asks[0], seed=1))
    assert key(asks[0]) != key(replace(asks[0], flags={"page_size": 32}))


def test_the_journal_survives_a_cut_line_and_tries_passing_failures_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add("a", {}, Outcome({"hit_rate": 0.5}))
    journal.add("b", {}, Outcome(error="the worker died", passing=True))
    journal.add("c", {}, Outcome(error="impossible"))
    whole = (tmp_path / "points.jsonl").read_bytes()
    (tmp_path / "points.jsonl").write_bytes(whole[:-5])
    again = Journal(tmp_path)
    assert again.get("a") == Outcome({"hit_rate": 0.5})
    assert again.get("b") is None
    assert again.get("c") is None
    again.add("c", {}, Outcome(error="impossible"))
    assert Journal(tmp_path).get("c") == Outcome(error="impossible")


def test_kept_requests_are_those_that_are_read() -> None:
    workload = generator("bench-multiturn", clients=3, rounds=3)
    kept = Kept(workload, ClosedLoop())
    first, second = list(kept.requests(ClosedLoop())), list(kept.requests(ClosedLoop()))
    read = list(workload.requests(ClosedLoop()))
    for mine, again, theirs in zip(first, second, read, strict=True):
        assert mine is not again
        assert (mine.id, mine.arrival_s, mine.parent) == (theirs.id, theirs.arrival_s, theirs.parent)
        assert again.content.atoms(1, 8) == theirs.content.atoms(1, 8)
        mine.arrival_s = -1.0
    assert [r.arrival_s for r in kept.requests(ClosedLoop())] == [r.arrival_s for r in read]
    bounded = Kept(workload, ClosedLoop(), most_bytes=1000)
    assert [r.id for _ in range(2) for r in bounded.requests(ClosedLoop())] == [r.id for r in read] * 2
    assert bounded._requests is None


def test_untimed_sweeps_have_no_times() -> None:
    swept = sweep(replace(BASE, untimed=True), {"hicache_ratio": [1.5, 3]}, jobs=1, worth=False)
    assert swept.points.ttft_p99.isna().all()
    assert swept.points[sorted(UNTIMED)].notna().all(axis=None)
    assert swept.asked["pareto"] == ["hit_rate:max", "host_bytes:min"]
    with pytest.raises(ValueError, match="without time"):
        sweep(replace(BASE, untimed=True), {"hicache_ratio": [2]}, slo=["ttft_p99<2"])


def test_random_search_and_what_no_sglang_has() -> None:
    vary = {"hicache_ratio": "1.5..8", "hicache_storage_backend": ["redis"]}
    swept = sweep(BASE, vary, search="random", points=3, jobs=1, worth=False)
    assert len(swept.settings) == 3
    assert "redis" not in swept.best["line"]
    assert "no SGLang has this" in swept.best["not_sglang"][0]


def test_what_only_we_have_is_named_but_not_recommended() -> None:
    swept = sweep(BASE, {"hicache_storage_backend": [None, "redis"]}, pareto=["store_bytes:max"], jobs=1, worth=False)
    assert swept.best["setting"] == {"hicache_storage_backend": None}
    assert swept.best["beyond"]["setting"] == {"hicache_storage_backend": "redis"}
    assert swept.best["beyond"]["figures"]["store_bytes"] > swept.best["figures"]["store_bytes"] == 0
    assert swept.best["not_sglang"] == []


@pytest.mark.parametrize(
    ("profile", "policy", "why"),
    [
        ("v0.5.7", "lfu", None),
        ("v0.5.7", "slru", "the command line of SGLang v0.5.7 does not offer this"),
        ("v0.5.23", "slru", None),
        ("v0.5.23", "s3fifo", "no SGLang has this"),
    ],
)
def test_the_line_has_values_that_this_sglang_offers(profile: str, policy: str, why: str | None) -> None:
    ask = Ask("chat", flags={"radix_eviction_policy": policy}, profile=profile)
    (use,) = uses(ask)[:1]
    assert sglang_knows(use, profile) == (why is None)
    assert why is None or why_not(use, profile) == f"--radix-eviction-policy {policy}: {why}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "nothing to vary"),
        ("--vary hicache-rato=1", "did you mean hicache-ratio"),
        ("--vary hicache-write-policy=write_thru", "did you mean write_through"),
        ("--vary hicache-ratio", "KNOB=VALUES"),
        ("--vary hicache-ratio=1 --vary hicache-ratio=2", "given twice"),
        ("--vary hicache-ratio=1 --vary hicache_ratio=2", "given twice"),
        ("--vary hicache-ratio=1.5..8", "STEP"),
        ("--vary speed=1..8 --vary hicache-ratio=2", "STEP"),
        ("--vary trace=nowhere.jsonl", "nowhere.jsonl"),
        ("--vary hicache-ratio=2 --slo ttft<2", "ttft_p99"),
        ("--vary hicache-ratio=2 --pareto ttft_p98", "ttft_p99"),
        ("--vary hicache-ratio=2 --points 3", "every point"),
        ("--vary hicache-ratio=0.1,0.2", "L2 must exceed L1"),
    ],
)
def test_bad_input_ends_in_one_line(words: str, says: str, tmp_path: Path) -> None:
    done = run(tmp_path / "out", words)
    assert done.exit_code == 2, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("hicache: ")]
    assert len(lines) == 1, done.stderr
    assert says in lines[0]
