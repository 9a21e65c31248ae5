"""3FS: the contract on a plain file and our metadata server, a process; usrbio by its call shapes; settings."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed
from hicache_ref.data.storage.hf3fs import Hf3fsClient, Settings, open_client, rank_number
from hicache_ref.data.storage.registry import make_client
from hicache_ref.data.storage.seal import Trust
from hicache_ref.data.storage.threefs.drivers import FileDriver
from hicache_ref.data.storage.threefs.metadata import HttpMetadata, LocalMetadata
from hicache_ref.data.storage.threefs.table import Place

from .contract import WHO, StorageContract, slots
from .fakes import PAGE_BYTES, FakeHost, fill, name_of, names_of, wrong
from .servers import free_port, running, says

FILE_BYTES = 24 << 20


def command(port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "hicache_ref.data.storage.threefs.server", "--port", str(port), *more]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a metadata server."""
    log, port = tmp_path_factory.mktemp("hf3fs") / "server.log", free_port()
    with running(command(port), log, says(log, "listens on")):
        yield f"http://127.0.0.1:{port}"


def settings(folder: Path, url: str, **changes: object) -> Settings:
    return Settings(str(folder / "pages"), FILE_BYTES, 3, 4, url, 5.0, mock=True, verify=True)._replace(**changes)


class TestHf3fs(StorageContract):
    """Two objects a page, all clients of a test on one server."""

    strangers = ("rank", "stage", "tag")
    layout = "page_first"

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.server = server

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        def one(identity: StorageIdentity) -> StorageClient:
            return open_client(replace(identity, layout=self.layout), settings(tmp_path, self.server))

        ranks = [WHO, replace(WHO, tp_rank=0), replace(WHO, tp_rank=2)]
        for identity in (*ranks, replace(WHO, pp_rank=1, pp_size=2), replace(WHO, tag="elsewhere")):
            client = one(identity)
            client.clear()
            client.close()
        return one

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        pieces = 2 if self.layout == "page_first" else 1
        table = HttpMetadata(self.server, rank_number(identity), "kv", 5.0)
        (place,) = table.find([name + ("-v" if pieces == 2 else "")])
        table.close()
        with open(tmp_path / f"pages.{rank_number(identity)}.bin", "r+b") as file:
            at = place.page * PAGE_BYTES // pieces + 7
            file.seek(at)
            byte = file.read(1)[0] ^ 1
            file.seek(at)
            file.write(bytes([byte]))
        return True


class TestFlatHf3fs(TestHf3fs):
    """One object a page, as for layouts that cut it otherwise."""

    layout = "layer_first"
    many = 1_000


# Bytes


def local(folder: Path, file_bytes: int = FILE_BYTES, metadata: LocalMetadata | None = None, **more: object):
    path = str(folder / "pages.bin")
    return Hf3fsClient(WHO, metadata or LocalMetadata(), lambda size: FileDriver(path, file_bytes), file_bytes, **more)


def put(client: StorageClient, numbers: range) -> int:
    names, host = names_of(numbers), FakeHost(len(numbers), pieces=2)
    fill(host, names, np.arange(len(names)))
    return client.put(names, host, np.arange(len(names)))


def test_a_page_that_was_given_away_is_no_page(tmp_path):
    """What a reader in another process sees when its page goes to another key before it has read it."""
    table, host, names = LocalMetadata(), FakeHost(8, pieces=2), names_of(range(4))
    client = local(tmp_path, 8 * PAGE_BYTES, table)
    assert put(client, range(4)) == 4
    stale = {key: table.find([key])[0] for name in names for key in (f"{name}-k", f"{name}-v")}
    assert put(client, range(4, 10)) == 6  # eight pages for ten: the first two are gone
    assert client.exists(names[:1]) == client.exists(names[1:2]) == 0
    assert client.exists(names[2:]) == 2
    table.find = lambda keys: [stale[key] for key in keys]
    assert client.get(names[2:], host, slots(2, 3)) == 2
    assert client.get(names[:2], host, slots(0, 1)) == 0
    assert client.stats()["bad_pages"] == 1


