"""A store at work: probes, reads and writes over pages of a call and bytes of a page; its tail; calls side by side.

Rules of this file
- Operations go through the workers, as those of the plane do, with host pages of the configuration's layout. Each
  begins after a short pause: threads have to wake up first, as they have in service.
- Every page is written once, read while it is fresh, and forgotten: a local store answers from memory, as it does in a
  run that has just filled it. What its disk adds when memory is short is not measured.
- Pages of each size have a client of their own, since some stores hold pages of one size only.
- Prices are those of `hicache_sim.plane.StoreClient.latency_s`: a batch, an object of it, a byte.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from queue import SimpleQueue

import numpy as np
import torch

from ..config.layouts import KvGeometry, Layout
from ..control.types import Completion, Op, OpKind, Report
from ..data.pools import HostPool
from ..data.storage.client import StorageClient, StoreFailed
from ..data.storage.keeping import Keeping
from ..data.workers import StorageWorkers
from .fit import Fit, fit
from .rig import Pages
from .samples import Spread, rounds, seconds, spread

BATCH = 128
COUNTS = (1, 8, 32, BATCH)
TIMES_LARGER = (1, 4, 16)
MOST_PAGE_BYTES = 4 << 20
OF_CAPACITY = 0.4
"""The most that one batch takes of what the store keeps."""
TAIL_CALLS, TAIL_PAGES = 300, 8
PAUSE_S = 0.003
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class StoreFigures:
    """probe: of 128 names. read, write: prices. tail: p99 over p50 of small reads.

    side_by_side: throughput of two readers over that of one. keeps: what it says of itself.
    """

    probe: Spread
    read: Fit
    write: Fit
    read_bytes_per_s: float
    write_bytes_per_s: float
    tail: float
    side_by_side: float
    keeps: Keeping


class _Workers:
    """The workers of one host pool, given one operation at a time."""

    def __init__(self, client: StorageClient, host: HostPool) -> None:
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._workers = StorageWorkers(client, host, self._reports.put)
        self._ids = itertools.count(1)

    def seconds(self, kind: OpKind, names: Sequence[str], slots: Pages | None = None) -> float:
        """From submit to the last report. ValueError: it fell short."""
        op = Op(next(self._ids), kind, len(names), slots, slots, names)
        time.sleep(PAUSE_S)
        began_s = time.perf_counter()
        self._workers.submit(op)
        while not isinstance(report := self._reports.get(timeout=TIMEOUT_S), Completion):
            pass
        taken_s = time.perf_counter() - began_s
        if report.failed or report.pages_ok != len(names):
            raise ValueError(f"the store answered {report.pages_ok} of {len(names)} pages of a {kind.name}")
        return taken_s


class _Shelf:
    """Pages of one size: a client of the store, host pages, and the workers between them."""

    def __init__(self, client: StorageClient, host: HostPool) -> None:
        self.client, self.host = client, host
        self.workers = _Workers(client, host)

    @property
    def page_bytes(self) -> int:
        return self.host.page_bytes

    def forget(self) -> None:
        """So that the store never holds much. Some cannot: they forget by themselves."""
        with suppress(StoreFailed):
            self.client.clear()


class StoreBench:
    """Operations on one store. `open`: a client for pages of a shape, which is this bench's to close."""

    def __init__(
        self, open: Callable[[KvGeometry], StorageClient], layout: Layout, geometry: KvGeometry, dtype: torch.dtype
    ) -> None:
        shapes = [replace(geometry, page_size=geometry.page_size * larger) for larger in TIMES_LARGER]
        self._shelves = [
            _Shelf(open(shape), HostPool(layout, shape, 2 * BATCH, dtype))
            for shape in shapes
            if shape.page_bytes <= MOST_PAGE_BYTES or shape is shapes[0]
        ]
        self._usual = self._shelves[0]
        self._numbers = itertools.count()

    def close(self) -> None:
        for shelf in self._shelves:
            shelf.forget()
            shelf.client.close()

    def measure(self, budget_s: float) -> StoreFigures:
        keeps = self._usual.client.keeps(self._usual.page_bytes)
        room_bytes = OF_CAPACITY * float(keeps["capacity_bytes"].value) if "capacity_bytes" in keeps else math.inf
        turns = {
            (shelf.page_bytes, count): partial(self._turn, shelf, count)
            for shelf in self._shelves
            for count in COUNTS
            if shelf.page_bytes * count <= room_bytes
        }
        if not turns:
            raise ValueError(f"a page of {self._usual.page_bytes} bytes does not fit into {room_bytes:.0f}")
        times = rounds(turns, 0.6 * budget_s)
        writes = {key: spread([written for written, _ in taken]) for key, taken in times.items()}
        reads = {key: spread([read for _, read in taken]) for key, taken in times.items()}
        return StoreFigures(
            spread(self._probes(0.1 * budget_s)),
            _fit(reads),
            _fit(writes),
            _most(reads),
            _most(writes),
            self._tail(),
            self._two(),
            keeps,
        )

    def _turn(self, shelf: _Shelf, count: int) -> tuple[float, float]:
        """Seconds of writing pages that nobody has written before, and of reading them."""
        names, pages = self._names(count), np.arange(count)
        written_s = shelf.workers.seconds(OpKind.STORE, names, pages)
        read_s = shelf.workers.seconds(OpKind.FETCH, names, pages + BATCH)
        shelf.forget()
        return written_s, read_s

    def _names(self, count: int) -> list[str]:
        return [sha256(str(next(self._numbers)).encode()).hexdigest() for _ in range(count)]

    def _fresh(self, count: int) -> list[str]:
        """Names of usual pages that are stored."""
        names = self._names(count)
        self._usual.client.put(names, self._usual.host, np.arange(count))
        return names

    def _probes(self, budget_s: float) -> list[float]:
        names = self._fresh(BATCH)
        return rounds({"probe": lambda: self._usual.workers.seconds(OpKind.PROBE, names)}, budget_s)["probe"]

    def _tail(self) -> float:
        """Of reads of a few pages, one after the other."""
        names, pages = self._fresh(TAIL_PAGES), np.arange(TAIL_PAGES)
        times = [self._usual.workers.seconds(OpKind.FETCH, names, pages) for _ in range(TAIL_CALLS)]
        p50, p99 = np.percentile(times, (50, 99))
        return max(1.0, float(p99 / p50))

    def _two(self) -> float:
        """Throughput of two readers of whole batches, over that of one. Straight from the client."""
        client, host, names = self._usual.client, self._usual.host, self._fresh(BATCH)

        def read() -> int:
            return client.get(names, host, np.arange(BATCH, 2 * BATCH))

        with ThreadPoolExecutor(2) as pool:
            ways = {
                "one": lambda: seconds(read),
                "two": lambda: seconds(lambda: [each.result() for each in [pool.submit(read), pool.submit(read)]]),
            }
            times = {name: spread(taken).median for name, taken in rounds(ways, 0.5).items()}
        return 2 * times["one"] / times["two"]


_Times = dict[tuple[int, int], Spread]
"""Seconds by (bytes of a page, pages of a batch)."""


def _fit(times: _Times) -> Fit:
    terms = [{"batch": 1, "object": count, "byte": size * count} for size, count in times]
    return fit(terms, [time.median for time in times.values()])


def _most(times: _Times) -> float:
    """Bytes a second of the batch with most bytes."""
    size, count = max(times, key=lambda key: key[0] * key[1])
    return size * count / times[size, count].median
