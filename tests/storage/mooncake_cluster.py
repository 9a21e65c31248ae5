"""A Mooncake cluster on loopback: a master, and a process that lends its memory.

Rules of this file
- The memory belongs to another process, so that transfers really go through the transport: TCP, registered buffers.
- One connection serves all clients of a test session: to make one, and to end it, takes a second each.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hicache_ref.data.storage.client import StorageError, StorageIdentity
from hicache_ref.data.storage.mooncake import Connection, connect, read_settings
from hicache_ref.data.storage.options import Options

from .servers import free_port, listens, running, says

SEGMENT_BYTES = 256 << 20
OWNER = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
if store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1]) == 0:
    print("lends its memory", flush=True)
    time.sleep(1 << 20)
"""


class Cluster(NamedTuple):
    master: str
    """Its address."""
    connection: Connection
    """For all."""


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A master and an owner of memory. Skips the test where Mooncake cannot run."""
    pytest.importorskip("mooncake", reason="mooncake is not installed: pip install 'hicache[mooncake]'")
    program = shutil.which("mooncake_master", path=str(Path(sys.executable).parent)) or "mooncake_master"
    port, metrics = free_port(), free_port()
    master = f"127.0.0.1:{port}"
    command = [program, "--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_host=127.0.0.1", "--logtostderr"]
    command += [f"--metrics_port={metrics}", "--default_kv_lease_ttl=500"]
    owner = [sys.executable, "-c", OWNER, master, str(SEGMENT_BYTES)]
    with (
        running(command, folder / "master.log", listens(port)),
        running(owner, folder / "owner.log", says(folder / "owner.log", "lends its memory")),
    ):
        found = _connection(master)
        try:
            yield Cluster(master, found)
        finally:
            found.close()


def extra_config(master: str) -> dict[str, Any]:
    """A client that lends nothing."""
    return {
        "master_server_address": master,
        "protocol": "tcp",
        "local_hostname": "127.0.0.1",
        "global_segment_size": 0,
    }


def _connection(master: str) -> Connection:
    settings = read_settings(StorageIdentity(), Options("mooncake", extra_config(master), {}))
    try:
        return connect(settings)
    except StorageError as error:
        if "apt-get" not in str(error):
            raise
        pytest.skip(str(error))
