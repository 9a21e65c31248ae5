"""LMCache's server as L3: the contract, on the real server where it is installed, always on one of the same format."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("xxhash")

from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed
from hicache_ref.data.storage.lmcache import key_parts
from hicache_ref.data.storage.registry import make_client
from hicache_ref.data.storage.seal import SEAL_BYTES

from .contract import REPLICA, WHO, Open, StorageContract, slots
from .fakes import FakeHost, fill, name_of, names_of
from .lmcache_server import INSTALLED, StandIn, real_server


class OnServer(StorageContract):
    url: str
    clears_only_its_own = False

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: make_client("lmcache", identity, {"remote_url": self.url}, {})

    def test_clear_forgets(self, open: Open, host: FakeHost):
        """The server has no word for it."""
        client = open()
        with pytest.raises(StoreFailed, match="cannot remove pages: restart it"):
            client.clear()
        assert client.put(names_of([1]), host, slots(0)) == 1


class TestLMCache(OnServer):
    many = 2000

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with StandIn() as self.server:
            self.url = self.server.url
            yield

    def change(self, identity: StorageIdentity, name: str, how: Callable[[bytes], bytes]) -> bool:
        before, behind = key_parts(identity)
        key = f"{before}{name}{behind}"
        self.server.kept[key] = how(self.server.kept[key])
        return True

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        size = size_bytes + SEAL_BYTES
        return self.change(identity, name, lambda value: value[:size].ljust(size))

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        return self.change(identity, name, lambda value: bytes((value[0] ^ 1, *value[1:])))

    def test_a_page_of_another_length_is_written_again(self, open: Open, host: FakeHost, tmp_path: Path):
        """As soon as somebody has read it: the server tells no lengths."""
        client, names, at = open(), names_of(range(3)), slots(0, 1, 2)
        fill(host, names, at)
        assert client.put(names, host, at) == 3
        self.resize(tmp_path, WHO, names[1], 5)
        assert client.get(names, host, at) == 1
        assert client.exists(names) == 1
        assert client.put(names, host, at) == 3
        assert client.get(names, host, at) == 3


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_server(tmp_path_factory.mktemp("lmcache")) as url:
        yield url


@pytest.mark.skipif(not INSTALLED, reason="lmcache is not installed: see tests/storage/lmcache_server.py")
class TestRealLMCache(OnServer):
    many = 500

    @pytest.fixture(autouse=True)
    def _running(self, real: str) -> None:
        self.url = real

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        # One server for all tests, which keeps everything: each has a namespace of its own.
        space = f"{abs(hash(str(tmp_path))):x}"[:10]
        return lambda who: make_client(
            "lmcache", who, {"remote_url": self.url, "extra_backend_tag": space + who.tag[:1]}, {}
        )


@pytest.mark.skipif(not INSTALLED, reason="lmcache is not installed: see tests/storage/lmcache_server.py")
@pytest.mark.parametrize("who", [WHO, REPLICA])
def test_the_words_are_lmcaches(who):
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.protocol import ClientCommand, ClientMetaMessage

    client = make_client("lmcache", who)
    size, rank = (1, 0) if who.replicated else (who.tp_size, who.tp_rank)
    key = CacheEngineKey(who.model_name, size, rank, int(name_of(1), 16), torch.uint8)
    shape = torch.Size([99, 0, 0, 0])
    theirs = ClientMetaMessage(ClientCommand.PUT, key, 99, MemoryFormat.BINARY, torch.uint8, shape).serialize()
    assert client._head(1, name_of(1), 99) == theirs


def test_what_is_no_lmcache_server():
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            caller, _ = other.accept()
            with caller:
                caller.recv(1 << 20)
                caller.sendall(b"HTTP/1.1 400 Bad Request, and much more of it")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"lm://127.0.0.1:{other.getsockname()[1]}"
        client = make_client("lmcache", WHO, {"remote_url": url, "timeout": 5})
        with pytest.raises(StoreFailed, match="this is no LMCache server"):
            client.exists(names_of([1]))
        thread.join()
    with pytest.raises(StoreFailed, match=r"LMCache at 127.0.0.1:\d+: .*refused"):
        make_client("lmcache", WHO, {"remote_url": url}).exists(names_of([1]))


@pytest.mark.parametrize("url", ["lm://", "lm://host", "redis://host:1", "host:1"])
def test_addresses_that_are_none(url):
    with pytest.raises(StorageError, match="remote_url of backend 'lmcache' must be lm://host:port"):
        make_client("lmcache", WHO, {"remote_url": url})


def test_names_that_are_too_long():
    with pytest.raises(StorageError, match="takes keys of 150 characters: shorten"):
        make_client("lmcache", StorageIdentity("m" * 80))
