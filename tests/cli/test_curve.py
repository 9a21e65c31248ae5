"""`hicache curve`, as people use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from hicache_sim.cli import main

SMALL = ("conversation", "--page-size", "512", "--limit", "300", "--points", "3")


def run(*words: object) -> Any:
    return CliRunner().invoke(main, ["curve", *map(str, words)])


def rows(*words: object) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_tables_files_and_picture(tmp_path: Path) -> None:
    done = run(*SMALL, "--eviction", "ttl,belady", "--l2-ratio", "0,2", "--out", tmp_path, "--png", tmp_path / "c.png")
    assert done.exit_code == 0, done.output
    assert "an infinite cache hits" in done.stdout and "belady†" in done.stdout and "gap closed" in done.stdout
    assert (tmp_path / "curve.png").stat().st_size > 10_000 and (tmp_path / "c.png").exists()
    strategies = pd.read_parquet(tmp_path / "strategies.parquet")
    assert set(strategies.eviction) == {"ttl", "belady"}
    assert len(pd.read_parquet(tmp_path / "levels.parquet")) == len(pd.read_parquet(tmp_path / "bounds.parquet")) == 6


def test_bounds_lie_above_and_gaps_are_shares_of_the_way() -> None:
    found = rows(*SMALL, "--eviction", "lru,s3fifo", "--l2-ratio", "0,1", "--write", "write_through,boundary")
    for level, bound in zip(found["levels"], found["bounds"], strict=True):
        assert level["l1_rate"] <= bound["best_l1_rate"] <= bound["best_rate_bandwidth"] + 1e-12
        assert bound["best_rate_bandwidth"] <= bound["best_rate"] <= bound["best_l3_rate"]
    for row in found["strategies"]:
        assert row["rate"] <= row["best_rate"]
        if row["best_rate"] > row["lru_rate"]:
            way = row["lru_rate"] + row["gap_closed"] * (row["best_rate"] - row["lru_rate"])
            assert way == pytest.approx(row["rate"])
    usual = [
        row
        for row in found["strategies"]
        if (row["eviction"], row["write"]) in (("lru", "write_through"), ("lru", "none"))
    ]
    assert usual and all(row["rate"] == row["lru_rate"] for row in usual)


def test_a_sample_shows_its_error() -> None:
    found = rows("conversation", "--page-size", 512, "--points", 2, "--sample", 0.2, "--l2-ratio", 1, "--seed", 4)
    assert found["workload"]["rate"] == 0.2
    assert any(level["error"] > 0 for level in found["levels"])


def test_sizes_that_were_asked_for() -> None:
    found = rows(*SMALL, "--l1-tokens", "1M,256Ki", "--l2-ratio", 2, "--store", "mooncake-4x200-roce")
    assert [level["l1_pages"] for level in found["levels"]] == [512, 1953]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--eviction", "belaby"), "unknown eviction policy 'belaby': known are lru"),
        (("--eviction", "lru", "--write", "through"), "unknown write policy 'through'"),
        (("--l1-tokens", "many"), "a whole number"),
        (("--l1-tokens", "10"), "at least a page"),
        (("--l2-ratio", "1;2"), "write numbers with commas"),
        (("--l2-ratio", "-1"), "L2 ratios"),
        (("--sample", "2"), "sampling rate 2"),
        (("--replay-sample", "0", "--eviction", "lru"), "sampling rate 0"),
        (("--page-size", "10000000"), "no prompt has a whole page"),
        (("--store", "nowhere"), "nowhere"),
        (("--png", "curve.txt"), "txt"),
    ],
)
def test_bad_input_is_one_line(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("conversation", "--limit", "50", *words)
    assert done.exit_code == 2, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("hicache: ")]
    assert len(lines) == 1 and says in lines[0], done.stderr
