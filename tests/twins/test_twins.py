"""Live stores and their simulated twins answer alike: capacity, eviction, leases, and what death leaves behind."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hicache_ref.data.storage.client import StorageClient, StorageIdentity, StoreFailed
from hicache_ref.data.storage.registry import make_client
from hicache_ref.data.storage.watermark import Watermark
from hicache_sim.faults import FaultyStore, parse_fault
from hicache_sim.hardware import load_store
from hicache_sim.stores import WatermarkCleaner, make_store
from tests.faults.servers import Mooncake
from tests.storage.fakes import FakeHost, fill, names_of
from tests.storage.redis_server import RedisServer

from .story import PAGE_BYTES, documents, lockstep, share, twin_of

WHO = StorageIdentity("twin")
SMALL = 4 << 10


def test_a_capped_folder_decides_as_its_twin(tmp_path: Path):
    """Page by page: the least recently used go, down to the share that is kept."""
    extra = {"file_storage_path": str(tmp_path), "max_size": 100 * SMALL + 17, "io_threads": 1}
    with closing(make_client("file", WHO, extra, {})) as client:
        twin = twin_of(client, "file", SMALL)
        real, simulated = lockstep(client, twin, documents(1, 400), page_bytes=SMALL)
        assert real == simulated
        assert twin.evicted == client.stats()["evicted_pages"] > 100


def test_3fs_decides_as_its_twin(tmp_path: Path):
    """Page by page: each new key takes the page of the key used longest ago."""
    extra = {"file_path_prefix": str(tmp_path / "pages"), "file_size": 100 * SMALL, "use_mock_hf3fs_client": True}
    with closing(make_client("hf3fs", WHO, extra, {})) as client:
        twin = twin_of(client, "hf3fs", SMALL)
        real, simulated = lockstep(client, twin, documents(2, 400), page_bytes=SMALL)
        assert real == simulated
        assert twin.evicted > 100


def test_lmdb_decides_as_its_twin(tmp_path: Path):
    """Its limit is in bytes of a B+ tree, so a page more or less may fit."""
    pytest.importorskip("lmdb", reason="LMDB is not installed: pip install 'hicache[lmdb]'")
    requests = list(documents(3, 400))
    with closing(make_client("lmdb", WHO, {"path": str(tmp_path), "max_size": 200 * PAGE_BYTES}, {})) as client:
        twin = twin_of(client, "lmdb", PAGE_BYTES)
        real, simulated = lockstep(client, twin, requests)
        assert twin.evicted > 100
        assert share(simulated.found, requests) == pytest.approx(share(real.found, requests), abs=0.01)
        assert real.stored == simulated.stored


@pytest.fixture
def redis() -> Iterator[StorageClient]:
    """Of a server that keeps 20 MB, and looks at many pages before it lets one go."""
    options = ("--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "64")
    with RedisServer(*options) as server, closing(make_client("redis", WHO, {"url": server.url}, {})) as client:
        yield client


def test_redis_keeps_as_much_as_its_twin_and_what_was_read(redis: StorageClient):
    """Its clock for what was used last counts seconds: which of the oldest go is its own choice."""
    twin = twin_of(redis, "redis", PAGE_BYTES)
    documents = [names_of(range(12 * number, 12 * number + 12)) for number in range(24)]
    for requests in (documents[:12], documents[:6], documents[12:]):
        lockstep(redis, twin, requests)
        time.sleep(1.1)
    there = {name for names in documents for name in names if redis.exists([name])}
    assert twin.evicted > 30
    assert len(there) == pytest.approx(len(twin.held), abs=6)
    for names in (*documents[:6], *documents[12:]):
        assert there.issuperset(names) and twin.held.keys() >= set(names)


def test_redis_that_never_evicts_refuses_as_its_twin():
    with RedisServer("--maxmemory", "16mb", "--maxmemory-policy", "noeviction") as server:
        requests = list(documents(4, 120))
        with closing(make_client("redis", WHO, {"url": server.url}, {})) as client:
            twin = twin_of(client, "redis", PAGE_BYTES)
            real, simulated = lockstep(client, twin, requests)
        assert twin.refused > 0
        assert share(simulated.stored, requests) == pytest.approx(share(real.stored, requests), abs=0.02)
        assert share(simulated.found, requests) == pytest.approx(share(real.found, requests), abs=0.02)


@pytest.mark.parametrize("others", [0, 10])
def test_a_cleaner_leaves_what_its_twin_leaves(tmp_path: Path, monkeypatch, others: int):
    """NIXL's: files by age, some at a time, from one mark to the other. `others`: pages' worth of somebody else's."""
    capacity, written = 400, itertools.count()

    def used(folder: str) -> float:
        return 100.0 * (others + len(list(Path(folder).glob("??/*")))) / capacity

    monkeypatch.setattr(WatermarkCleaner, "period_s", 1.0)
    cleaner = Watermark([str(tmp_path)], 80, 70, used)
    twin = make_store(
        "watermark_cleaner",
        capacity - others,
        *((share * capacity - others) / (capacity - others) for share in (0.8, 0.7)),
        0,
    )
    for second in range(1, 12):
        names = [f"{next(written):064x}" for _ in range(97)]
        for at, name in enumerate(names):
            path = tmp_path / name[-2:] / name
            path.parent.mkdir(exist_ok=True)
            path.touch()
            os.utime(path, ns=(0, 1000 * second + at))  # the clock of files is too coarse for an order
        twin.write(names, second - 0.5)
        cleaner.look()
        twin.probe([], float(second))
        assert {path.name for path in tmp_path.glob("??/*")} == set(twin.held)
    assert twin.evicted


