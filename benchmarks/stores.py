"""Stores against their own APIs doing the same, and against upstream's classes: `python -m benchmarks.stores [NAME]`.
With `--out FOLDER` into a report, as `make bench` does.

Rules of this file
- Ratios within one run. All sides of a store take turns, batch by batch, so that what else the machine does strikes
  all of them; medians of the ratios of single rounds are compared.
- Raw: the least that keeps the same pages in the same store and brings them back into the same host memory, written
  as the store's own manual does it; nothing is looked up, verified or counted.
- Only `put` and `get` are timed. Between rounds stores are emptied, memory is touched and files are in the page cache.
- The file store has a benchmark of its own (`benchmarks.storage`).

What lmdb falls short of at 64 KiB: raw takes 8 us a page, one preadv for all 6 us. Digests add 2.5 us (also to `raw,
verified`), of which half is the calls; ours 2 to 3 us more, to look a page up, for its key, its turn and its facts.
From 256 KiB on that no longer counts. Nor do threads help: with a helper for digests, or two readers with copies by
numpy, which lets others run, a batch took 0.9 to 1.3 times as long on two shared cores, since each piece
hands the interpreter over.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hicache_ref.data.pools import HostPool
from hicache_ref.data.storage.client import StorageClient, StorageIdentity
from hicache_ref.data.storage.registry import make_client

from . import ratios
from .measure import ROOT, Row, Table, spread
from .ratios import Report, Tables, Target
from .scale import tell
from .storage import BATCH, KIB, NAMES, PAGES, pool

WANTED = {"raw, verified": 0.9, "raw": 0.9, "upstream": 1.0, "flat file": 0.7}
"""The targets, by side: at least so much of its speed."""
QUICK_ROUNDS, ROUNDS = 3, 11
WHO = StorageIdentity("bench")
KEYS = [name.encode() for name in NAMES]


class Side(Protocol):
    """One way to keep a batch in a store, and to get it back."""

    def put(self) -> None: ...
    def get(self) -> None: ...
    def empty(self) -> None: ...
    def close(self) -> None: ...


Make = Callable[[HostPool, str], Side]
"""Of a host pool and a place: a folder of the side's own, or an address."""


class Ours:
    def __init__(self, host: HostPool, client: StorageClient) -> None:
        self.host, self.client = host, client

    def put(self) -> None:
        assert self.client.put(NAMES, self.host, PAGES) == BATCH

    def get(self) -> None:
        assert self.client.get(NAMES, self.host, PAGES) == BATCH

    def empty(self) -> None:
        self.client.clear()

    def close(self) -> None:
        self.client.close()


def ours(name: str, where: str, **extra: Any) -> Make:
    return lambda host, place: Ours(host, make_client(name, WHO, {where: place} | extra, {}))


# LMDB


class RawLmdb:
    """py-lmdb: an entry for the keys and one for the values of a page, one transaction a batch."""

    def __init__(self, host: HostPool, folder: str) -> None:
        import lmdb

        self.host = host
        self.env = lmdb.open(folder, 4 << 30, writemap=True, map_async=True)

    def put(self) -> None:
        with self.env.begin(write=True) as txn:
            for page, key in enumerate(KEYS):
                for part, piece in enumerate(self.host.page_memory(page)):
                    txn.put(key + bytes((part,)), piece)

    def get(self) -> None:
        with self.env.begin(buffers=True) as txn:
            for page, key in enumerate(KEYS):
                for part, piece in enumerate(self.host.page_memory(page)):
                    piece[:] = txn.get(key + bytes((part,)))  # type: ignore[assignment]

    def empty(self) -> None:
        with self.env.begin(write=True) as txn:
            txn.drop(self.env.open_db(txn=txn), delete=False)

    def close(self) -> None:
        self.env.close()


class RawVerifiedLmdb(RawLmdb):
    """The same, and a digest of each page, stored beside it and compared."""

    def put(self) -> None:
        with self.env.begin(write=True) as txn:
            for page, key in enumerate(KEYS):
                pieces = self.host.page_memory(page)
                for part, piece in enumerate(pieces):
                    txn.put(key + bytes((part,)), piece)
                txn.put(key, digest(pieces))

    def get(self) -> None:
        with self.env.begin(buffers=True) as txn:
            for page, key in enumerate(KEYS):
                pieces = self.host.page_memory(page)
                for part, piece in enumerate(pieces):
                    piece[:] = txn.get(key + bytes((part,)))  # type: ignore[assignment]
                assert bytes(txn.get(key) or b"") == digest(pieces)


def digest(pieces: list[memoryview]) -> bytes:
    from xxhash import xxh3_64

    state = xxh3_64()
    for piece in pieces:
        state.update(piece)
    return state.digest()


