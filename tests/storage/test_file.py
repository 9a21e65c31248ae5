"""The file store: the contract, its files, its limits, and what the disk may do to it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed
from hicache_ref.data.storage.file import FileClient, suffix
from hicache_ref.data.storage.registry import make_client
from hicache_ref.data.storage.seal import SEAL_BYTES

from .contract import WHO, StorageContract, slots
from .fakes import PAGE_BYTES, FakeHost, content, fill, name_of, names_of, wrong

WHOLE = np.arange(8)


class TestFile(StorageContract):
    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: FileClient(identity, tmp_path / "pages")

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        os.truncate(tmp_path / "pages" / f"{name}{suffix(identity)}.bin", size_bytes)
        return True


class TestRemembering(TestFile):
    """With the cache of lookups, and one thread."""

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        extra = {"file_storage_path": str(tmp_path / "pages"), "enable_metadata_cache": True, "io_threads": 1}
        return lambda identity: make_client("file", identity, extra, {})


class TestLimited(TestFile):
    """With a limit that is never reached."""

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        extra = {"file_storage_path": str(tmp_path / "pages"), "max_size": "1G", "min_free_space": "1M"}
        return lambda identity: make_client("file", identity, extra, {})


class TestVerified(TestFile):
    """With a seal behind every page."""

    many = 1000

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        pytest.importorskip("xxhash")
        extra = {"file_storage_path": str(tmp_path / "pages"), "verify": True}
        return lambda identity: make_client("file", identity, extra, {})

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        return super().resize(tmp_path, identity, name, size_bytes + SEAL_BYTES)

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        path = tmp_path / "pages" / f"{name}{suffix(identity)}.bin"
        first, *rest = path.read_bytes()
        path.write_bytes(bytes((first ^ 1, *rest)))
        return True


def test_files_with_and_without_seals_are_read_by_both(tmp_path):
    pytest.importorskip("xxhash")
    plain = FileClient(WHO, tmp_path)
    sealing = make_client("file", WHO, {"file_storage_path": str(tmp_path), "verify": True}, {})
    assert put(plain, range(2)) == put(sealing, range(2, 4)) == 2
    for client in (plain, sealing):
        host, names = FakeHost(8), names_of(range(4))
        assert client.put(names, host, np.arange(4)) == 4
        assert client.stats()["present_pages"] == 4
        assert client.get(names, host, np.arange(4, 8)) == 4
        assert wrong(host, names, np.arange(4, 8)) == []
    lengths = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    sealed = {f"{name_of(n)}_org-model_1_4.bin" for n in (2, 3)}
    assert {name for name, size in lengths.items() if size == PAGE_BYTES + SEAL_BYTES} == sealed


def test_what_looks_like_a_sealed_page_and_is_none(tmp_path):
    """To who does not verify: bytes behind a page that are no seal. It goes, so that it is written again."""
    client, names, host = FileClient(WHO, tmp_path), names_of(range(2)), FakeHost(4)
    assert put(client, range(2)) == 2
    path = tmp_path / f"{names[1]}_org-model_1_4.bin"
    path.write_bytes(content(names[1]) + bytes(SEAL_BYTES))
    assert client.get(names, host, np.arange(2)) == 1
    assert not path.exists()
    assert put(client, range(2)) == 2
    assert client.get(names, host, np.arange(2)) == 2


def put(client: StorageClient, numbers: range) -> int:
    names, host = names_of(numbers), FakeHost(len(numbers))
    fill(host, names, np.arange(len(names)))
    return client.put(names, host, np.arange(len(names)))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Files


def test_a_file_holds_the_pages_bytes_and_nothing_else(tmp_path):
    client = FileClient(WHO, tmp_path)
    assert put(client, range(2)) == 2
    assert files(tmp_path) == {f"{name_of(n)}_org-model_1_4.bin" for n in range(2)}
    assert (tmp_path / f"{name_of(1)}_org-model_1_4.bin").read_bytes() == content(name_of(1))


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (StorageIdentity("a/b", 1, 4), "_a-b_1_4"),
        (StorageIdentity("a/b", 1, 4, replicated=True), "_a-b"),
        (StorageIdentity("a/b", 1, 4, 1, 2), "_a-b_1_4_2_1"),
        (StorageIdentity("a/b", 1, 4, 1, 2, replicated=True), "_a-b_2_1"),
        (StorageIdentity(), "__0_1"),
    ],
)
def test_names(identity, expected):
    assert suffix(identity) == expected


def test_nothing_unfinished_is_left(tmp_path, monkeypatch):
    client = FileClient(WHO, tmp_path, threads=1)
    assert put(client, range(3)) == 3
    monkeypatch.setattr(os, "replace", fails_with(errno.EIO))
    with pytest.raises(StoreFailed, match="Input/output error"):
        put(client, range(3, 5))
    assert len(files(tmp_path)) == 3


def fails_with(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_refuses(tmp_path, monkeypatch):
    client = FileClient(WHO, tmp_path)
    monkeypatch.setattr(os, "pwritev", fails_with(errno.ENOSPC))
    assert put(client, range(5)) == 0
    assert client.stats()["refused_pages"] >= 1
    monkeypatch.undo()
    assert put(client, range(5)) == 5


def test_an_unwell_disk_raises_with_what_was_good(tmp_path, monkeypatch):
    client, names, host = FileClient(WHO, tmp_path, threads=2), names_of(range(8)), FakeHost(8)
    put(client, range(8))
    real_open = os.open

    def open_all_but_one(path, *rest):
        return fails_with(errno.EIO)() if name_of(5) in str(path) else real_open(path, *rest)

    monkeypatch.setattr(os, "open", open_all_but_one)
    with pytest.raises(StoreFailed) as failure:
        client.get(names, host, WHOLE)
    assert failure.value.pages_ok == 5
    assert wrong(host, names[:5], WHOLE[:5]) == []


def test_pages_that_were_there_count_when_another_fails(tmp_path, monkeypatch):
    client, names, host = FileClient(WHO, tmp_path, threads=2), names_of(range(8)), FakeHost(8)
    put(client, range(3))
    monkeypatch.setattr(os, "pwritev", fails_with(errno.EIO))
    with pytest.raises(StoreFailed) as failure:
        client.put(names, host, WHOLE)
    assert failure.value.pages_ok == 3


def test_a_folder_removed_under_it_is_made_again(tmp_path):
    client = FileClient(WHO, tmp_path / "pages")
    put(client, range(2))
    for path in (tmp_path / "pages").iterdir():
        path.unlink()
    (tmp_path / "pages").rmdir()
    assert client.exists(names_of(range(2))) == 0
    assert put(client, range(2)) == 2


def test_clearing_without_a_folder_is_harmless(tmp_path):
    client = FileClient(WHO, tmp_path / "pages")
    (tmp_path / "pages").rmdir()
    client.clear()
    assert put(client, range(2)) == 2


@pytest.mark.parametrize("call", ["exists", "put", "clear"])
def test_a_disk_that_cannot_be_asked_raises(tmp_path, monkeypatch, call):
    client, host = FileClient(WHO, tmp_path), FakeHost(2)
    monkeypatch.setattr(os, "stat", fails_with(errno.EACCES))
    monkeypatch.setattr(os, "scandir", fails_with(errno.EACCES))
    with pytest.raises(StoreFailed, match="Permission denied"):
        getattr(client, call)(*{"exists": [names_of([1])], "put": [names_of([1]), host, slots(0)]}.get(call, []))


def test_a_folder_that_cannot_be_is_an_error(tmp_path):
    (tmp_path / "pages").write_text("not a folder")
    with pytest.raises(StorageError, match=r"cannot make .*pages"):
        FileClient(WHO, tmp_path / "pages" / "below")


def test_clear_leaves_what_is_not_a_page(tmp_path):
    client = FileClient(WHO, tmp_path)
    put(client, range(2))
    (tmp_path / "notes.bin").write_text("mine")
    (tmp_path / f"x{suffix(WHO)}.txt").write_text("mine too")
    client.clear()
    assert files(tmp_path) == {"notes.bin", f"x{suffix(WHO)}.txt"}


# The limit


def limited(tmp_path: Path, pages: int, **more: object) -> StorageClient:
    extra = {"file_storage_path": str(tmp_path), "max_size": pages * PAGE_BYTES, "io_threads": 1} | more
    return make_client("file", WHO, extra, {})


def there(client: StorageClient, numbers: range) -> list[int]:
    return [n for n in numbers if client.exists([name_of(n)])]


def test_the_limit_removes_what_was_used_longest_ago(tmp_path):
    client = limited(tmp_path, 10, eviction_ratio=1.0)
    assert put(client, range(10)) == 10
    assert client.get(names_of([0, 1]), FakeHost(2), WHOLE[:2]) == 2
    assert put(client, range(2, 3)) == 1  # being asked to write it is a use as well
    assert put(client, range(10, 12)) == 2
    assert there(client, range(12)) == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]
    assert client.stats()["evicted_pages"] == 2


def test_the_ratio_makes_room_for_more_than_one(tmp_path):
    client = limited(tmp_path, 10, eviction_ratio=0.5)
    put(client, range(10))
    put(client, range(10, 11))
    assert there(client, range(11)) == [6, 7, 8, 9, 10]


def test_a_page_larger_than_the_limit_is_refused(tmp_path):
    client = make_client("file", WHO, {"file_storage_path": str(tmp_path), "max_size": 100}, {})
    assert put(client, range(2)) == 0
    assert client.stats()["refused_pages"] >= 1


def test_replicas_only_read(tmp_path):
    """The limit of a rank that never writes would remove what rank 0 keeps."""
    writer = StorageIdentity("m", 0, 2, replicated=True)
    put(FileClient(writer, tmp_path), range(6))
    extra = {"file_storage_path": str(tmp_path), "max_size": 2 * PAGE_BYTES}
    make_client("file", replace(writer, tp_rank=1), extra, {})
    assert len(files(tmp_path)) == 6
    make_client("file", writer, extra, {})
    assert len(files(tmp_path)) == 1


def test_files_that_were_there_count_oldest_first(tmp_path):
    put(FileClient(WHO, tmp_path), range(6))
    put(FileClient(StorageIdentity("other"), tmp_path), range(6))
    for age, number in enumerate([3, 1, 5, 0, 2, 4]):
        os.utime(tmp_path / f"{name_of(number)}{suffix(WHO)}.bin", (1000 + age, 1000 + age))
    client = limited(tmp_path, 4, eviction_ratio=1.0)
    assert there(client, range(6)) == [0, 2, 4, 5]
    assert len(there(FileClient(StorageIdentity("other"), tmp_path), range(6))) == 6


def test_files_whose_writers_died_are_removed(tmp_path):
    for name, age_s in ((".a.0.tmp", 4000), (".b.0.tmp", 10), ("mine.tmp", 4000)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    limited(tmp_path, 4)
    assert files(tmp_path) == {".b.0.tmp", "mine.tmp"}


def test_space_is_left_on_the_disk(tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)
    free = [100]
    monkeypatch.setattr(os, "statvfs", lambda path: fake_disk(real, free[0] - len(files(tmp_path))))
    extra = {"file_storage_path": str(tmp_path), "min_free_space": 95 * PAGE_BYTES, "io_threads": 1}
    client = make_client("file", WHO, extra, {})
    assert put(client, range(8)) == 8
    assert there(client, range(8)) == [3, 4, 5, 6, 7]
    free[0] = 10  # somebody else fills the disk: nothing helps, and what is there stays until it must go
    assert put(client, range(8, 9)) == 0


def fake_disk(real: os.statvfs_result, pages: int) -> os.statvfs_result:
    facts = list(real)
    facts[1], facts[4] = PAGE_BYTES, pages  # f_frsize, f_bavail
    return os.statvfs_result(facts)


def test_a_file_being_written_is_nobodys_victim(tmp_path):
    from hicache_ref.data.storage.cap import LruCap

    cap = LruCap(str(tmp_path), lambda stem: True, lambda stem: None, max_bytes=100, keep_ratio=1.0)
    assert cap.reserve("a", 60)
    assert not cap.reserve("b", 60)
    cap.commit("a")
    assert cap.reserve("b", 60)
    cap.abort("b")
    assert cap.used_bytes == 0


# What lookups remember


def test_a_name_is_believed_for_a_while(tmp_path):
    extra = {"file_storage_path": str(tmp_path), "enable_metadata_cache": True, "metadata_ttl": -1}
    client, names = make_client("file", WHO, extra, {}), names_of(range(3))
    put(client, range(3))
    for path in tmp_path.iterdir():
        path.unlink()
    assert client.exists(names) == 3
    assert client.get(names, FakeHost(3), slots(0, 1, 2)) == 0
    assert client.exists(names) == 0
    assert put(client, range(3)) == 3
    assert client.get(names, FakeHost(3), slots(0, 1, 2)) == 3


def test_seen_names_expire_and_are_few():
    from hicache_ref.data.storage.seen import SeenFor

    now = [0.0]
    seen = SeenFor(5.0, limit=2, clock=lambda: now[0])
    seen.add("a")
    now[0] = 4.0
    seen.add("a")
    assert "a" in seen
    now[0] = 5.5
    assert "a" not in seen
    for name in "bcd":
        seen.add(name)
    assert [name in seen for name in "bcd"] == [False, True, True]


# Settings


def test_the_folder_goes_by_the_environment_first(tmp_path):
    environ = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path / "env")}
    client = make_client("file", WHO, {"file_storage_path": str(tmp_path / "json")}, environ)
    put(client, range(1))
    assert files(tmp_path) == {"env"}


def test_limits_go_by_the_json_first(tmp_path):
    environ = {"SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE": "1"}
    extra = {"file_storage_path": str(tmp_path)}
    assert put(make_client("file", WHO, extra, environ), range(2)) == 0
    assert put(make_client("file", WHO, extra | {"max_size": "0"}, environ), range(2)) == 2


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"max_sise": 1}, "backend 'file' knows no max_sise; it knows extra_backend_tag, file_storage_path, max_size"),
        ({"max_size": "much"}, "max_size of backend 'file' must be a size in bytes"),
        ({"eviction_ratio": 1.5}, "eviction_ratio .* must be a share of max_size from 0.01 to 1, got 1.5"),
        ({"metadata_ttl": "soon"}, "must be seconds, at least -1"),
        ({"enable_metadata_cache": "maybe"}, "must be true or false, got 'maybe'"),
        ({"io_threads": 2.5}, "must be a whole number from 1 to 64"),
        ({"extra_backend_tag": "a/b"}, "take the / out"),
    ],
)
def test_wrong_settings_are_errors(tmp_path, extra, message):
    with pytest.raises(StorageError, match=message):
        make_client("file", WHO, {"file_storage_path": str(tmp_path)} | extra, {})


def test_a_variable_that_is_wrong_is_named(tmp_path):
    with pytest.raises(StorageError, match="SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE of backend 'file' must be a size"):
        make_client("file", WHO, {"file_storage_path": str(tmp_path)}, {"SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE": "x"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("200G", 200 * 10**9), ("1Gi", 2**30), ("25.6k", 25600), (4096, 4096), ("0", 0), ("2Ti", 2**41)],
)
def test_sizes_are_upstreams(text, expected):
    from hicache_ref.data.storage.options import size_bytes

    assert size_bytes(text) == expected


def test_an_unknown_store_lists_the_known():
    with pytest.raises(StorageError, match="unknown storage backend 'flie'; known: file"):
        make_client("flie", WHO)


def test_what_must_be_installed_is_said(monkeypatch):
    from hicache_ref.data.storage import registry

    def missing(**_: object) -> StorageClient:
        raise ModuleNotFoundError("No module named 'redis'", name="redis")

    monkeypatch.setitem(registry.BACKENDS._makers, "redis", missing)
    with pytest.raises(StorageError, match=r"'redis' needs the module redis: pip install 'hicache\[redis\]'"):
        make_client("redis", WHO)


@pytest.mark.parametrize(("rank", "size"), [(4, 4), (-1, 2), (0, 0)])
def test_impossible_ranks_are_errors(rank, size):
    with pytest.raises(StorageError, match="TP rank"):
        StorageIdentity("m", rank, size)
