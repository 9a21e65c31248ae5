"""Every store that runs here, measured while it is alive, and simulated from what was found."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hicache_ref.calibrate import record, stores  # noqa: E402
from hicache_ref.calibrate.stores import StoreBench, StoreFigures  # noqa: E402
from hicache_ref.config.layouts import KvGeometry, find_layout  # noqa: E402
from hicache_ref.data.storage.client import StorageIdentity  # noqa: E402
from hicache_ref.data.storage.registry import BACKENDS, make_client  # noqa: E402
from hicache_sim.hardware import EVICTIONS, STORES  # noqa: E402
from tests.faults.servers import Mooncake  # noqa: E402
from tests.storage.redis_server import RedisServer  # noqa: E402

SHAPE = KvGeometry("mha", 2, 2, 16, 2, 16, 4, (16,))
MIB = 1 << 20
Settings = dict[str, Any]


@contextmanager
def in_a_folder(folder: Path) -> Iterator[Settings]:
    yield {"file_storage_path": str(folder), "max_size": 64 * MIB}


@contextmanager
def in_a_map(folder: Path) -> Iterator[Settings]:
    pytest.importorskip("lmdb", reason="LMDB is not installed: pip install 'hicache[lmdb]'")
    yield {"path": str(folder), "max_size": 64 * MIB}


@contextmanager
def in_a_server(folder: Path) -> Iterator[Settings]:
    with RedisServer("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru") as server:
        yield {"url": server.url}


@contextmanager
def in_a_cluster(folder: Path) -> Iterator[Settings]:
    with Mooncake(folder) as cluster:
        yield cluster.settings


@contextmanager
def in_one_file(folder: Path) -> Iterator[Settings]:
    yield {"use_mock_hf3fs_client": True, "file_path_prefix": str(folder / "pages"), "file_size": 64 * MIB}


@contextmanager
def in_many_files(folder: Path) -> Iterator[Settings]:
    pytest.importorskip("nixl_cu12", reason="NIXL is not installed: pip install 'hicache[nixl]'")
    yield {"use_direct_io": False}  # new files around the page cache take their time


LIVE = {
    "file": (in_a_folder, "lru"),
    "lmdb": (in_a_map, "second_chance"),
    "redis": (in_a_server, "lru"),
    "mooncake": (in_a_cluster, "watermark_lease"),
    "hf3fs": (in_one_file, "lru_page_table"),
    "nixl": (in_many_files, "watermark_cleaner"),
}


def measure(name: str, settings: Settings, environ: dict[str, str]) -> StoreFigures:
    def open(shape: KvGeometry) -> Any:
        who = StorageIdentity("m", tag=f"calibration-{shape.page_size}", geometry=shape)
        return make_client(name, who, settings, environ)

    bench = StoreBench(open, find_layout("page_first"), SHAPE, torch.float32)
    try:
        return bench.measure(0.2)
    finally:
        bench.close()


@pytest.mark.parametrize("name", LIVE)
def test_a_live_store_is_measured_and_says_what_it_keeps(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(stores, "TAIL_CALLS", 10)
    monkeypatch.setattr(stores, "TIMES_LARGER", (1, 4))
    running, eviction = LIVE[name]
    with running(tmp_path) as settings:
        figures = measure(name, settings, {"SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": str(tmp_path)})
    assert min(figures.probe.median, figures.read_bytes_per_s, figures.write_bytes_per_s, figures.side_by_side) > 0
    assert figures.keeps["eviction"].value == eviction
    if name != "nixl":  # whose limit is the disk's
        assert 0.4 < figures.keeps["capacity_bytes"].value / (64 * MIB) <= 1.0  # small pages take more than their bytes


def test_a_store_that_keeps_less_than_a_page_is_not_measured(tmp_path: Path):
    settings = {"file_storage_path": str(tmp_path), "max_size": SHAPE.page_bytes}
    with pytest.raises(ValueError, match="does not fit"):
        measure("file", settings, {})


def test_what_stores_say_are_words_that_the_simulator_knows():
    assert set(record.STORE_BASES.values()) | {record.OTHER_STORE} <= set(STORES)
    assert set(record.STORE_BASES) <= set(BACKENDS)
    assert {eviction for _, eviction in LIVE.values()} <= set(EVICTIONS)
    assert math.isinf(float(record._as(math.inf, "x")["value"]))
