"""What every storage client keeps to, as one suite to inherit.

    class TestMine(StorageContract):
        def opener(self, tmp_path): return lambda identity: MyClient(identity, ...)

Rules of this file
- A test sees clients and host memory, never a store's own API; what only a store can do (damage an object from
  outside) is a hook that may say no.
- A page holds bytes that follow from its name, so a wrong page is always seen.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hicache_ref.config.layouts import LAYOUTS, KvGeometry
from hicache_ref.data.storage.client import Counts, StorageClient, StorageIdentity, StoreFailed

from .fakes import FakeHost, fill, names_of, read_page, wrong

WHO = StorageIdentity("org/model", tp_rank=1, tp_size=4)
REPLICA = StorageIdentity("org/latent", tp_rank=0, tp_size=4, replicated=True)
STRANGERS = {
    "model": replace(WHO, model_name="org/other"),
    "longer model": replace(WHO, model_name="org/model_x"),
    "rank": replace(WHO, tp_rank=2),
    "ranks": replace(WHO, tp_size=8),
    "stage": replace(WHO, pp_rank=1, pp_size=2),
    "tag": replace(WHO, tag="elsewhere"),
}
MHA = KvGeometry("mha", 2, 3, 4, 2, 8, 2, (8,))
MLA = KvGeometry("mla", 1, 3, 4, 1, 24, 2, (16, 8))

Open = Callable[..., StorageClient]


def slots(*pages: int) -> np.ndarray:
    return np.array(pages, dtype=np.int64)


class StorageContract(ABC):
    """The suite. `opener(tmp_path)` gives what opens clients of one fresh store, each with its own identity."""

    many = 10_000
    """Pages of the test of many."""
    survives_close = True
    """Pages are there for a client that comes after the last one has gone."""
    strangers = tuple(STRANGERS)
    """The differences between identities that this store's keys know; upstream's keys leave some out."""
    clears_only_its_own = True

    @abstractmethod
    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]: ...

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        """Cut the object of a page, or lengthen it with zeros; False if nobody but the store can do that."""
        return False

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        """Change one byte of a page where it is stored; False if this store does not look for that."""
        return False

    @pytest.fixture
    def open(self, tmp_path: Path) -> Iterator[Open]:
        opened: list[StorageClient] = []
        opens = self.opener(tmp_path)

        def one(identity: StorageIdentity = WHO) -> StorageClient:
            opened.append(opens(identity))
            return opened[-1]

        yield one
        for client in opened:
            client.close()

    @pytest.fixture
    def host(self) -> FakeHost:
        return FakeHost(64)

    # What is there

    def test_an_empty_store_has_nothing(self, open: Open, host: FakeHost):
        client, names = open(), names_of(range(5))
        assert client.exists(names) == 0
        assert client.get(names, host, slots(*range(5))) == 0

    def test_empty_batches_are_harmless(self, open: Open, host: FakeHost):
        client = open()
        assert client.exists([]) == client.get([], host, slots()) == client.put([], host, slots()) == 0

    def test_exists_counts_to_the_first_hole(self, open: Open, host: FakeHost):
        client, names = open(), names_of(range(10))
        for first, last in ((0, 6), (7, 10)):
            assert client.put(names[first:last], host, slots(*range(first, last))) == last - first
        assert client.exists(names) == 6
        assert client.exists(names[7:]) == 3
        assert client.exists(names[6:]) == 0

    def test_a_page_written_by_one_client_is_seen_by_the_next(self, open: Open, host: FakeHost):
        writer, reader, names = open(), open(), names_of(range(3))
        fill(host, names, slots(0, 1, 2))
        assert writer.put(names, host, slots(0, 1, 2)) == 3
        assert reader.exists(names) == 3
        assert reader.get(names, host, slots(10, 11, 12)) == 3
        assert wrong(host, names, slots(10, 11, 12)) == []

    # Bytes

    def test_bytes_come_back_and_neighbours_stay(self, open: Open, host: FakeHost):
        client, names = open(), names_of(range(6))
        source, target = slots(3, 9, 1, 20, 21, 22), slots(40, 63, 0, 41, 50, 33)
        fill(host, names, source)
        assert client.put(names, host, source) == 6
        host.memory[:] = 7
        assert client.get(names, host, target) == 6
        assert wrong(host, names, target) == []
        others = np.setdiff1d(np.arange(host.pages), target)
        assert (host.memory[:, others] == 7).all()

    def test_a_get_tells_the_good_pages_before_a_hole(self, open: Open, host: FakeHost):
        client, names = open(), names_of(range(9))
        known = names[:5] + names[6:]
        at = slots(0, 1, 2, 3, 4, 6, 7, 8)
        fill(host, known, at)
        assert client.put(known, host, at) == 8
        assert client.get(names, host, slots(*range(20, 29))) == 5
        assert wrong(host, names[:5], slots(*range(20, 25))) == []

    def test_what_is_there_is_not_rewritten(self, open: Open, host: FakeHost):
        client, names = open(), names_of(range(4))
        fill(host, names, slots(0, 1, 2, 3))
        assert client.put(names[:3], host, slots(0, 1, 2)) == 3
        host.memory[:, 0:3] = 9
        assert client.put(names, host, slots(0, 1, 2, 3)) == 4
        assert client.get(names, host, slots(10, 11, 12, 13)) == 4
        assert wrong(host, names, slots(10, 11, 12, 13)) == []

    @pytest.mark.parametrize("change", [-1, -700, 1, 4096])
    def test_a_page_of_another_length_is_no_page(self, change: int, open: Open, host: FakeHost, tmp_path: Path):
        client, names, at = open(), names_of(range(4)), slots(0, 1, 2, 3)
        fill(host, names, at)
        assert client.put(names, host, at) == 4
        if not self.resize(tmp_path, WHO, names[2], host.page_bytes + change):
            pytest.skip("nobody but this store can do that")
        assert client.get(names, host, slots(10, 11, 12, 13)) == 2
        assert client.stats()["bad_pages"] >= 1

    def test_a_page_of_another_length_is_written_again(self, open: Open, host: FakeHost, tmp_path: Path):
        client, names, at = open(), names_of(range(3)), slots(0, 1, 2)
        fill(host, names, at)
        client.put(names, host, at)
        if not self.resize(tmp_path, WHO, names[1], 5):
            pytest.skip("nobody but this store can do that")
        assert client.put(names, host, at) == 3
        assert client.get(names, host, slots(10, 11, 12)) == 3
        assert wrong(host, names, slots(10, 11, 12)) == []

    def test_a_page_with_a_changed_byte_is_no_page(self, open: Open, host: FakeHost, tmp_path: Path):
        client, names, at = open(), names_of(range(4)), slots(0, 1, 2, 3)
        fill(host, names, at)
        assert client.put(names, host, at) == 4
        if not self.damage(tmp_path, WHO, names[2]):
            pytest.skip("this store does not look for that")
        assert client.get(names, host, slots(10, 11, 12, 13)) == 2
        assert client.stats()["bad_pages"] == 1
        assert client.put(names, host, at) == 4
        assert client.get(names, host, slots(10, 11, 12, 13)) == 4
        assert wrong(host, names, slots(10, 11, 12, 13)) == []

    @pytest.mark.parametrize("geometry", [MHA, MLA], ids=["mha", "mla"])
    @pytest.mark.parametrize("layout", list(LAYOUTS))
    def test_any_host_layout(self, layout: str, geometry: KvGeometry, open: Open):
        torch = pytest.importorskip("torch")
        from hicache_ref.data.pools import HostPool

        host = HostPool(LAYOUTS[layout], geometry, 8, torch.bfloat16, pin=False)
        client, names = open(), names_of(range(3))
        fill(host, names, slots(0, 1, 2))
        assert client.put(names, host, slots(0, 1, 2)) == 3
        host.poison(range(8))
        blank = read_page(host, 3)
        assert client.get(names, host, slots(7, 0, 5)) == 3
        assert wrong(host, names, slots(7, 0, 5)) == []
        assert all(read_page(host, page) == blank for page in (1, 2, 3, 4, 6))

    # Whose pages

    @pytest.mark.parametrize("difference", list(STRANGERS))
    def test_strangers_see_nothing(self, difference: str, open: Open, host: FakeHost):
        if difference not in self.strangers:
            pytest.skip("this store's keys are upstream's, which leave that out")
        mine, other, names = open(), open(STRANGERS[difference]), names_of(range(3))
        assert mine.put(names, host, slots(0, 1, 2)) == 3
        assert other.exists(names) == 0
        assert other.get(names, host, slots(5, 6, 7)) == 0

    def test_replicas_share_their_pages(self, open: Open, host: FakeHost):
        writer, other, names = open(REPLICA), open(replace(REPLICA, tp_rank=3)), names_of(range(3))
        assert writer.identity.writes
        assert not other.identity.writes
        fill(host, names, slots(0, 1, 2))
        assert writer.put(names, host, slots(0, 1, 2)) == 3
        assert other.get(names, host, slots(5, 6, 7)) == 3
        assert wrong(host, names, slots(5, 6, 7)) == []

    def test_clear_forgets(self, open: Open, host: FakeHost):
        client, names = open(), names_of(range(3))
        client.put(names, host, slots(0, 1, 2))
        client.clear()
        assert client.exists(names) == client.get(names, host, slots(0, 1, 2)) == 0
        assert client.put(names, host, slots(0, 1, 2)) == 3
        assert client.exists(names) == 3

    def test_clear_leaves_strangers_alone(self, open: Open, host: FakeHost):
        if not self.clears_only_its_own:
            pytest.skip("this store can only be emptied as a whole")
        client, names = open(), names_of(range(3))
        others = [open(STRANGERS[difference]) for difference in self.strangers]
        for other in others:
            other.put(names, host, slots(0, 1, 2))
        client.clear()
        assert [other.exists(names) for other in others] == [3] * len(others)

    # What is counted

    def test_stats_count_pages(self, open: Open, host: FakeHost):
        client, names = open(), names_of(range(6))
        assert set(Counts.COMMON) <= set(client.stats())
        client.put(names[:4], host, slots(0, 1, 2, 3))
        client.put(names[:5], host, slots(0, 1, 2, 3, 4))
        client.get(names[:5], host, slots(0, 1, 2, 3, 4))
        client.get(names[5:], host, slots(5))
        stats = client.stats()
        counted = {what: stats[what] for what in Counts.COMMON}
        assert counted == {
            "read_pages": 5,
            "missed_pages": 1,
            "bad_pages": 0,
            "written_pages": 5,
            "present_pages": 4,
            "refused_pages": 0,
        }

    # Many, and at the same time

    def test_many_pages(self, open: Open):
        client, names, host = open(), names_of(range(self.many)), FakeHost(128, pieces=2, page_bytes=64)
        at = np.arange(128)
        for first in range(0, self.many, 128):
            batch = names[first : first + 128]
            fill(host, batch, at[: len(batch)])
            assert client.put(batch, host, at[: len(batch)]) == len(batch)
        assert client.exists(names) == self.many
        sample = names[:: max(self.many // 128, 1)][:128]
        assert client.get(sample, host, at[: len(sample)]) == len(sample)
        assert wrong(host, sample, at[: len(sample)]) == []

    def test_readers_and_writers_at_once(self, open: Open):
        """Whatever is said to be good is right, whoever writes meanwhile; in the end everything is there."""
        names, clients = names_of(range(60)), [open(), open()]
        errors: list[str] = []

        def live(seed: int) -> None:
            rng, host, client = np.random.default_rng(seed), FakeHost(60), clients[seed % 2]
            for _ in range(6):
                first, count = int(rng.integers(0, 50)), int(rng.integers(1, 11))
                batch, at = names[first : first + count], np.arange(count)
                fill(host, batch, at)
                if client.put(batch, host, at) != count:
                    errors.append(f"writer {seed} was refused")
                host.memory[:] = 0
                first = int(rng.integers(0, 50))
                batch = names[first : first + 10]
                good = client.get(batch, host, np.arange(10))
                errors.extend(f"reader {seed}: page {first + at}" for at in wrong(host, batch[:good], np.arange(good)))

        threads = [threading.Thread(target=live, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    # The end

    def test_pages_outlive_their_client(self, open: Open, host: FakeHost):
        if not self.survives_close:
            pytest.skip("this store lives in its client")
        names, client = names_of(range(3)), open()
        fill(host, names, slots(0, 1, 2))
        assert client.put(names, host, slots(0, 1, 2)) == 3
        client.close()
        assert open().get(names, host, slots(5, 6, 7)) == 3
        assert wrong(host, names, slots(5, 6, 7)) == []

    def test_a_closed_client_says_so(self, open: Open, host: FakeHost):
        client = open()
        client.close()
        client.close()
        for call in (
            lambda: client.exists(names_of(range(2))),
            lambda: client.get(names_of(range(2)), host, slots(0, 1)),
            lambda: client.put(names_of(range(2)), host, slots(0, 1)),
        ):
            with pytest.raises(StoreFailed, match="closed"):
                call()

    def test_close_while_busy(self, open: Open, host: FakeHost):
        """Calls under way end well or raise `StoreFailed`, none hangs, and what was acknowledged is there."""
        client, acknowledged, errors = open(), [], []
        begun = threading.Event()

        def write(writer: int) -> None:
            own = FakeHost(8)
            for batch in range(500):
                names = names_of(range(10_000 * writer + 8 * batch, 10_000 * writer + 8 * batch + 8))
                fill(own, names, np.arange(8))
                try:
                    good = client.put(names, own, np.arange(8))
                except StoreFailed as failure:
                    acknowledged.extend(names[: failure.pages_ok])
                    return
                except BaseException as error:
                    errors.append(error)
                    return
                acknowledged.extend(names[:good])
                begun.set()

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(2)]
        for thread in threads:
            thread.start()
        assert begun.wait(20)
        client.close()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == []
        if not self.survives_close:
            return
        after = open()
        for first in range(0, len(acknowledged), 64):
            batch = acknowledged[first : first + 64]
            assert after.get(batch, host, np.arange(len(batch))) == len(batch)
            assert wrong(host, batch, np.arange(len(batch))) == []
