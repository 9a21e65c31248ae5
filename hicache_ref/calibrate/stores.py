"""A store at work: probes, reads and writes over pages of a call and bytes of a page; its tail; calls side by side.

Rules of this file
- Operations go through the workers, as those of the plane do, with host pages of the configuration's layout. Each
  begins after a short pause: threads have to wake up first, as they have in service.
- Every page is written once and read while it is fresh: a local store answers from memory, as it does in a run that
  has just filled it. What its disk adds when memory is short is not measured.
- Prices are those of `hicache_sim.plane.StoreClient.latency_s`: a batch, an object of it, a byte.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from queue import SimpleQueue

import numpy as np
import torch

from ..config.layouts import KvGeometry, Layout
from ..control.types import Completion, Op, OpKind, Report
from ..data.pools import HostPool
from ..data.storage.client import StorageClient
from ..data.workers import StorageWorkers
from .fit import Fit, fit
from .rig import Pages
from .samples import Spread, rounds, seconds, spread

BATCH = 128
COUNTS = (1, 8, 32, BATCH)
TIMES_LARGER = (1, 4, 16)
MOST_PAGE_BYTES = 4 << 20
TAIL_CALLS, TAIL_PAGES = 300, 8
PAUSE_S = 0.003
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class StoreFigures:
    """probe: of 128 names. read, write: prices. tail: p99 over p50 of small reads.

    side_by_side: throughput of two readers over that of one.
    """

    probe: Spread
    read: Fit
    write: Fit
    read_bytes_per_s: float
    write_bytes_per_s: float
    tail: float
    side_by_side: float


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


class StoreBench:
    """Operations on one client. The workers are left as they are: the client is its maker's to close."""

    def __init__(self, client: StorageClient, layout: Layout, geometry: KvGeometry, dtype: torch.dtype) -> None:
        self._client = client
        self._sizes = [
            shape
            for larger in TIMES_LARGER
            if (shape := replace(geometry, page_size=geometry.page_size * larger)).page_bytes <= MOST_PAGE_BYTES
        ]
        self._hosts = {shape.page_bytes: HostPool(layout, shape, 2 * BATCH, dtype) for shape in self._sizes}
        self._workers = {size: _Workers(client, host) for size, host in self._hosts.items()}
        self._numbers = itertools.count()

    def measure(self, budget_s: float) -> StoreFigures:
        keys = [(size, count) for size in self._hosts for count in COUNTS]
        written = {key: self._fresh(key) for key in keys}
        ways: dict[tuple[str, int, int], Callable[[], float]] = {}
        for size, count in keys:
            ways["write", size, count] = partial(self._put, size, count, written)
            ways["read", size, count] = partial(self._get, size, count, written)
        times = {key: spread(taken) for key, taken in rounds(ways, 0.6 * budget_s).items()}
        fits = {call: self._fit(call, times) for call in ("read", "write")}
        host = self._hosts[self._sizes[0].page_bytes]
        probe = rounds({"probe": partial(self._probe, host.page_bytes, written)}, 0.1 * budget_s)["probe"]
        largest = max(size for size in self._hosts)
        speed = {call: largest * BATCH / times[call, largest, BATCH].median for call in ("read", "write")}
        self._client.clear()
        return StoreFigures(
            spread(probe), fits["read"], fits["write"], speed["read"], speed["write"], self._tail(), self._two()
        )

    def _fit(self, call: str, times: dict[tuple[str, int, int], Spread]) -> Fit:
        chosen = {key: time for key, time in times.items() if key[0] == call}
        terms = [{"batch": 1, "object": count, "byte": size * count} for _, size, count in chosen]
        return fit(terms, [time.median for time in chosen.values()])

    def _fresh(self, key: tuple[int, int]) -> list[str]:
        """Names nobody has used, already stored."""
        size, count = key
        names = self._names(count)
        self._client.put(names, self._hosts[size], np.arange(count))
        return names

    def _names(self, count: int) -> list[str]:
        return [sha256(str(next(self._numbers)).encode()).hexdigest() for _ in range(count)]

    def _put(self, size: int, count: int, written: dict[tuple[int, int], list[str]]) -> float:
        written[size, count] = names = self._names(count)
        return self._workers[size].seconds(OpKind.STORE, names, np.arange(count))

    def _get(self, size: int, count: int, written: dict[tuple[int, int], list[str]]) -> float:
        return self._workers[size].seconds(OpKind.FETCH, written[size, count], np.arange(count, 2 * count))

    def _probe(self, size: int, written: dict[tuple[int, int], list[str]]) -> float:
        return self._workers[size].seconds(OpKind.PROBE, written[size, BATCH])

    def _tail(self) -> float:
        """Of reads of a few pages, one after the other."""
        size = self._sizes[0].page_bytes
        written = {(size, TAIL_PAGES): self._fresh((size, TAIL_PAGES))}
        times = [self._get(size, TAIL_PAGES, written) for _ in range(TAIL_CALLS)]
        p50, p99 = np.percentile(times, (50, 99))
        return max(1.0, float(p99 / p50))

    def _two(self) -> float:
        """Throughput of two readers of whole batches, over that of one. Straight from the client."""
        host = self._hosts[self._sizes[0].page_bytes]
        names = self._fresh((host.page_bytes, BATCH))

        def read() -> int:
            return self._client.get(names, host, np.arange(BATCH, 2 * BATCH))

        with ThreadPoolExecutor(2) as pool:
            ways = {
                "one": lambda: seconds(read),
                "two": lambda: seconds(lambda: [each.result() for each in [pool.submit(read), pool.submit(read)]]),
            }
            times = {name: spread(taken).median for name, taken in rounds(ways, 0.5).items()}
        return 2 * times["one"] / times["two"]
