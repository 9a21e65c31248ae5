"""The benchmark of stores: every side brings back what it kept, and the table says how they compare."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from benchmarks import stores  # noqa: E402

from .fakes import read_page  # noqa: E402

NEEDS = {"lmdb": ("lmdb", "xxhash"), "redis": ("redis", "xxhash")}


@pytest.fixture(params=NEEDS)
def name(request: pytest.FixtureRequest) -> str:
    for module in NEEDS[request.param]:
        pytest.importorskip(module)
    if request.param == "redis" and shutil.which("redis-server") is None:
        pytest.skip("no redis-server here")
    return str(request.param)


def test_all_sides_bring_back_what_they_kept(name, tmp_path):
    places, sides = stores.STORES[name]
    host = stores.pool("page_first", 16)
    wanted = [read_page(host, page) for page in range(stores.BATCH)]
    with places(str(tmp_path)) as place:
        for make in sides.values():
            side = make(host, place())
            side.put()
            host.poison(stores.PAGES)
            side.get()
            assert [read_page(host, page) for page in range(stores.BATCH)] == wanted
            side.empty()
            side.close()


def test_its_table_says_how_they_compare(name, tmp_path):
    table = stores.measure(name, str(tmp_path), rounds=1, sizes=[16])
    assert [(row["page KiB"], row["call"]) for row in table.rows] == [(16, "put"), (16, "get")]
    assert all(row["vs raw"]["median"] > 0 and row["ours GB/s"] > 0 for row in table.rows)
