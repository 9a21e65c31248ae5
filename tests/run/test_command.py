"""`hicache run` as it is typed, its files, and the run decided again from them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from hicache_ref.account.summary import SCHEMA
from hicache_sim.cli import main

CHAT = (
    "chat --set count=4 --set first_tokens=150 --set answer_tokens=8 --set system_tokens=200 --set think_s=0 "
    "--set rate_per_s=20"
)
WORDS = (
    f"{CHAT} --limit 10 --page-size 16 --max-total-tokens 1600 --model-scale 0.001 --host-reserve 0 "
    "--hicache-storage-backend file --hicache-storage-prefetch-policy wait_complete"
)


def invoke(words: str, *more: str):
    return CliRunner().invoke(main, [*words.split(), *more])


def storage(folder: Path) -> list[str]:
    extra = {"prefetch_threshold": 16, "file_storage_path": str(folder)}
    return ["--hicache-storage-backend-extra-config", json.dumps(extra)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that found a store already filled by another."""
    base = tmp_path_factory.mktemp("run")
    for name in ("first", "second"):
        done = invoke(f"run {WORDS} --check --out {base / name}", *storage(base / "store"))
        assert done.exit_code == 0, done.output
        assert "Why tokens missed" in done.output
    return base / "second"


def test_the_summary_has_the_documented_keys(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) == set(SCHEMA)
    assert summary["config"]["torch"]
    assert summary["requests"]["done"] == 10
    assert summary["tokens"]["storage_hit"] > 0
    assert summary["levels"]["L3"]["read_bytes"] > 0


def test_a_fresh_store_is_nobody_elses(folder: Path) -> None:
    """Nothing of what others have stored is found, nor of another fresh run's; and nothing of theirs goes."""
    store, first = folder.parent / "store", json.loads((folder.parent / "first" / "summary.json").read_text())
    before = sorted(page.name for page in store.iterdir())
    for _ in range(2):
        done = invoke(f"run {WORDS} --fresh-store --json", *storage(store))
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert found["tokens"]["storage_hit"] == first["tokens"]["storage_hit"]
        assert found["levels"]["L3"]["written_bytes"] > 0
    assert sorted(page.name for page in store.iterdir()) == before


def test_every_prompt_token_is_accounted_for(folder: Path) -> None:
    """L12: hits and misses of a real run add up as a simulated run's do."""
    summary = json.loads((folder / "summary.json").read_text())
    rows = pd.read_parquet(folder / "requests.parquet")
    assert sum(summary["misses"].values()) == summary["tokens"]["computed"]
    assert rows.input_tokens.sum() == summary["tokens"]["input"]
    assert (rows.first_token_s >= rows.admitted_s).all()
    assert (rows.admitted_s >= rows.arrival_s).all()


def test_the_log_decides_the_same_again(folder: Path) -> None:
    """L6, from the files of a real run; another workload is not the one that ran."""
    again = invoke(f"replay {CHAT} --log {folder}")
    assert again.exit_code == 0, again.output
    assert "the same operations" in again.output
    other = invoke(f"replay {CHAT} --set seed=9 --log {folder}")
    assert other.exit_code == 1, other.output


def test_a_cut_log_is_not_the_same(folder: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "summary.json").write_bytes((folder / "summary.json").read_bytes())
    rows = pd.read_parquet(folder / "events.parquet")
    rows.iloc[: len(rows) // 2].to_parquet(cut / "events.parquet")
    done = invoke(f"replay {CHAT} --log {cut}")
    assert done.exit_code == 1
    assert "NOT the same" in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run chat --device tpu", "tpu"),
        ("run chat --device cuda", "no CUDA device"),
        ("run chat --model-scale -1", "--model-scale"),
        ("run chat --dtype int8", "--dtype"),
        ("run chat --model gpt-9", "unknown model"),
        ("run chat --max-total-tokens 1000000 --hicache-ratio 2 --host-reserve 100000", "host"),
        ("run nothing-like-it", "no file, sample or generator"),
        ("run chat --rule bogus=1", "--rule bogus"),
        ('run chat --hicache-storage-backend file --hicache-storage-backend-extra-config {"bogus":1}', "bogus"),
        ("replay chat --log /nowhere", "summary.json"),
    ],
)
def test_bad_input_is_one_line(words: str, says: str) -> None:
    done = invoke(words)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert "Traceback" not in done.output
