"""The LMDB store: the contract on a real environment, its limit, its disk, other processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

lmdb = pytest.importorskip("lmdb")
pytest.importorskip("xxhash")

from hicache_ref.data.storage import lmdb as store  # noqa: E402
from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed  # noqa: E402
from hicache_ref.data.storage.naming import prefix  # noqa: E402
from hicache_ref.data.storage.registry import make_client  # noqa: E402

from .contract import WHO, StorageContract, slots  # noqa: E402
from .fakes import PAGE_BYTES, FakeHost, content, fill, name_of, names_of, wrong  # noqa: E402

ROOMY = "1Gi"


class TestLmdb(StorageContract):
    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        extra = {"path": str(tmp_path / "store"), "max_size": ROOMY}
        return lambda identity: make_client("lmdb", identity, extra, {})

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        other = size_bytes - PAGE_BYTES // 2
        change(identity, name, lambda value: value[:other].ljust(other, b"\0"))
        return True

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        change(identity, name, lambda value: bytes((value[0] ^ 1, *value[1:])))
        return True

    def test_a_page_of_another_length_is_written_again(self, open, host):
        """Its facts say how long it is, so it is seen when it is read."""
        client, names = open(), names_of(range(3))
        fill(host, names, slots(0, 1, 2))
        client.put(names, host, slots(0, 1, 2))
        change(WHO, names[1], lambda value: value[:5])
        assert client.get(names, host, slots(10, 11, 12)) == 1
        assert client.put(names, host, slots(0, 1, 2)) == 3
        assert client.get(names, host, slots(10, 11, 12)) == 3

    def test_another_models_pages_of_another_size(self, open):
        """The same name under the same identity, stored by a server with longer pages: written again."""
        client, names = open(), names_of(range(2))
        long, short = FakeHost(4, page_bytes=1536), FakeHost(4)
        assert client.put(names, long, slots(0, 1)) == 2
        assert client.get(names, short, slots(0, 1)) == 0
        assert client.stats()["bad_pages"] == 1
        fill(short, names, slots(0, 1))
        assert client.put(names, short, slots(0, 1)) == 2
        assert client.get(names, short, slots(2, 3)) == 2
        assert wrong(short, names, slots(2, 3)) == []


def change(identity: StorageIdentity, name: str, how: Callable[[bytes], bytes]) -> None:
    """Change a page's first component, as nobody should."""
    (environment,) = store._ENVIRONMENTS._open.values()
    key = f"{prefix(identity)}{name}".encode() + b"\1"
    with environment.begin(write=True) as txn:
        txn.put(key, how(bytes(txn.get(key))))


@pytest.fixture
def make(tmp_path):
    """Makes clients of one folder, closed at the end."""
    made: list[StorageClient] = []

    def one(who: StorageIdentity = WHO, **extra: object) -> StorageClient:
        made.append(make_client("lmdb", who, {"path": str(tmp_path / "store"), "max_size": ROOMY} | extra, {}))
        return made[-1]

    yield one
    for client in made:
        client.close()


def put(client: StorageClient, numbers: range, host: FakeHost) -> int:
    names = names_of(numbers)
    at = np.arange(len(names))
    fill(host, names, at)
    return client.put(names, host, at)


def there(client: StorageClient, numbers: range) -> list[int]:
    return [number for number in numbers if client.exists([name_of(number)])]


def test_full_means_that_the_oldest_go(make):
    """The limit holds, the newest pages stay, and of the old ones those that were read."""
    host = FakeHost(8, pieces=2, page_bytes=64 << 10)
    client = make(max_size=40 * (68 << 10))
    assert put(client, range(8), host) == 8
    for first in range(8, 80, 8):
        assert client.get(names_of([3]), host, slots(0)) == 1
        assert put(client, range(first, first + 8), host) == 8
    left = there(client, range(80))
    assert 20 < len(left) <= 40
    assert left[1:] == list(range(80 - len(left) + 1, 80))
    assert left[0] == 3
    assert client.get(names_of([3, 79]), host, slots(0, 1)) == 2
    assert wrong(host, names_of([3, 79]), slots(0, 1)) == []


def test_pages_that_are_all_read_go_too(make):
    host = FakeHost(8, pieces=2, page_bytes=64 << 10)
    client = make(max_size=40 * (68 << 10))
    for first in range(0, 160, 8):
        assert put(client, range(first, first + 8), host) == 8
        assert client.get(names_of(range(first, first + 8)), host, np.arange(8)) == 8
    assert client.stats()["refused_pages"] == 0


