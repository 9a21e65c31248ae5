"""NIXL: the contract on real files and on a real bucket, upstream's names, plugins, the watermark."""

from __future__ import annotations

import os
import shutil
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nixl_cu12", reason="NIXL is not installed: pip install 'hicache[nixl]'")

from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed
from hicache_ref.data.storage.nixl import Agent, Bucket, Folders, NixlClient, Object, endings, read_plugin
from hicache_ref.data.storage.options import Options
from hicache_ref.data.storage.registry import make_client
from hicache_ref.data.storage.seal import SEAL_BYTES, Digests, Sealer
from hicache_ref.data.storage.watermark import Watermark

from .contract import WHO, StorageContract, slots
from .fakes import PAGE_BYTES, FakeHost, content, fill, name_of, names_of, wrong
from .servers import free_port, listens, running

FOLDER = "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"
FLAT = replace(WHO, layout="layer_first")


@pytest.fixture(scope="module")
def posix() -> Agent:
    return Agent("POSIX", {}, {})


def files(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.glob("??/*")}


class TestFiles(StorageContract):
    """Two objects a page, in two folders."""

    many = 2_000
    layout = "page_first"
    sealer: Sealer | None = None

    @pytest.fixture(autouse=True)
    def _agent(self, posix):
        self.agent = posix

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        space = Folders(self.agent, [str(tmp_path / "a"), str(tmp_path / "b")], True, self.sealer)
        return lambda identity: NixlClient(replace(identity, layout=self.layout), self.agent, space)

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        objects = endings(replace(identity, layout=self.layout))
        key = name + objects[-1]
        path = (files(tmp_path / "a") | files(tmp_path / "b"))[key]
        os.truncate(path, max(size_bytes - PAGE_BYTES + PAGE_BYTES // len(objects), 0))
        return True


class TestFlatFiles(TestFiles):
    """One object a page, for layouts that cut it otherwise."""

    layout = "layer_first"
    many = 1_000


class TestSealedFiles(TestFiles):
    """Verified by a seal behind each object."""

    many = 500
    sealer = Digests()

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        key = name + endings(replace(identity, layout=self.layout))[-1]
        path = (files(tmp_path / "a") | files(tmp_path / "b"))[key]
        data = bytearray(path.read_bytes())
        data[9] ^= 1
        path.write_bytes(data)
        return True


def test_files_with_and_without_seals_are_read_by_all(posix, tmp_path):
    names, host = names_of(range(4)), FakeHost(8, pieces=2)
    plain, sealed = (
        NixlClient(WHO, posix, Folders(posix, [str(tmp_path)], False, sealer)) for sealer in (None, Digests())
    )
    fill(host, names, slots(0, 1, 2, 3))
    assert plain.put(names[:2], host, slots(0, 1)) == sealed.put(names[2:], host, slots(2, 3)) == 2
    assert {path.stat().st_size for path in files(tmp_path).values()} == {PAGE_BYTES // 2, PAGE_BYTES // 2 + SEAL_BYTES}
    for client in (plain, sealed):
        host.memory[:] = 0
        assert client.get(names, host, slots(4, 5, 6, 7)) == 4
        assert wrong(host, names, slots(4, 5, 6, 7)) == []
        assert client.put(names, host, slots(4, 5, 6, 7)) == 4
        assert client.stats()["present_pages"] == 4


def test_a_client_from_settings_works(tmp_path):
    environ = {FOLDER: f"{tmp_path / 'a'},{tmp_path / 'b'}", "SGLANG_HICACHE_NIXL_USE_DIRECT_IO": "0"}
    client = make_client(
        "nixl", WHO, {"plugin": {"posix": {"active": True}}, "l3_cleaner_enabled": False, "verify": True}, environ
    )
    assert put(client, range(20)) == 20
    assert files(tmp_path / "a") and files(tmp_path / "b")
    assert len(files(tmp_path / "a") | files(tmp_path / "b")) == 40
    client.close()


# Files


def put(client: StorageClient, numbers: range) -> int:
    names, host = names_of(numbers), FakeHost(len(numbers), pieces=2)
    fill(host, names, np.arange(len(names)))
    return client.put(names, host, np.arange(len(names)))


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (StorageIdentity("a/b", 1, 4), ["_a-b_1_4_k", "_a-b_1_4_v"]),
        (StorageIdentity("a/b", 1, 4, layout="page_first_direct"), ["_a-b_1_4_k", "_a-b_1_4_v"]),
        (StorageIdentity("a/b", 1, 4, layout="page_head"), ["_a-b_1_4"]),
        (StorageIdentity("a/b", 1, 4, replicated=True), ["_a-b_k"]),
        (StorageIdentity("a/b", 1, 4, 1, 2), ["_a-b_1_4_2_1_k", "_a-b_1_4_2_1_v"]),
        (StorageIdentity(), ["__0_1_k", "__0_1_v"]),
    ],
)
def test_names(identity, expected):
    assert endings(identity) == expected


def test_a_page_is_its_keys_and_its_values(posix, tmp_path):
    assert put(NixlClient(WHO, posix, Folders(posix, [str(tmp_path)], direct=False)), range(1)) == 1
    found = files(tmp_path)
    key = f"{name_of(0)}_org-model_1_4"
    assert sorted(found) == [f"{key}_k", f"{key}_v"]
    assert b"".join(found[f"{key}_{part}"].read_bytes() for part in "kv") == content(name_of(0))


def test_aligned_pages_go_around_the_page_cache(posix, tmp_path, monkeypatch):
    flags, real_open = [], os.open
    monkeypatch.setattr(os, "open", lambda path, how, *rest: flags.append(how) or real_open(path, how, *rest))
    memory = np.zeros(4 * 8192 + 4096, np.uint8)
    host = FakeHost(2, pieces=2, page_bytes=8192)
    start = -memory.ctypes.data % 4096
    host.memory = memory[start : start + 2 * 8192].reshape(2, 2, 4096)
    client, names = NixlClient(WHO, posix, Folders(posix, [str(tmp_path)], direct=True)), names_of(range(2))
    fill(host, names, slots(0, 1))
    assert client.put(names, host, slots(0, 1)) == 2
    host.memory[:] = 0
    assert client.get(names, host, slots(1, 0)) == 2
    assert wrong(host, names, slots(1, 0)) == []
    assert flags and all(how & os.O_DIRECT for how in flags)


def test_a_disk_that_fails_raises_and_leaves_nothing_unfinished(posix, tmp_path, monkeypatch):
    client = NixlClient(WHO, posix, Folders(posix, [str(tmp_path)], direct=False))
    assert put(client, range(2)) == 2

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreFailed, match="Input/output") as failure:
        put(client, range(4))
    assert failure.value.pages_ok == 2
    assert len(files(tmp_path)) == 4


