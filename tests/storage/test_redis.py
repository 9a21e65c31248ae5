"""The Redis store against a real server: the contract by TCP and Unix socket, memory that is full, servers that go."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xxhash")

from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed
from hicache_ref.data.storage.naming import prefix
from hicache_ref.data.storage.registry import make_client
from hicache_ref.data.storage.resp import Address, Connection, address, command
from hicache_ref.data.storage.seal import SEAL_BYTES

from .contract import WHO, StorageContract, slots
from .fakes import FakeHost, fill, name_of, names_of, wrong
from .redis_server import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer("--maxmemory", "200mb", "--maxmemory-policy", "allkeys-lru") as running:
        yield running


def talk(url: str, *words: bytes) -> object:
    """What a server answers."""
    connection = Connection(address(url), time.monotonic() + 10)
    connection.send([command(*words)])
    try:
        return connection.reply_or_raise()
    finally:
        connection.close()


def key(identity: StorageIdentity, name: str) -> bytes:
    return f"hicache:{prefix(identity)}{name}".encode()


class OnServer:
    where = "url"

    @pytest.fixture(autouse=True)
    def _empty(self, server: RedisServer) -> None:
        self.address = getattr(server, self.where)
        talk(self.address, b"FLUSHALL")

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: make_client("redis", identity, {"url": self.address}, {})

    def change(self, identity: StorageIdentity, name: str, how: Callable[[bytes], bytes]) -> None:
        value = talk(self.address, b"GET", key(identity, name))
        assert isinstance(value, bytes)
        talk(self.address, b"SET", key(identity, name), how(value))

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        self.change(identity, name, lambda value: value[: size_bytes + SEAL_BYTES].ljust(size_bytes + SEAL_BYTES))
        return True

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        self.change(identity, name, lambda value: bytes((value[0] ^ 1, *value[1:])))
        return True


class TestRedis(OnServer, StorageContract):
    pass


class TestRedisByUnixSocket(OnServer, StorageContract):
    where = "unix"
    many = 500


def put(client: StorageClient, numbers: range, host: FakeHost) -> int:
    names, at = names_of(numbers), np.arange(len(numbers))
    fill(host, names, at)
    return client.put(names, host, at)


@pytest.fixture
def open(server: RedisServer) -> Iterator[Callable[..., StorageClient]]:
    talk(server.url, b"FLUSHALL")
    made: list[StorageClient] = []

    def one(url: str = server.unix, **extra: object) -> StorageClient:
        made.append(make_client("redis", WHO, {"url": url} | extra, {}))
        return made[-1]

    yield one
    for client in made:
        client.close()


@pytest.mark.parametrize("pieces", [1, 4, 1500])
def test_large_pages_in_many_pieces(open, server, pieces):
    """More than the wire takes at once, in more pieces than a system call does."""
    host, names, at = FakeHost(16, pieces, 1500 * 1024), names_of(range(8)), np.arange(8)
    fill(host, names, at)
    for client in (open(), open(server.url)):
        assert client.put(names, host, at) == 8
        assert client.get(names, host, at + 8) == 8
        assert wrong(host, names, at + 8) == []
        host.memory[:, 8:] = 0


def test_pages_behind_a_hole_are_left_on_the_way(open, server):
    """After a hole the connection still speaks in order."""
    host, client = FakeHost(64, page_bytes=30_000), open()
    put(client, range(60), host)
    talk(server.unix, b"DEL", key(WHO, name_of(7)))
    assert client.get(names_of(range(60)), host, np.arange(60)) == 7
    assert client.exists(names_of(range(60))) == 7
    assert client.get(names_of(range(8, 60)), host, np.arange(52)) == 52
    assert wrong(host, names_of(range(8, 60)), np.arange(52)) == []
    assert len(client._connections._idle) == 1


def test_a_server_without_room_refuses(open):
    with RedisServer("--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as small:
        host, client = FakeHost(128, page_bytes=30_000), open(small.url)
        stored = put(client, range(120), host)
        assert 0 < stored < 120
        assert client.stats()["refused_pages"] == 120 - client.stats()["written_pages"] > 0
        assert client.get(names_of(range(stored)), host, np.arange(stored)) == stored
        assert put(client, range(stored), host) == stored


def test_a_server_that_evicts_keeps_the_newest(open):
    with RedisServer("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru") as small:
        host, client = FakeHost(16, page_bytes=30_000), open(small.url)
        for first in range(0, 320, 16):
            assert put(client, range(first, first + 16), host) == 16
        assert client.exists(names_of(range(312, 320))) == 8
        assert client.exists(names_of(range(8))) < 8


def test_a_server_that_dies_and_comes_back(open):
    with RedisServer() as mortal:
        host, client = FakeHost(16), open(mortal.url)
        assert put(client, range(8), host) == 8
        mortal.kill()
        for call in (lambda: client.exists(names_of([1])), lambda: put(client, range(8, 16), host)):
            with pytest.raises(StoreFailed, match=r"Redis at 127.0.0.1:\d+: .*"):
                call()
        mortal.start()
        assert client.exists(names_of(range(8))) == 0
        assert put(client, range(8), host) == 8


def test_a_connection_that_has_gone_stale_is_replaced(open):
    """A server that restarts between two calls is not noticed at all."""
    with RedisServer() as mortal:
        client, host = open(mortal.url), FakeHost(16)
        assert put(client, range(8), host) == 8
        mortal.kill()
        mortal.start()
        assert put(client, range(8), host) == 8


def test_a_server_that_says_nothing_is_waited_for_so_long(open):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = open(f"redis://127.0.0.1:{mute.getsockname()[1]}", timeout=0.2)
        began_s = time.monotonic()
        with pytest.raises(StoreFailed, match="timed out"):
            client.exists(names_of(range(3)))
        assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"x" * 10_000, b"$99\r\n", b""])
def test_what_is_not_redis(open, answer):
    """Whatever answers, a call ends and says that it failed."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            caller, _ = other.accept()
            with caller, suppress(OSError):
                caller.recv(1000)
                caller.sendall(answer)
                caller.shutdown(socket.SHUT_WR)
                while caller.recv(1000):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        client = open(f"redis://127.0.0.1:{other.getsockname()[1]}", timeout=5)
        with pytest.raises(StoreFailed):
            client.get(names_of(range(3)), FakeHost(4), slots(0, 1, 2))
        thread.join()


