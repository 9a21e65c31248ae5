"""PeerCache from PyPI in tests: nodes on loopback, which keep what they write and a directory among them.

Rules of this file
- Everything it would open to the network, write to the disk or serve as a page is switched off.
- It leaves sockets to the collector, whose complaints would strike some later test. So they are closed here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakSet


def settings(port: int, prefix: str) -> dict[str, object]:
    """The extra config of one node of the cluster at `port`."""
    local = dict.fromkeys(("local_hostname", "meta_bind_host", "rdma_bind_host", "control_bind_host"), "127.0.0.1")
    off = {"disk_enabled": False, "metrics_enabled": False}
    size = {"global_segment_size": "64mb", "heartbeat_interval": 0.02, "member_ttl": 0.5}
    cls = {"backend_name": "peercache", "module_path": "peercache.store", "class_name": "PeerCacheStore"}
    where = {"discovery_addr": f"127.0.0.1:{port}", "protocol": "tcp", "prefix": prefix.replace("/", "-")}
    return cls | local | off | size | where | {"interface_v1": 1}


def settle(stores: list[Any]) -> None:
    """Wait until all nodes know of all others."""
    until_s = time.monotonic() + 10
    while not all(len(store.runtime.ring) == len(stores) for store in stores):
        assert time.monotonic() < until_s, "the nodes do not find each other"
        time.sleep(0.01)


@contextmanager
def tidy() -> Iterator[list[Any]]:
    """Put the nodes' stores into the list; at the end they are closed, and whatever they left open."""
    sockets: WeakSet[socket.socket] = WeakSet()

    class Recorded(socket.socket):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            sockets.add(self)

    stores: list[Any] = []
    with patch.object(socket, "socket", Recorded):
        yield stores
        for store in stores:
            store.close()
            store.runtime.discovery._thread.join(5)
    for left in list(sockets):
        left.close()