def test_a_batch_larger_than_the_limit_is_cut(make):
    host = FakeHost(64, pieces=2, page_bytes=64 << 10)
    client = make(max_size=16 * (80 << 10))
    stored = put(client, range(64), host)
    assert 10 < stored <= 17  # what a page takes is more than its bytes
    assert client.stats()["refused_pages"] == 64 - stored
    assert there(client, range(64)) == list(range(stored))


def test_a_limit_kept_for_long(make):
    """Pages that went make room for new ones: the map never fills, whatever its history."""
    host, rng = FakeHost(8, pieces=2, page_bytes=20_000), np.random.default_rng(0)
    client = make(max_size=100 * 28_000)
    for at in range(0, 1600, 8):
        assert put(client, range(at, at + int(rng.integers(1, 9))), host) > 0
    assert client.stats()["refused_pages"] == 0


def test_a_full_disk_refuses(make, monkeypatch):
    host, client = FakeHost(8), make()
    assert put(client, range(4), host) == 4

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    client._environment._allocated = 0
    assert put(client, range(4, 8), host) == 0
    assert client.stats()["refused_pages"] == 4
    assert there(client, range(8)) == [0, 1, 2, 3]
    monkeypatch.undo()
    assert put(client, range(4, 8), host) == 4


def test_a_disk_that_fails_is_a_failure(make, monkeypatch):
    host, client = FakeHost(8), make()

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(StoreFailed, match="broken"):
        put(client, range(4), host)


def test_room_is_on_the_disk_before_it_is_written(make, tmp_path):
    client = make()
    put(client, range(4), FakeHost(8))
    facts = os.stat(tmp_path / "store" / "data.mdb")
    assert facts.st_blocks * 512 >= 64 << 20
    assert facts.st_size > facts.st_blocks * 512


OTHER = """
import sys
sys.path[:0] = sys.argv[1:2]
from tests.storage.contract import WHO
from tests.storage.fakes import FakeHost
from tests.storage.test_lmdb import put
from hicache_ref.data.storage.registry import make_client
client = make_client("lmdb", WHO, {"path": sys.argv[2], "max_size": "1Gi"}, {})
assert put(client, range(5, 10), FakeHost(8)) == 5
"""


def test_another_process_shares_the_store(make, tmp_path):
    host, client = FakeHost(16), make()
    assert put(client, range(5), host) == 5
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", OTHER, str(root), str(tmp_path / "store")], check=True, timeout=60)
    assert client.get(names_of(range(10)), host, np.arange(10)) == 10
    assert wrong(host, names_of(range(10)), np.arange(10)) == []


def test_durable_keeps_the_contracts_bytes(make):
    host, client = FakeHost(8), make(durable=True)
    assert put(client, range(4), host) == 4
    assert client.get(names_of(range(4)), host, slots(4, 5, 6, 7)) == 4
    assert wrong(host, names_of(range(4)), slots(4, 5, 6, 7)) == []


def test_what_is_stored_unverified_is_read_by_who_verifies(make):
    host, trusting = FakeHost(8), make(verify=False)
    assert put(trusting, range(3), host) == 3
    assert make().get(names_of(range(3)), host, slots(4, 5, 6)) == 3
    change(WHO, name_of(1), lambda value: bytes((value[0] ^ 1, *value[1:])))
    assert trusting.get(names_of(range(3)), host, slots(4, 5, 6)) == 3


def test_readers_see_whole_batches(make):
    """A batch is one transaction: no reader ever sees a part of it."""
    writer, reader, host, stop = make(), make(), FakeHost(16), threading.Event()
    seen: set[int] = set()

    def watch() -> None:
        while not stop.is_set():
            seen.update(reader.exists(names_of(range(first, first + 16))) for first in range(0, 320, 16))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for first in range(0, 320, 16):
            assert put(writer, range(first, first + 16), host) == 16
    finally:
        stop.set()
        thread.join()
    assert seen <= {0, 16}


def test_names_that_are_too_long(make):
    with pytest.raises(StorageError, match="takes keys of 511 bytes: shorten"):
        make(StorageIdentity("m" * 500))


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot open .*/file: .*; set path to another folder"):
        make_client("lmdb", WHO, {"path": str(tmp_path / "file")}, {})


def test_what_is_no_environment(tmp_path):
    (tmp_path / "data.mdb").write_bytes(content("x", 8192))
    with pytest.raises(StorageError, match="cannot open"):
        make_client("lmdb", WHO, {"path": str(tmp_path)}, {})
