"""Servers in trouble: Redis and Mooncake as processes that are killed, frozen, filled, and started again.

Rules of this file
- Killed is SIGKILL, frozen is SIGSTOP: nobody says goodbye.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity
from hicache_ref.data.storage.mooncake_seals import SEAL
from hicache_ref.data.storage.registry import make_client
from hicache_ref.data.storage.resp import Connection, Reply, address, command
from tests.storage.mooncake_cluster import OWNER, extra_config
from tests.storage.redis_server import RedisServer
from tests.storage.servers import free_port, listens, running, says

from .disks import Change
from .story import Trouble

# Redis


class Redis:
    """A server and its client. timeout_s: the client's own."""

    def __init__(self, server: RedisServer, timeout_s: float) -> None:
        self.server = server
        self._timeout_s = timeout_s

    def client(self, identity: StorageIdentity) -> StorageClient:
        return make_client("redis", identity, {"url": self.server.url, "timeout": self._timeout_s}, {})

    def tell(self, *words: bytes) -> Reply:
        connection = Connection(address(self.server.url), time.monotonic() + 10)
        try:
            connection.send([command(*words)])
            return connection.reply_or_raise()
        finally:
            connection.close()

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.kill()

    def freeze(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)

    def limit(self, size_bytes: int) -> None:
        self.tell(b"CONFIG", b"SET", b"maxmemory", b"%d" % size_bytes)

    def change(self, change: Change) -> None:
        keys = self.tell(b"KEYS", b"*")
        assert isinstance(keys, list)
        for key in sorted(keys)[::2]:  # type: ignore[type-var]
            value = self.tell(b"GET", key)  # type: ignore[arg-type]
            if isinstance(value, bytes):
                self.tell(b"SET", key, change(value))  # type: ignore[arg-type]


@contextmanager
def redis(
    folder: Path, hurt: Callable[[Redis], None], mend: Callable[[Redis], None], timeout_s: float = 5.0
) -> Iterator[Trouble]:
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        found = Redis(server, timeout_s)
        yield Trouble(found.client, lambda: hurt(found), lambda: mend(found))


# Mooncake


class Mooncake:
    """A master and an owner of memory, each started and killed as often as wanted."""

    def __init__(
        self, folder: Path, client_ttl_s: int = 10, segment_bytes: int = 64 << 20, lease_s: float = 0.5
    ) -> None:
        pytest.importorskip("mooncake", reason="mooncake is not installed: pip install 'hicache[mooncake]'")
        program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent)) or "mooncake_master"
        self._folder, self._port, self._metrics_port = folder, free_port(), free_port()
        self.master = f"127.0.0.1:{self._port}"
        self._master_command = [program, "--rpc_address=127.0.0.1", f"--rpc_port={self._port}", "--logtostderr"]
        self._master_command += ["--metrics_host=127.0.0.1", f"--metrics_port={self._metrics_port}"]
        self._master_command += [f"--default_kv_lease_ttl={1000 * lease_s:.0f}", f"--client_ttl={client_ttl_s}"]
        self._owner_command = [sys.executable, "-c", OWNER, self.master, str(segment_bytes)]
        self._master, self._owner = ExitStack(), ExitStack()
        self._master_pid = 0

    def __enter__(self) -> Mooncake:
        self.start_master()
        self.start_owner()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_owner()
        self.kill_master()

    @property
    def settings(self) -> dict[str, Any]:
        """Of a client, as its extra config has them."""
        return extra_config(self.master) | {"master_metrics_port": self._metrics_port}

    def client(self, identity: StorageIdentity, verify: bool = False) -> StorageClient:
        try:
            return make_client("mooncake", identity, self.settings | {"verify": verify}, {})
        except StorageError as error:
            if "apt-get" not in str(error):
                raise
            pytest.skip(str(error))

    def change(self, change: Change) -> None:
        """Every second object, by another client, which may do that as well: remove it, and put another there."""
        from mooncake.store import MooncakeDistributedStore

        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", self.master) == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/get_all_keys", timeout=5) as answer:
            keys = [key for key in answer.read().decode().split() if not key.endswith(SEAL)]
        for key in sorted(keys)[::2]:
            data = store.get(key)
            if data and store.remove(key, True) == 0:
                store.put(key, change(data))
        store.close()

    def start_master(self) -> None:
        log = self._folder / "master.log"
        self._master_pid = self._master.enter_context(running(self._master_command, log, listens(self._port))).pid

    def start_owner(self) -> None:
        log = self._folder / "owner.log"
        self._owner.enter_context(running(self._owner_command, log, says(log, "lends its memory")))

    def kill_master(self) -> None:
        self._master.close()

    def kill_owner(self) -> None:
        self._owner.close()

    def freeze_master(self) -> None:
        os.kill(self._master_pid, signal.SIGSTOP)

    def thaw_master(self) -> None:
        os.kill(self._master_pid, signal.SIGCONT)


@contextmanager
def mooncake(
    folder: Path,
    hurt: Callable[[Mooncake], None],
    mend: Callable[[Mooncake], None],
    client_ttl_s: int = 10,
    verify: bool = False,
) -> Iterator[Trouble]:
    with Mooncake(folder, client_ttl_s=client_ttl_s) as found:
        yield Trouble(partial(found.client, verify=verify), lambda: hurt(found), lambda: mend(found))


@contextmanager
def filled_mooncake(folder: Path) -> Iterator[Trouble]:
    """Somebody else fills the store, and keeps reading what is his, so that it cannot go."""
    with Mooncake(folder) as found:
        stop = threading.Event()
        crowd = Crowd(found, stop)
        try:
            yield Trouble(found.client, crowd.come, crowd.leave)
        finally:
            crowd.leave()


class Crowd:
    """Another client of a Mooncake cluster, with objects of all sizes and leases on them."""

    def __init__(self, of: Mooncake, stop: threading.Event) -> None:
        self._of, self._stop = of, stop
        self._full = threading.Event()
        self._thread = threading.Thread(target=self._live, name="crowd")

    def come(self) -> None:
        self._thread.start()
        self._full.wait(20.0)

    def leave(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _live(self) -> None:
        from mooncake.store import MooncakeDistributedStore

        store, keys = MooncakeDistributedStore(), list[str]()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", self._of.master) == 0
        try:
            while not self._stop.is_set():
                for size in (1 << 20, 64 << 10, 4 << 10, 1 << 10, 256):
                    while not self._stop.is_set():
                        key = f"crowd{len(keys)}"
                        if store.put(key, bytes(size)):
                            break
                        keys.append(key)
                        if not len(keys) % 64:
                            store.batch_is_exist(keys)
                self._full.set()
                store.batch_is_exist(keys)
                self._stop.wait(0.1)
        finally:
            store.close()