class TestMooncake:
    """A master and an owner, and the marks and leases they were started with."""

    def test_what_is_kept(self, tmp_path: Path):
        """Objects are evicted in the background, some more than were wanted, and by when their leases ended."""
        with Mooncake(tmp_path) as cluster, closing(cluster.client(WHO)) as client:
            twin = twin_of(client, "mooncake", PAGE_BYTES)
            assert twin.lease_s == pytest.approx(0.5, abs=0.25)
            assert twin.capacity_pages == (64 << 20) / PAGE_BYTES
            requests = list(documents(5, 700, count=220))
            real, simulated = lockstep(client, twin, requests)
            assert twin.evicted > 100
            assert share(simulated.found, requests) == pytest.approx(share(real.found, requests), abs=0.05)
            assert share(simulated.read, requests) == pytest.approx(share(real.read, requests), abs=0.05)

    def test_leased_pages_stay_and_writes_are_refused_at_once(self, tmp_path: Path):
        """All are leased, so the room above the mark is all there is."""
        with Mooncake(tmp_path, lease_s=5.0) as cluster, closing(cluster.client(WHO)) as client:
            twin = make_store("watermark_lease", 1024, 0.9, 0.85, 5.0)
            host, pages = FakeHost(200, pieces=2, page_bytes=PAGE_BYTES), np.arange(200)
            old, new = names_of(range(896)), names_of(range(1000, 1200))
            batches = [old[at : at + 128] for at in range(0, len(old), 128)]
            for names in batches:
                assert client.put(names, host, pages[:128]) == twin.write(names, 0.0) == 128
            assert [client.exists(names) for names in batches] == [twin.probe(names, 0.0) for names in batches]
            began_s = time.monotonic()
            assert client.put(new, host, pages) == twin.write(new, 0.1) == 128
            assert time.monotonic() - began_s < 2.0, "a store that is full does not wait"
            assert client.exists(old) == twin.probe(old, 0.2) == len(old)

    def test_a_dead_owner_is_believed_until_its_time_is_over(self, tmp_path: Path):
        """Pages are still said to be there, and reads fail; then everything is gone."""
        ttl_s = 2
        profile = load_store("mooncake-tcp", client_ttl_s=ttl_s)
        twin = FaultyStore(
            make_store("watermark_lease", 1024, 0.9, 0.85, 0.5), [parse_fault("owner-lost:1:0", profile, 0)]
        )
        names, host, pages = names_of(range(8)), FakeHost(8, pieces=2, page_bytes=PAGE_BYTES), np.arange(8)
        with Mooncake(tmp_path, client_ttl_s=ttl_s) as cluster, closing(cluster.client(WHO)) as client:
            fill(host, names, pages)
            assert client.put(names, host, pages) == twin.write(names, 0.5).pages == 8
            cluster.kill_owner()
            assert client.exists(names) == twin.probe(names, 1.1).pages == 8
            with pytest.raises(StoreFailed):
                client.get(names, host, pages)
            assert twin.read(names, 1.2).fails_after_s is not None
            until_s = time.monotonic() + 5 * ttl_s
            while client.exists(names) and time.monotonic() < until_s:
                time.sleep(0.1)
            assert client.exists(names) == twin.probe(names, 1.0 + ttl_s).pages == 0
            assert client.get(names, host, pages) == twin.read(names, 1.1 + ttl_s).pages == 0
