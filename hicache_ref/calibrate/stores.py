"""A store at work: probes, reads and writes over pages of a call and bytes of a page; its tail; calls side by side.

Rules of this file
- The client is called as the workers call it, with host pages of the configuration's layout.
- Every page is written once and read while it is fresh: a local store answers from memory, as it does in a run that
  has just filled it. What its disk adds when memory is short is not measured.
- Prices are those of `hicache_sim.plane.StoreClient.latency_s`: a batch, an object of it, a byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

import numpy as np
import torch

from ..config.layouts import KvGeometry, Layout
from ..data.pools import HostPool
from ..data.storage.client import StorageClient
from .fit import Fit, fit
from .samples import Spread, rounds, seconds, spread

BATCH = 128
COUNTS = (1, 8, 32, BATCH)
TIMES_LARGER = (1, 4, 16)
MOST_PAGE_BYTES = 4 << 20
TAIL_CALLS, TAIL_PAGES = 300, 8


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


class StoreBench:
    """Calls of one client."""

    def __init__(self, client: StorageClient, layout: Layout, geometry: KvGeometry, dtype: torch.dtype) -> None:
        self._client = client
        self._sizes = [
            shape
            for larger in TIMES_LARGER
            if (shape := replace(geometry, page_size=geometry.page_size * larger)).page_bytes <= MOST_PAGE_BYTES
        ]
        self._hosts = {shape.page_bytes: HostPool(layout, shape, 2 * BATCH, dtype) for shape in self._sizes}
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
        names = self._names(count)
        taken_s = seconds(lambda: self._whole(self._client.put(names, self._hosts[size], np.arange(count)), count))
        written[size, count] = names
        return taken_s

    def _get(self, size: int, count: int, written: dict[tuple[int, int], list[str]]) -> float:
        names, slots = written[size, count], np.arange(count, 2 * count)
        return seconds(lambda: self._whole(self._client.get(names, self._hosts[size], slots), count))

    def _probe(self, size: int, written: dict[tuple[int, int], list[str]]) -> float:
        names = written[size, BATCH]
        return seconds(lambda: self._whole(self._client.exists(names), BATCH))

    def _whole(self, pages: int, asked: int) -> None:
        if pages != asked:
            raise ValueError(f"the store answered {pages} of {asked} pages: give it room, and a place of its own")

    def _tail(self) -> float:
        """Of reads of a few pages, one after the other."""
        size = self._sizes[0].page_bytes
        written = {(size, TAIL_PAGES): self._fresh((size, TAIL_PAGES))}
        times = [self._get(size, TAIL_PAGES, written) for _ in range(TAIL_CALLS)]
        p50, p99 = np.percentile(times, (50, 99))
        return max(1.0, float(p99 / p50))

    def _two(self) -> float:
        """Throughput of two readers of whole batches, over that of one."""
        size = self._sizes[0].page_bytes
        written = {(size, BATCH): self._fresh((size, BATCH))}
        read = partial(self._get, size, BATCH, written)
        with ThreadPoolExecutor(2) as pool:
            ways = {
                "one": lambda: seconds(read),
                "two": lambda: seconds(lambda: [each.result() for each in [pool.submit(read), pool.submit(read)]]),
            }
            times = {name: spread(taken).median for name, taken in rounds(ways, 0.5).items()}
        return 2 * times["one"] / times["two"]
