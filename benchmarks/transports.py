"""Mooncake, NIXL, 3FS and AIBrix, measured as `benchmarks.stores` measures: `python -m benchmarks.transports [NAME]`.

Rules of this file
- Raw: the library's own calls for the same objects, as its manual has them, on the same memory.
- Upstream: SGLang's class for the store, out of its wheel, executed as the tests do. NIXL goes through the page cache
  on all sides, since a disk that goes its own pace would hide everything else.
- Mooncake's memory belongs to another process, and is reached by TCP. Connections are kept on all sides: our client
  sets that for the process, upstream's alone would open one for each transfer, at half the speed.

What falls short of raw: NIXL's reads of small pages, since ours find files by a hash of their names, as upstream does,
and look at their lengths (5 us a page of two files); 3FS's of 64 KiB, by 5 us a page for two keys, places and seals.
To ask first what is there is 2 % of a Mooncake write; what else its ratios show is two processes on the same cores.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from hicache_ref.data.pools import HostPool
from hicache_ref.data.storage.registry import make_client

from .aibrix import AIBRIX
from .storage import BATCH, NAMES, PAGES
from .stores import WHO, Ours, Store, digest, folder_each, main

JOBS, ENTRIES = 4, 8
FILE_BYTES = 256 << 20


def _tests(name: str) -> Any:
    """A module of the tests: they know how to start servers and how to execute upstream's classes."""
    return importlib.import_module(f"tests.storage.{name}")


def upstream_is_here() -> bool:
    """Whether SGLang's wheel is here, or could be fetched."""
    return _tests("upstream").find(_tests("upstream_stores").VERSION) is not None


def _buffers(host: HostPool) -> list[tuple[str, int, int]]:
    """Key, address and bytes of each object of a batch."""
    pages = [(name, buffer) for page, name in enumerate(NAMES) for buffer in host.page_buffers(page)]
    return [(f"raw_{name}_{at % 2}", address, size) for at, (name, (address, size)) in enumerate(pages)]


class Upstream:
    """A class of SGLang's, called as SGLang calls it."""

    def __init__(self, host: HostPool, make: Callable[[Any, Any], Any], empty: Callable[[Any], object]) -> None:
        upstream = _tests("upstream_stores")
        self._host = upstream.UpstreamHost(host)
        self._store = make(upstream.stores(), self._host)
        self._tokens, self._empty = self._host.tokens(*PAGES.tolist()), empty

    def put(self) -> None:
        assert all(self._store.batch_set_v1(NAMES, self._tokens))

    def get(self) -> None:
        assert all(self._store.batch_get_v1(NAMES, self._tokens))

    def empty(self) -> None:
        self._empty(self._store)

    def close(self) -> None:
        self._store.close()


# Mooncake


class RawMooncake:
    def __init__(self, host: HostPool, master: str) -> None:
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        assert self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
        assert self.store.register_buffer(host.memory.address, host.memory.size) == 0
        self.keys, self.addresses, self.sizes = (list(column) for column in zip(*_buffers(host), strict=True))

    def put(self) -> None:
        assert not any(self.store.batch_put_from(self.keys, self.addresses, self.sizes))

    def get(self) -> None:
        assert self.store.batch_get_into(self.keys, self.addresses, self.sizes) == self.sizes

    def empty(self) -> None:
        self.store.remove_all(True)

    def close(self) -> None:
        self.store.close()


def _ours_mooncake(host: HostPool, master: str) -> Ours:
    return Ours(host, make_client("mooncake", WHO, _tests("mooncake_cluster").extra_config(master), {}))


def _upstreams_mooncake(host: HostPool, master: str) -> Upstream:
    def make(stores: Any, duck: Any) -> Any:
        module = stores.module("mooncake_store.mooncake_store")
        with stores.in_place():
            store = module.MooncakeStore(stores.config(WHO, _tests("mooncake_cluster").extra_config(master)))
            store.register_mem_pool_host(duck)
        return store

    return Upstream(host, make, lambda store: store.store.remove_all(True))


@contextmanager
def mooncake(folder: str) -> Iterator[Callable[[], str]]:
    with _tests("mooncake_cluster").cluster(Path(folder)) as found:
        yield lambda: str(found.master)


# NIXL


