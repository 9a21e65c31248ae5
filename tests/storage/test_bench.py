"""The benchmark's three sides do the same thing: the same files, the same bytes back."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks import storage

from .fakes import read_page


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_all_sides_keep_the_same_files(tmp_path, layout):
    host = storage.pool(layout, 16)
    wanted = [read_page(host, page) for page in range(storage.BATCH)]
    kept = {}
    for name, make in storage.SIDES.items():
        folder = tmp_path / name
        folder.mkdir()
        side = make(host, str(folder), 2)
        side.put()
        kept[name] = {path.name: path.read_bytes() for path in folder.iterdir()}
        host.poison(storage.PAGES)
        side.get()
        assert [read_page(host, page) for page in range(storage.BATCH)] == wanted
    assert kept["ours"] == kept["bare"] == kept["upstream"]
    assert list(map(len, kept["ours"].values())) == [16 * 1024] * storage.BATCH


def test_its_table_says_how_it_compares(tmp_path):
    table = storage.measure(tmp_path / "pages", rounds=1, threads=2, sizes=[16])
    assert [(row["layout"], row["call"]) for row in table.rows] == [
        (layout, call) for layout in ("page_first", "layer_first") for call in ("put", "get")
    ]
    assert all(
        row["vs bare"]["median"] > 0 and row["bare vs upstream"]["median"] > 0 and row["ours GB/s"] > 0
        for row in table.rows
    )
