"""Every benchmark on next to nothing: it runs, and its table has what it promises. No figure is looked at."""

import json
import sys

import pytest

from benchmarks import __main__ as driver
from benchmarks import match_insert, measure, peers, report, targets, timed, untimed
from benchmarks.measure import Table, TimedOut
from benchmarks.scale import Scale

TINY = Scale(50, 1, 20, 3, (50,), (), peers=False)
COLUMNS = {
    "timed": {timed.REPLAY, timed.PROCESS, "peak MiB", "hit rate", "simulated s", "events/request", "steps/request"},
    "untimed": {timed.REPLAY, timed.PROCESS, "peak MiB", "hit rate", untimed.TIMES},
    "match_insert": {"page", "prompts", "matched", "keys us", "match + insert us", match_insert.TIMES},
    "hotspots": {"module", "share %", "us/request", "calls/request"},
    "flat": {"replay", "requests", "replay CPU us/request", "process CPU us/request", "peak MiB", "wall s"},
}


@pytest.fixture
def scale(tmp_path, monkeypatch):
    monkeypatch.setattr(match_insert, "PAGES", (64,))
    return Scale(**{**vars(TINY), "work": tmp_path})


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No peers, no compiled build."""
    monkeypatch.setattr(peers, "FOLDER", tmp_path / "nothing")
    monkeypatch.delenv(measure.FAST_PYTHON, raising=False)


def test_all_benchmarks_and_the_report(alone, scale, tmp_path, monkeypatch):
    monkeypatch.setattr(timed, "CASES", timed.CASES[:1])
    tables = driver.measure(scale)
    report.write(tmp_path / "report", tables, {"date": "today"}, "python -m benchmarks")
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    for name, columns in COLUMNS.items():
        rows = results[name]["rows"]
        assert rows and all(columns <= row.keys() for row in rows), name
        assert results[name]["commands"] and results[name]["seeds"], name
    assert all(row["who"] == "hicache" for row in results["untimed"]["rows"])
    assert "No row for the real HiRadixCache" in " ".join(results["untimed"]["notes"])
    assert len(results["targets"]) == len(targets.TARGETS)
    words = (tmp_path / "report" / "report.md").read_text()
    assert "not measured" in words and "SimPy events" in words
    assert (tmp_path / "report" / report.CURVE).stat().st_size


def test_the_real_caches_decide_the_same(scale, monkeypatch):
    """Both benchmarks raise if they do not."""
    try:
        peers.sglang(install=False)
    except peers.Missing as why:
        pytest.skip(str(why))
    for table, real in ((untimed.untimed(scale), untimed.REAL), (match_insert.match_insert(scale), match_insert.REAL)):
        assert table.find(who=real)[untimed.TIMES] == 1
        assert table.find(who="hicache")


def test_a_difference_is_no_ratio():
    usage = {digest: measure.Usage(0, 0, 0, json.dumps({"digest": digest})) for digest in "ab"}
    with pytest.raises(AssertionError, match="differ"):
        match_insert._agree({(1, "ours"): [usage["a"]], (1, "theirs"): [usage["b"]]})


def test_run_tells_failures_and_time_outs():
    assert measure.run([sys.executable, "-c", "print(1)"]).output == "1\n"
    with pytest.raises(RuntimeError, match="exit code 3"):
        measure.run([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(TimedOut, match="after 0 s"):
        measure.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)


def test_tables_are_aligned_markdown():
    table = Table(
        "t", "T", [{"who": "a", "n": 1234, "s": measure.spread([3.0, 1.0, 2.0])}, {"who": "b", "n": None, "s": 0.5}]
    )
    assert measure.text(table).splitlines() == [
        "| who |     n |          s |",
        "|-----|------:|-----------:|",
        "| a   | 1,234 | 2 (1 to 3) |",
        "| b   |     – |        0.5 |",
    ]
    assert measure.text(Table("t", "T")) == "(no rows)"


def test_commands_read_as_they_are_typed():
    build = measure.Build("hicache", str(measure.ROOT / ".venv" / "bin" / "python"))
    assert measure.show(build.replay(str(measure.ROOT / "out" / "t.jsonl"))) == "hicache replay out/t.jsonl --json"
