"""The benchmark of stores: every side brings back what it kept, and the table says how they compare."""

from __future__ import annotations

import json
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks import stores  # noqa: E402

from .bench import bring_back  # noqa: E402


@pytest.fixture(params=["lmdb", "redis"])
def name(request: pytest.FixtureRequest) -> str:
    if lacks := stores.STORES[request.param].lacks():
        pytest.skip(f"no {lacks} here")
    return str(request.param)


def test_all_sides_bring_back_what_they_kept(name, tmp_path):
    bring_back(stores.STORES[name], tmp_path)


def test_its_table_says_how_they_compare(name, tmp_path):
    table = stores.measure(name, stores.STORES[name], str(tmp_path), rounds=1, sizes=[16])
    assert [(row["page KiB"], row["call"]) for row in table.rows] == [(16, "put"), (16, "get")]
    assert all(row["vs raw"]["median"] > 0 and row["ours GB/s"] > 0 for row in table.rows)


def test_the_command_reports_in_a_folder_what_is_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stores.measure, "__defaults__", ((16,),))
    absent = stores.Store(stores.folder_each, {}, modules=("no_such_module",))
    flat = stores.Store(stores.folder_each, {"ours": stores.FlatFile, "flat file": stores.FlatFile})
    monkeypatch.setattr(
        sys, "argv", ["stores", "--quick", "--folder", str(tmp_path), "--out", str(tmp_path / "report")]
    )
    monkeypatch.setattr(stores.logging, "disable", lambda level: None)
    stores.main({"flat": flat, "absent": absent}, "stores", stores.HEAD, ["no-such-package"])
    assert "no no_such_module: absent is not measured" in capsys.readouterr().out
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert [target["figure"] for target in results["targets"]] == ["flat, over flat file"]
    assert len(results["flat"]["rows"]) == 2 and "absent" not in results
    assert results["command"] == "python -m benchmarks.stores --quick"
    words = (tmp_path / "report" / "report.md").read_text()
    assert "## flat: 128 pages a batch" in words and "load averages" in words


def test_what_a_store_lacks_is_named():
    assert stores.Store(stores.folder_each, {}, ("json",), ("no-such-program",)).lacks() == "no-such-program"
    assert stores.Store(stores.folder_each, {}, ("json",), ("sh",)).lacks() == ""