def test_passwords_and_databases(open):
    with RedisServer("--requirepass", "a b:c") as guarded:
        host, where = FakeHost(8), f"127.0.0.1:{guarded.port}"
        with pytest.raises(StoreFailed, match="NOAUTH"):
            put(open(f"redis://{where}"), range(2), host)
        with pytest.raises(StoreFailed, match="WRONGPASS"):
            put(open(f"redis://:no@{where}"), range(2), host)
        third = f"redis://default:a%20b%3Ac@{where}/3"
        assert put(open(third), range(2), host) == 2
        assert open(f"redis://:a%20b%3Ac@{where}").exists(names_of(range(2))) == 0
        assert open(third).exists(names_of(range(2))) == 2


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://cache", Address("cache")),
        ("redis://cache:7000/2", Address("cache", 7000, database=2)),
        ("redis://:pw@cache", Address("cache", password="pw")),
        ("unix:///run/redis.sock?db=4", Address(path="/run/redis.sock", database=4)),
        ("unix://me:pw@/run/redis.sock", Address(path="/run/redis.sock", user="me", password="pw")),
    ],
)
def test_addresses(url, where):
    assert address(url) == where


@pytest.mark.parametrize("url", ["rediss://cache", "cache:6379", "redis://", "redis://cache/x", "redis://cache:port"])
def test_addresses_that_are_none(url):
    with pytest.raises(StorageError, match=r"url of backend 'redis' must be redis://\[user"):
        make_client("redis", WHO, {"url": url}, {})


def test_the_address_may_come_from_the_environment(server):
    with closing(make_client("redis", WHO, {}, {"REDIS_URL": server.unix})) as client:
        assert client.exists(names_of([1])) == 0
    client = make_client("redis", WHO, {"url": "unix:///nowhere"}, {"REDIS_URL": server.unix})
    with pytest.raises(StoreFailed, match="Redis at /nowhere: "):
        client.exists(names_of([1]))