def test_a_full_disk_refuses(posix, tmp_path, monkeypatch):
    client, real = NixlClient(WHO, posix, Folders(posix, [str(tmp_path)], direct=False)), os.statvfs(tmp_path)
    full = os.statvfs_result([*list(real)[:4], 0, *list(real)[5:]])
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert put(client, range(3)) == 0
    assert client.stats()["refused_pages"] == 3
    monkeypatch.undo()
    assert put(client, range(3)) == 3


def test_a_transfer_that_fails_raises(posix, tmp_path, monkeypatch):
    """The file is shorter than it says: what a disk that loses blocks would look like."""
    client, host = NixlClient(WHO, posix, Folders(posix, [str(tmp_path)], direct=False)), FakeHost(2, pieces=2)
    put(client, range(2))
    monkeypatch.setattr(os, "lseek", lambda file, at, whence: PAGE_BYTES // 2)
    for path in files(tmp_path).values():
        os.truncate(path, 10)
    with pytest.raises(StoreFailed, match="POSIX"):
        client.get(names_of(range(2)), host, slots(0, 1))


# A bucket

KEYS = {"access_key": "who", "secret_key": "what", "region": "us-east-1"}


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """A server that speaks like S3, and makes a new bucket when asked."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[server]'")
    program = shutil.which("moto_server", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("moto_server is not installed: pip install 'moto[server]'")
    port = free_port()
    command = [program, "--host", "127.0.0.1", "--port", str(port)]
    with running(command, tmp_path_factory.mktemp("s3") / "server.log", listens(port)):
        yield f"127.0.0.1:{port}"


@pytest.fixture
def bucket(s3: str, tmp_path: Path) -> dict[str, str]:
    """The settings for a bucket that has just been made."""
    name = f"pages-{free_port()}"
    urllib.request.urlopen(urllib.request.Request(f"http://{s3}/{name}", method="PUT"), timeout=5).close()
    return KEYS | {
        "bucket": name,
        "endpoint_override": s3,
        "scheme": "http",
        "use_virtual_addressing": "false",
        "num_threads": "4",
    }


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_a_bucket_keeps_pages(bucket, layout):
    agent = Agent("OBJ", bucket, {})
    client = NixlClient(replace(WHO, layout=layout), agent, Bucket(agent))
    host, names = FakeHost(16, pieces=4), names_of(range(6))
    assert client.exists(names) == 0
    assert client.get(names, host, slots(*range(6))) == 0
    for part in (slice(0, 3), slice(4, 6)):
        fill(host, names[part], np.arange(6)[part])
        assert client.put(names[part], host, np.arange(6)[part]) == len(names[part])
    assert client.exists(names) == 3
    host.memory[:] = 0
    assert client.get(names, host, slots(*range(8, 14))) == 3
    assert wrong(host, names[:3], slots(8, 9, 10)) == []
    fill(host, names, np.arange(6))
    assert client.put(names, host, slots(*range(6))) == 6
    assert client.stats()["present_pages"] == 5
    assert client.get(names, host, slots(*range(8, 14))) == 6
    assert wrong(host, names, slots(*range(8, 14))) == []
    with pytest.raises(StoreFailed, match="empty the bucket"):
        client.clear()


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
@pytest.mark.parametrize("size", [1, PAGE_BYTES // 2 - 1])
def test_an_object_that_is_too_short_is_no_page(bucket, layout, size):
    """The library says that all is well: a short answer is a success to it."""
    agent = Agent("OBJ", bucket, {})
    space, who = Bucket(agent), replace(WHO, layout=layout)
    client, host, names = NixlClient(who, agent, space), FakeHost(4, pieces=4), names_of(range(2))
    fill(host, names, slots(0, 1))
    assert client.put(names[:1], host, slots(0)) == 1
    short = [Object(names[1] + ending, [(host.memory.ctypes.data, size)], size) for ending in endings(who)]
    assert space.write(short)
    assert client.exists(names) == 2
    assert client.get(names, host, slots(2, 3)) == 1
    assert wrong(host, names[:1], slots(2)) == []
    assert client.stats()["bad_pages"] == 1


# Plugins


def plugin(extra: dict[str, object], environ: dict[str, str] | None = None) -> tuple[str, dict[str, str]]:
    options = Options("nixl", extra, environ or {})
    found = read_plugin(options)
    options.end()
    return found


def test_a_plugin_is_named_in_the_extra_config_or_by_a_variable():
    both = {"plugin": {"gds": {"batch_limit": 4}, "posix": {"use_uring": "true", "active": True}}}
    assert plugin(both, {"SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "OBJ"}) == ("POSIX", {"use_uring": "true"})
    assert plugin({"bucket": "b"}, {"SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "OBJ"}) == ("OBJ", {"bucket": "b"})
    assert plugin({}) == ("AUTO", {})


def test_the_first_plugin_that_is_there_is_taken():
    assert Agent("AUTO", {}, {}).plugin == "POSIX"


@pytest.mark.parametrize(
    ("extra", "environ", "match"),
    [
        ({"plugin": {"posix": {}}}, {}, "no plugin is active"),
        ({"plugin": {"posix": {"active": True, "colour": 1}}}, {}, "without colour: posix knows use_aio"),
        ({"plugin": {"tape": {"active": True}}}, {}, "with keys of 3fs, posix"),
        ({"plugin": "posix"}, {}, "an object such as"),
        ({"colour": "red"}, {}, "knows no colour"),
        ({}, {"SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "TAPE"}, "no plugin TAPE here; there are .*POSIX"),
        ({}, {"SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "OBJ"}, "no bucket; set bucket"),
        ({}, {FOLDER: "/tmp/x,/tmp/../tmp/x"}, "a folder twice"),
        ({"l3_cleaner_low_watermark": 90}, {FOLDER: "/tmp/hicache_storage_test"}, "must lie below"),
    ],
)
def test_settings_that_cannot_be(extra, environ, match):
    with pytest.raises(StorageError, match=match):
        make_client("nixl", StorageIdentity("m"), extra, environ)


# The watermark


def test_the_oldest_pages_go_whole(tmp_path):
    """Ranks and components of a page in one group, as old as its youngest file."""
    disk = [f"{number:02x}{'0' * 62}" for number in range(120)]
    (tmp_path / "ab").mkdir()
    for number, name in enumerate(disk):
        for ending in ("_m_0_2_k", "_m_0_2_v", "_m_1_2_k"):
            path = tmp_path / "ab" / (name + ending)
            path.write_bytes(b"page")
            age = number if ending != "_m_1_2_k" or number else 1000  # the first was used once more
            os.utime(path, (age, age))
    (tmp_path / "ab" / ".x.tmp").write_bytes(b"being written")
    (tmp_path / "notes").write_bytes(b"mine")

    def used(_: str) -> float:
        return 100.0 * len(files(tmp_path)) / 361

    assert Watermark([str(tmp_path)], 100.5, 70, used).look() == 0
    assert Watermark([str(tmp_path)], 80, 65, used).look() == 150
    left = {name[:64] for name in files(tmp_path)} - {".x.tmp"}
    assert left == {disk[0], *disk[51:]}
    assert (tmp_path / "notes").exists()


def test_a_client_keeps_its_folders_from_filling(posix, tmp_path):
    looked = []
    client = NixlClient(WHO, posix, Folders(posix, [str(tmp_path)], direct=False))
    cleaner = Watermark([str(tmp_path)], 80, 70, lambda folder: looked.append(folder) or 0.0)
    cleaner.every_s = 0.01
    client.clean(cleaner)
    until = 500
    while not looked and until:
        cleaner.stopped.wait(0.01)
        until -= 1
    assert looked
    client.close()
    assert cleaner.stopped.is_set()