class RawNixl:
    """One transfer a batch: files opened, registered, moved, closed; memory registered once."""

    def __init__(self, host: HostPool, folder: str) -> None:
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent("raw", nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX", {})
        self.agent.register_memory([(host.memory.address, host.memory.size, 0, "")], "DRAM")
        self.folder, self.buffers = folder, _buffers(host)

    def put(self) -> None:
        self._move("WRITE", os.O_RDWR | os.O_CREAT)

    def get(self) -> None:
        self._move("READ", os.O_RDONLY)

    def _move(self, direction: str, flags: int) -> None:
        files = [os.open(f"{self.folder}/{key}", flags, 0o644) for key, _, _ in self.buffers]
        store = [(0, size, file) for file, (_, _, size) in zip(files, self.buffers, strict=True)]
        handle = self.agent.register_memory([(*each, "") for each in store], "FILE")
        memory = self.agent.get_xfer_descs([(address, size, 0) for _, address, size in self.buffers], "DRAM")
        request = self.agent.initialize_xfer(direction, memory, self.agent.get_xfer_descs(store, "FILE"), "raw")
        state = self.agent.transfer(request)
        while state != "DONE":
            state = self.agent.check_xfer_state(request)
        self.agent.release_xfer_handle(request)
        self.agent.deregister_memory(handle)
        for file in files:
            os.close(file)

    def empty(self) -> None:
        for name in os.listdir(self.folder):
            os.remove(f"{self.folder}/{name}")

    def close(self) -> None:
        del self.agent


_NIXL = {"plugin": {"posix": {"active": True}}, "use_direct_io": False, "l3_cleaner_enabled": False}
_NIXL_FOLDER = "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"


def _ours_nixl(host: HostPool, folder: str) -> Ours:
    return Ours(host, make_client("nixl", WHO, _NIXL, {_NIXL_FOLDER: folder}))


def _upstreams_nixl(host: HostPool, folder: str) -> Upstream:
    def make(stores: Any, duck: Any) -> Any:
        with patch.dict(os.environ, {_NIXL_FOLDER: folder}):
            return _tests("test_upstream_nixl").make_store(stores, WHO, duck)

    return Upstream(host, make, lambda store: store.clear())


# 3FS


class RawFile:
    """One file, a system call an object, as many threads as jobs."""

    def __init__(self, host: HostPool, folder: str) -> None:
        self.file = os.open(f"{folder}/raw", os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.file, FILE_BYTES)
        pieces = [piece for page in PAGES.tolist() for piece in host.page_memory(page)]
        objects = [([piece], at * piece.nbytes) for at, piece in enumerate(pieces)]
        self.groups = [objects[at : at + ENTRIES] for at in range(0, len(objects), ENTRIES)]
        self.size = BATCH * host.page_bytes
        self.threads = ThreadPoolExecutor(JOBS)

    def put(self) -> None:
        assert sum(self.threads.map(partial(self._move, os.pwritev), self.groups)) == self.size

    def get(self) -> None:
        assert sum(self.threads.map(partial(self._move, os.preadv), self.groups)) == self.size

    def _move(self, move: Callable[..., int], group: list[tuple[list[memoryview], int]]) -> int:
        return sum(move(self.file, pieces, offset) for pieces, offset in group)

    def empty(self) -> None:
        pass

    def close(self) -> None:
        self.threads.shutdown()
        os.close(self.file)


class RawVerifiedFile(RawFile):
    """The same, and a digest of each object, kept and compared."""

    def __init__(self, host: HostPool, folder: str) -> None:
        super().__init__(host, folder)
        self.digests: dict[int, bytes] = {}

    def empty(self) -> None:
        self.digests.clear()

    def _move(self, move: Callable[..., int], group: list[tuple[list[memoryview], int]]) -> int:
        moved = super()._move(move, group)
        for pieces, offset in group:
            found = digest(pieces)
            assert self.digests.setdefault(offset, found) == found
        return moved


def _ours_hf3fs(host: HostPool, folder: str, **more: Any) -> Ours:
    place = {"file_path_prefix": f"{folder}/pages", "file_size": FILE_BYTES, "numjobs": JOBS, "entries": ENTRIES}
    return Ours(host, make_client("hf3fs", WHO, place | {"use_mock_hf3fs_client": True} | more, {}))


def _upstreams_hf3fs(host: HostPool, folder: str) -> Upstream:
    def make(stores: Any, duck: Any) -> Any:
        metadata = _tests("test_upstream_hf3fs").servers_module()
        with stores.in_place(), patch("atexit.register"):
            store = stores.module("hf3fs.storage_hf3fs").HiCacheHF3FS(
                rank=0,
                file_path=f"{folder}/pages.0.bin",
                file_size=FILE_BYTES,
                numjobs=JOBS,
                bytes_per_page=host.page_bytes // 2,
                entries=ENTRIES,
                client_timeout=5,
                dtype=torch.uint8,
                metadata_client=metadata.Hf3fsLocalMetadataClient(),
                is_page_first_layout=True,
                use_mock_client=True,
            )
        store.register_mem_pool_host(duck)
        return store

    return Upstream(host, make, lambda store: store.clear())


TRANSPORTS = {
    "mooncake": Store(
        mooncake,
        {"ours": _ours_mooncake, "raw": RawMooncake, "upstream": _upstreams_mooncake},
        ("mooncake",),
    ),
    "nixl": Store(folder_each, {"ours": _ours_nixl, "raw": RawNixl, "upstream": _upstreams_nixl}, ("nixl_cu12",)),
    "hf3fs": Store(
        folder_each,
        {
            "ours": _ours_hf3fs,
            "raw, verified": RawVerifiedFile,
            "raw": RawFile,
            "upstream": _upstreams_hf3fs,
            "ours, unverified": partial(_ours_hf3fs, verify=False),
        },
        ("xxhash",),
    ),
    "aibrix": AIBRIX,
}

HEAD = """# Transports

Our clients, the libraries' own calls, and SGLang's classes out of its wheel, in turn on the same memory. Measured by
`{command}`, as `make bench` does; the programs are in `benchmarks/`.
"""


def without_upstream(store: Store) -> Store:
    return replace(store, sides={name: make for name, make in store.sides.items() if name != "upstream"})


if __name__ == "__main__":
    if not upstream_is_here():
        print("no wheel of sglang: its classes are not measured")
        TRANSPORTS = {name: without_upstream(store) for name, store in TRANSPORTS.items()}
    main(TRANSPORTS, "transports", HEAD, ["torch", "mooncake-transfer-engine-non-cuda", "nixl-cu12", "aibrix-kvcache"])
