"""Copies between L1 and L2: what a call, a piece and a byte cost, for every operator, and what the links carry.

Rules of this file
- Prices are what `hicache_sim.copies` multiplies: calls of a plan, pieces as the layout counts them, bytes.
- Pages lie in blocks of a few neighbours, in another order on each side: between a fresh pool and the worst case.
- Every figure is timed on the calling thread by the operators themselves; a device is waited for. What handing over to
  a stream costs is the links' business, which are timed through the plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..config.layouts import OPERATORS, KvGeometry, find_layout
from ..data.copy import Copier, make_copier
from ..data.pools import DevicePool, HostPool
from .fit import Fit, fit
from .rig import Pages, Rig
from .samples import Spread, rounds, seconds, spread

BLOCK_PAGES = 8
COUNTS = (1, 4, 16, 64, 256)
TIMES_LARGER = (1, 4)
"""Page sizes, in pages of the configuration."""
MOST_BYTES = 64 << 20
"""Of one copy."""
WAYS = ("load", "backup")


@dataclass(frozen=True)
class Operator:
    """One combination of the matrix: a fit and the measurements of each way."""

    io_backend: str
    layout: str
    fits: dict[str, Fit]
    speeds: dict[str, Spread]
    """Bytes per second of the largest copy."""

    def record(self) -> dict[str, Any]:
        return {way: _prices(found) for way, found in self.fits.items()}


def _prices(found: Fit) -> dict[str, Any]:
    prices = found.prices
    return {
        "launch_s": prices["launch"],
        "segment_s": prices["segment"],
        "byte_s": prices["byte"],
        "error": {"median": found.error, "worst": found.worst},
    }


def operators(geometry: KvGeometry, dtype: torch.dtype, device: torch.device, budget_s: float) -> Iterator[Operator]:
    """Every combination there is for this kind of attention."""
    kinds = [(io_backend, layout) for io_backend, layout, pool in OPERATORS if pool == geometry.pool]
    for io_backend, layout in kinds:
        yield _operator(io_backend, layout, geometry, dtype, device, budget_s / len(kinds))


def _operator(
    io_backend: str, layout: str, geometry: KvGeometry, dtype: torch.dtype, device: torch.device, budget_s: float
) -> Operator:
    terms: dict[tuple[str, int, int], dict[str, float]] = {}
    ways: dict[tuple[str, int, int], Callable[[], float]] = {}
    for larger in TIMES_LARGER:
        shape = replace(geometry, page_size=geometry.page_size * larger)
        counts = [count for count in COUNTS if count == 1 or count * shape.page_bytes <= MOST_BYTES]
        here = DevicePool(shape, 2 * max(counts), dtype, device)
        there = HostPool(find_layout(layout), shape, 2 * max(counts), dtype)
        copier = make_copier(io_backend, here, there)
        for count in counts:
            host, dev = blocks(count, there.pages, 1), blocks(count, here.pages, 2)
            for way in WAYS:
                terms[way, larger, count] = _terms(copier, count, way)
                ways[way, larger, count] = partial(_time, copier, way, host, dev)
    times = {key: spread(taken) for key, taken in rounds(ways, budget_s).items()}
    fits, speeds = {}, {}
    for way in WAYS:
        keys = [key for key in terms if key[0] == way]
        fits[way] = fit([terms[key] for key in keys], [times[key].median for key in keys])
        largest = max(keys, key=lambda key: terms[key]["byte"])
        size, time = terms[largest]["byte"], times[largest]
        speeds[way] = Spread(size / time.median, size / time.high, size / time.low, time.times)
    return Operator(io_backend, layout, fits, speeds)


def _terms(copier: Copier, count: int, way: str) -> dict[str, float]:
    """As `hicache_sim.copies.CopyModel` counts them, for pages it takes for scattered."""
    geometry, layout = copier.device.geometry, copier.host.layout
    parts = copier.load(np.arange(1), np.arange(1)).parts if way == "load" else 1
    terms: dict[str, float] = {"launch": parts, "segment": 0, "byte": count * geometry.page_bytes}
    # Pieces of one size whatever the page's cannot be told from their bytes.
    return terms | ({"segment": layout.backup_segments(geometry, count).pieces} if "T" in layout.piece else {})


def _time(copier: Copier, way: str, host: Pages, device: Pages) -> float:
    def load() -> None:
        plan = copier.load(host, device)
        for part in range(plan.parts):
            plan.layer(part)
        _finish(copier.device.device)

    def backup() -> None:
        copier.backup(device, host).run()
        _finish(copier.device.device)

    return seconds({"load": load, "backup": backup}[way])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def blocks(count: int, pool_pages: int, seed: int) -> Pages:
    """So many pages of a pool, in blocks of neighbours."""
    firsts = np.random.default_rng(seed).permutation(np.arange(0, pool_pages, BLOCK_PAGES))
    pages = (firsts[:, None] + np.arange(BLOCK_PAGES)).ravel()
    return pages[pages < pool_pages][:count]


@dataclass(frozen=True)
class Links:
    """Bytes per second, one way, with nothing else under way and with the other way busy."""

    h2d: Spread
    d2h: Spread
    h2d_duplex: Spread
    d2h_duplex: Spread


def links(rig: Rig, device_pages: int, host_pages: int, page_bytes: int, budget_s: float) -> Links:
    """By the configuration's own operator, on its streams: large copies, alone and both ways at once."""
    count = max(1, min(device_pages // 2, host_pages // 2, MOST_BYTES // page_bytes))
    low, high = np.arange(count), np.arange(count, 2 * count)

    def load() -> float:
        return rig.seconds(rig.load(low, low))[0]

    def backup() -> float:
        return rig.seconds(rig.backup(high, high))[0]

    def beside_backups() -> float:
        return rig.beside(rig.load(low, low), [rig.backup(high, high) for _ in range(20)])

    def beside_loads() -> float:
        return rig.beside(rig.backup(high, high), [rig.load(low, low) for _ in range(20)])

    ways = {"h2d": load, "d2h": backup, "h2d_duplex": beside_backups, "d2h_duplex": beside_loads}
    size = count * page_bytes
    times = {name: spread(taken) for name, taken in rounds(ways, budget_s).items()}
    return Links(**{name: Spread(size / t.median, size / t.high, size / t.low, t.times) for name, t in times.items()})