class FlatFile:
    """No store at all: all pages in one preallocated file, one system call a batch."""

    def __init__(self, host: HostPool, folder: str) -> None:
        self.fd = os.open(f"{folder}/flat", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self.fd, 0, BATCH * host.page_bytes)
        self.pieces = [piece for page in PAGES.tolist() for piece in host.page_memory(page)]
        self.size = BATCH * host.page_bytes

    def put(self) -> None:
        assert os.pwritev(self.fd, self.pieces, 0) == self.size

    def get(self) -> None:
        assert os.preadv(self.fd, self.pieces, 0) == self.size

    def empty(self) -> None:
        pass

    def close(self) -> None:
        os.close(self.fd)


# Redis


class RawRedis:
    """redis-py with hiredis: a pipeline of SET, and MGET."""

    def __init__(self, host: HostPool, url: str) -> None:
        import redis

        self.host, self.server = host, redis.Redis.from_url(url)

    def put(self) -> None:
        pipeline = self.server.pipeline(transaction=False)
        for page, name in enumerate(NAMES):
            pipeline.set(name, b"".join(self.host.page_memory(page)))
        pipeline.execute()

    def get(self) -> None:
        values: Any = self.server.mget(NAMES)
        for page, value in enumerate(values):
            at = 0
            for piece in self.host.page_memory(page):
                piece[:] = value[at : at + piece.nbytes]
                at += piece.nbytes

    def empty(self) -> None:
        self.server.flushall()

    def close(self) -> None:
        self.server.close()


