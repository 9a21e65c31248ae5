"""Folders that cannot be reported end in one line and exit code 2; those that can are read whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hicache_sim.cli import main
from hicache_sim.report.load import RunData, labels


def fails(*words: object) -> str:
    done = CliRunner().invoke(main, ["report", *map(str, words)])
    assert done.exit_code == 2, done.output
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def folder(folders: Path, tmp_path: Path) -> Path:
    """A run that may be damaged."""
    return Path(shutil.copytree(folders / "first", tmp_path / "run"))


def test_a_run_is_read(run: RunData) -> None:
    assert run.timed
    assert len(run.ttft_s) == run.summary["requests"]["done"]
    assert {"time_s", "pcie_h2d_bytes"} <= set(run.timeline)
    assert run.prefixes is not None and run.prefixes["shown"]


def test_no_such_folder(tmp_path: Path) -> None:
    assert "no such folder" in fails(tmp_path / "nowhere")


def test_no_summary(folder: Path) -> None:
    (folder / "summary.json").unlink()
    assert "hicache replay" in fails(folder)


def test_summary_that_is_no_json(folder: Path) -> None:
    (folder / "summary.json").write_text('{"hicache": ')
    assert "summary.json" in fails(folder)


@pytest.mark.parametrize("text", ["[]", "{}", '{"levels": {}}', "3"])
def test_unknown_schema(folder: Path, text: str) -> None:
    (folder / "summary.json").write_text(text)
    assert "missing" in fails(folder)


@pytest.mark.parametrize("name", ["timeline.parquet", "requests.parquet"])
def test_truncated_table(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    assert name in fails(folder)
    (folder / name).unlink()
    assert "did not finish" in fails(folder)


def test_table_of_other_columns(folder: Path) -> None:
    pq.write_table(pa.table({"when": [1.0]}), folder / "timeline.parquet")
    assert "time_s" in fails(folder)


def test_columns_that_are_no_numbers(folder: Path) -> None:
    pq.write_table(pa.table({"ttft_s": ["soon"]}), folder / "requests.parquet")
    assert "requests.parquet" in fails(folder)


def test_tree_of_another_kind(folder: Path) -> None:
    (folder / "tree.json").write_text('{"roots": []}')
    assert "tree.json" in fails(folder)


def test_unfinished_sweep(folders: Path, tmp_path: Path) -> None:
    sweep = Path(shutil.copytree(folders / "sweep", tmp_path / "sweep"))
    (sweep / "best.json").unlink()
    assert "sweep" in fails(sweep)
    assert len((folders / "sweep" / "points.parquet").read_bytes()) > 0


def test_a_run_from_before_trees_were_kept(folder: Path, tmp_path: Path) -> None:
    (folder / "tree.json").unlink()
    summary = json.loads((folder / "summary.json").read_text())
    del summary["config"]["attention_ranks"]
    (folder / "summary.json").write_text(json.dumps(summary))
    page = tmp_path / "page.html"
    assert CliRunner().invoke(main, ["report", str(folder), "--out", str(page)]).exit_code == 0
    assert "shared prefixes" not in page.read_text()


def test_labels_are_the_shortest_that_differ() -> None:
    assert labels([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert labels([Path("/x/a/run"), Path("/x/b/run")]) == ["a/run", "b/run"]
    assert len(set(labels([Path("/x/a"), Path("/x/a")]))) == 2