@pytest.mark.parametrize("at", [0, PAGE_BYTES // 2 - 1, PAGE_BYTES // 2, PAGE_BYTES - 1])
def test_a_flipped_bit_is_seen_and_the_page_written_again(tmp_path, at):
    client, host, names = local(tmp_path, PAGE_BYTES), FakeHost(2, pieces=2), names_of(range(1))
    assert put(client, range(1)) == 1
    with open(tmp_path / "pages.bin", "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ 1
        file.seek(at)
        file.write(bytes([byte]))
    assert client.get(names, host, slots(0)) == 0
    assert client.exists(names) == 0
    assert put(client, range(1)) == 1
    assert client.get(names, host, slots(0)) == 1
    assert wrong(host, names, slots(0)) == []


def test_another_models_page_is_no_page(tmp_path, server):
    """Upstream's keys do not name the model; the seal does."""
    host, names = FakeHost(2, pieces=2), names_of(range(2))
    mine, other = (open_client(StorageIdentity(model, 7, 8), settings(tmp_path, server)) for model in ("a", "b"))
    mine.clear()
    assert put(mine, range(2)) == 2
    assert other.exists(names) == 2
    assert other.get(names, host, slots(0, 1)) == 0
    mine.close()
    other.close()


class Moving(LocalMetadata):
    """Gives every page away once it has been looked up."""

    def find(self, keys):
        found = super().find(keys)
        self.delete(keys)
        self.confirm([(key, Place(page)) for key, (_, page) in zip(keys, self.reserve(keys), strict=True)], [])
        return found


def test_what_was_written_without_a_seal_must_be_where_it_was(tmp_path):
    """As SGLang writes: nobody knows its bytes, so its page must be its own after it was read as well."""
    host, names = FakeHost(8, pieces=2), names_of(range(2))
    for table, good in ((LocalMetadata(), 2), (Moving(), 0)):
        client = local(tmp_path, metadata=table, sealer=Trust())
        assert put(client, range(2)) == 2
        assert client.get(names, host, slots(0, 1)) == good


def test_the_file_is_never_full(tmp_path):
    client = local(tmp_path, 10 * PAGE_BYTES)
    for first in range(0, 50, 5):
        assert put(client, range(first, first + 5)) == 5
    assert [n for n in range(50) if client.exists([name_of(n)])] == list(range(40, 50))


def test_pages_of_another_size_are_refused(tmp_path):
    client = local(tmp_path)
    assert put(client, range(2)) == 2
    with pytest.raises(StoreFailed, match="objects of 384 bytes, not of 32"):
        client.get(names_of(range(2)), FakeHost(2, 2, 64), slots(0, 1))


@pytest.mark.parametrize(("number", "raises"), [(5, True), (28, False)], ids=["io", "no room"])
def test_a_disk_that_fails(tmp_path, monkeypatch, number, raises):
    """No page is lost: those that were reserved for nothing are free again."""
    client = local(tmp_path, 4 * PAGE_BYTES)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    for _ in range(3):
        monkeypatch.setattr(os, "pwritev", fail)
        if raises:
            with pytest.raises(StoreFailed, match="Input/output"):
                put(client, range(4))
        else:
            assert put(client, range(4)) == 0
            assert client.stats()["refused_pages"] >= 4
        monkeypatch.undo()
    assert put(client, range(4)) == client.exists(names_of(range(4))) == 4


# The server


def test_a_server_that_has_forgotten_is_told_again(tmp_path):
    log, port = tmp_path / "log", free_port()
    client = open_client(WHO, settings(tmp_path, f"http://127.0.0.1:{port}"))
    with running(command(port), log, says(log, "listens on")):
        assert put(client, range(3)) == 3
    with running(command(port), log, says(log, "listens on")):
        assert client.exists(names_of(range(3))) == 0
        assert put(client, range(3)) == client.exists(names_of(range(3))) == 3
    client.close()


def test_a_server_may_keep_its_tables(tmp_path):
    log, port, state = tmp_path / "log", free_port(), tmp_path / "tables.json"
    client, host, names = (
        open_client(WHO, settings(tmp_path, f"http://127.0.0.1:{port}")),
        FakeHost(3),
        names_of(range(3)),
    )
    keeps = command(port, "--persistence-path", str(state))
    with running(keeps, log, says(log, "listens on")) as server:
        assert put(client, range(3)) == 3
        server.send_signal(signal.SIGTERM)
        server.wait(20)
    assert json.loads(state.read_text())["1:kv"]["num_pages"] == FILE_BYTES // (PAGE_BYTES // 2)
    with running(keeps, log, says(log, "listens on")):
        assert client.get(names, host, slots(0, 1, 2)) == 3
        assert wrong(host, names, slots(0, 1, 2)) == []
    client.close()


def test_without_a_server_calls_fail_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("hicache_ref.data.storage.threefs.metadata.BACKOFF_S", 0.001)
    client = open_client(WHO, settings(tmp_path, f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(StoreFailed, match=r"metadata server at .* refused"):
        client.exists(names_of(range(2)))


# usrbio


@pytest.fixture
def fake_usrbio(monkeypatch):
    """`hf3fs_fuse.io` as a plain file would have it: what upstream's client calls, and in that order."""

    class Ring:
        def __init__(self, mount: str, entries: int, *, for_read: bool, timeout: int, numa: int) -> None:
            self.entries, self.for_read, self.waiting = entries, for_read, []

        def prepare(self, memory: memoryview, reads: bool, file: int, offset: int) -> None:
            assert reads == self.for_read
            assert len(self.waiting) < self.entries
            self.waiting.append((memory, file, offset))

        def submit(self) -> Ring:
            return self

        def wait(self, *, min_results: int, timeout: object) -> list[SimpleNamespace]:
            move = os.preadv if self.for_read else os.pwritev
            done = [SimpleNamespace(result=move(file, [memory], offset)) for memory, file, offset in self.waiting]
            self.waiting = []
            assert len(done) == min_results
            return done

    files: list[int] = []
    io = ModuleType("hf3fs_fuse.io")
    io.register_fd, io.deregister_fd = files.append, files.remove
    io.extract_mount_point = os.path.dirname
    io.make_ioring, io.make_iovec = Ring, lambda memory, mount: memory.buf
    monkeypatch.setitem(sys.modules, "hf3fs_fuse", ModuleType("hf3fs_fuse"))
    monkeypatch.setitem(sys.modules, "hf3fs_fuse.io", io)
    return files


def test_usrbio_moves_pages(tmp_path, fake_usrbio):
    client = open_client(WHO, settings(tmp_path, "", mock=False))
    host, names = FakeHost(40, pieces=4), names_of(range(20))
    fill(host, names, np.arange(20))
    assert client.put(names, host, np.arange(20)) == 20
    assert client.get(names, host, np.arange(20, 40)) == 20
    assert wrong(host, names, np.arange(20, 40)) == []
    assert len(fake_usrbio) == 3
    client.close()
    assert fake_usrbio == []


# Settings


def test_settings_come_from_a_file(tmp_path):
    path = tmp_path / "hf3fs.json"
    path.write_text(
        json.dumps({"file_path_prefix": str(tmp_path / "p"), "file_size": 7680, "numjobs": 2, "entries": 3})
    )
    environ = {"SGLANG_HICACHE_HF3FS_CONFIG_PATH": str(path)}
    client = make_client("hf3fs", WHO, {"use_mock_hf3fs_client": True}, environ)
    assert put(client, range(10)) == 10
    assert (tmp_path / "p.1.bin").stat().st_size == 7680
    client.close()
    path.write_text("{}")
    with pytest.raises(StorageError, match="lacks file_path_prefix, file_size, numjobs, entries"):
        make_client("hf3fs", WHO, {}, environ)


@pytest.mark.parametrize(
    ("identity", "extra", "match"),
    [
        (WHO, {}, "use_mock_hf3fs_client"),
        (WHO, {"colour": "red"}, "knows no colour"),
        (WHO, {"use_mock_hf3fs_client": True, "metadata_server_url": "host"}, "must look like http://host:port"),
        (replace(WHO, tag="a/b"), {"use_mock_hf3fs_client": True}, "names a folder"),
        (replace(WHO, replicated=True, tp_rank=0), {"use_mock_hf3fs_client": True}, "need a metadata server"),
    ],
)
def test_settings_that_cannot_be(identity, extra, match):
    with pytest.raises(StorageError, match=match):
        make_client("hf3fs", identity, extra, {})


def test_ranks_have_numbers_of_their_own():
    ranks = [StorageIdentity("m", tp, 2, pp, 2) for pp in range(2) for tp in range(2)]
    assert [rank_number(rank) for rank in ranks] == [0, 1, 2, 3]
    assert {rank_number(StorageIdentity("m", tp, 2, replicated=True)) for tp in range(2)} == {0}