@contextmanager
def redis_server(folder: str) -> Iterator[str]:
    """Its address, a Unix socket. It is gone at the end."""
    path = f"{folder}/redis"
    switched_off = ["--port", "0", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(
        ["redis-server", *switched_off, "--unixsocket", path, "--dir", folder], stdout=subprocess.DEVNULL
    )
    try:
        until_s = time.monotonic() + 10
        while not _listens(path):
            if time.monotonic() > until_s or server.poll() is not None:
                raise RuntimeError("redis-server does not start")
            time.sleep(0.02)
        yield f"unix://{path}"
    finally:
        server.kill()
        server.wait()


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(path) == 0


# Dynamic: PeerCache


PEERCACHE = {
    "backend_name": "peercache",
    "module_path": "peercache.store",
    "class_name": "PeerCacheStore",
    "interface_v1": 1,
    "protocol": "tcp",
    "global_segment_size": "512mb",
    "disk_enabled": False,
    "metrics_enabled": False,
} | dict.fromkeys(("local_hostname", "meta_bind_host", "rdma_bind_host", "control_bind_host"), "127.0.0.1")


class RawPeerCache:
    """The class itself, called as SGLang calls it: with a pool that tells addresses."""

    page_size = 1
    layout = "page_first"

    def __init__(self, host: HostPool, address: str) -> None:
        from peercache.store import PeerCacheStore

        from hicache_ref.data.storage.dynamic import storage_config

        self.host, self.kv_buffer = host, host.memory.data
        self.store = PeerCacheStore(storage_config(WHO, PEERCACHE | {"discovery_addr": address}), {})
        self.store.register_mem_pool_host(self)
        self.indices = torch.from_numpy(PAGES)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        buffers = [buffer for page in indices.tolist() for buffer in self.host.page_buffers(page)]
        return [address for address, _ in buffers], [size for _, size in buffers]

    def put(self) -> None:
        assert all(self.store.batch_set_v1(NAMES, self.indices))

    def get(self) -> None:
        assert all(self.store.batch_get_v1(NAMES, self.indices))

    def empty(self) -> None:
        self.store.clear()

    def close(self) -> None:
        self.store.close()


# All


@contextmanager
def folder_each(folder: str) -> Iterator[Callable[[], str]]:
    """A folder of its own for every side."""
    yield lambda: tempfile.mkdtemp(dir=folder)


@contextmanager
def server_for_all(folder: str) -> Iterator[Callable[[], str]]:
    with redis_server(folder) as url:
        yield lambda: url


@contextmanager
def port_each(folder: str) -> Iterator[Callable[[], str]]:
    def free() -> str:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            return f"127.0.0.1:{probe.getsockname()[1]}"

    yield free


@dataclass(frozen=True)
class Store:
    """places: what gives the sides their places. sides: `ours` is compared with all others.

    modules, programs: what it cannot be measured without.
    """

    places: Callable[[str], Any]
    sides: Mapping[str, Make]
    modules: Sequence[str] = ()
    programs: Sequence[str] = ()

    def lacks(self) -> str:
        """The first thing that is not here; "" if everything is."""
        modules = (name for name in self.modules if find_spec(name) is None)
        programs = (name for name in self.programs if shutil.which(name) is None)
        return next(modules, "") or next(programs, "")


STORES = {
    "lmdb": Store(
        folder_each,
        {
            "ours": ours("lmdb", "path", max_size="1Gi"),
            "raw, verified": RawVerifiedLmdb,
            "raw": RawLmdb,
            "ours, unverified": ours("lmdb", "path", max_size="1Gi", verify=False),
            "flat file": FlatFile,
        },
        ("lmdb", "xxhash"),
    ),
    "redis": Store(
        server_for_all,
        {
            "ours": ours("redis", "url"),
            "raw": RawRedis,
            "ours, unverified": ours("redis", "url", verify=False),
        },
        ("redis", "hiredis", "xxhash"),
        ("redis-server",),
    ),
    "dynamic": Store(
        port_each, {"ours": ours("dynamic", "discovery_addr", **PEERCACHE), "raw": RawPeerCache}, ("peercache",)
    ),
}


def measure(name: str, store: Store, folder: str, rounds: int, sizes: Sequence[int] = KIB) -> Table:
    """Put and get of one batch, for each page size, by all sides of a store in turn."""
    table = Table(name, f"{name}: {BATCH} pages a batch")
    table.notes.append(
        "GB/s are medians. vs: medians (and range) of the ratios of single rounds, above 1 where ours wins."
    )
    for kib in sizes:
        with ExitStack() as stack:
            where = tempfile.mkdtemp(dir=folder)
            stack.callback(shutil.rmtree, where, ignore_errors=True)
            place = stack.enter_context(store.places(where))
            host = pool("page_first", kib)
            made = {side: make(host, place()) for side, make in store.sides.items()}
            for side in made.values():
                stack.callback(side.close)
            # The smaller a batch, the more a single interruption is to it.
            seconds = _rounds(made, rounds * max(1, KIB[-1] // kib // 4))
            table.rows += [_row(kib, call, seconds) for call in ("put", "get")]
    return table


def _rounds(sides: dict[str, Side], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of each round, by side and call. Two rounds warm up and do not count."""
    seconds: dict[tuple[str, str], list[float]] = {(side, call): [] for side in sides for call in ("put", "get")}
    for at in range(rounds + 2):
        for name, side in random.Random(at).sample(list(sides.items()), len(sides)):
            side.empty()
            for call, work in (("put", side.put), ("get", side.get)):
                began_s = time.perf_counter()
                work()
                if at >= 2:
                    seconds[name, call].append(time.perf_counter() - began_s)
            side.empty()
    return seconds


def _row(kib: int, call: str, seconds: dict[tuple[str, str], list[float]]) -> Row:
    gigabytes = BATCH * kib * 1024 / 1e9
    of_call = {side: np.array(times) for (side, timed), times in seconds.items() if timed == call}
    speeds = {f"{side} GB/s": gigabytes / float(np.median(times)) for side, times in of_call.items()}
    ratios = {f"vs {side}": spread((of_call[side] / of_call["ours"]).tolist()) for side in of_call if side != "ours"}
    return {"page KiB": kib, "call": call} | speeds | ratios


def verdicts(tables: Tables) -> Table:
    """One target for each store and side that it was compared with."""
    targets = [Target(f"{name}, over {side}", WANTED[side], _found(name, side)) for name in tables for side in WANTED]
    found = ratios.verdicts(targets, tables)
    found.notes.append(
        "raw: the store's own API. raw, verified: the same, and digests kept and compared, as ours does."
    )
    return found


def _found(name: str, side: str) -> Callable[[Tables], list[float]]:
    column = f"vs {side}"
    return lambda tables: [row[column]["median"] for row in tables[name].rows if column in row]


def measure_all(stores: Mapping[str, Store], folder: str, rounds: int) -> dict[str, Table]:
    """A table for each store that is here, and a line for each that is not."""
    tables = {}
    for name, store in stores.items():
        if lacks := store.lacks():
            print(f"no {lacks}: {name} is not measured")
            continue
        tables[name] = measure(name, store, folder, rounds)
        tell(tables[name])
    return tables


def main(stores: Mapping[str, Store], program: str, head: str, packages: Sequence[str]) -> None:
    """The command `python -m benchmarks.<program>` over these stores."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("stores", nargs="*", metavar="NAME", help=f"of {', '.join(stores)}; default: all")
    parser.add_argument("--folder", type=Path, help="where files go; default: a new one under out/")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write report.md and results.json there")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.stores if name not in stores]
    if unknown:
        parser.error(f"no store {', '.join(unknown)}; there are {', '.join(stores)}")
    chosen = {name: stores[name] for name in arguments.stores or stores}
    rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    (ROOT / "out").mkdir(exist_ok=True)
    command = " ".join([f"python -m benchmarks.{program}", *arguments.stores, *["--quick"] * arguments.quick])
    with tempfile.TemporaryDirectory(dir=arguments.folder or ROOT / "out") as folder:
        report = Report(head, command, packages)
        report.run(arguments.out, lambda: measure_all(chosen, folder, rounds), verdicts)


HEAD = """# Stores

Our clients, and the stores' own APIs doing the same with the same memory, in turn. Measured by `{command}`, as
`make bench` does; the programs are in `benchmarks/`.
"""

if __name__ == "__main__":
    main(STORES, "stores", HEAD, ["torch", "lmdb", "redis", "hiredis", "peercache", "xxhash"])
