"""What a real plane did and when, for traces and reports.

Rules of this file
- Seconds are those of the clock the plane was given. On CUDA they run from the launch to the end that the host sees.
- A store's figures are those of this rank's calls: what others keep there is not known here.
- Nothing here is read by whoever decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..account.meters import Slice
from ..control.types import Op, OpKind


class LinkTally(NamedTuple):
    """One way that pages go. Satisfies `account.meters.LinkMeter`."""

    name: str
    moved_bytes: float
    bytes_per_s: float = math.inf


@dataclass(frozen=True)
class StoreTally:
    """L3 by the ends of its operations. Satisfies `account.meters.StoreMeter`."""

    read_pages: int
    written_pages: int
    """Those that were there already included."""
    failed_calls: int
    refused_pages: int
    """Of STOREs that fell short."""
    capacity_pages: float = math.inf
    held_pages: int = 0
    evicted_pages: int = 0


class RealMeters:
    """Satisfies `account.meters.Meters`.

    waited_s: asks the compute stream how long its batches have waited. most_slices: notes beyond these are dropped.
    """

    slowed_s = 0.0
    """Not measured: on real processors it shows in the batches' own times."""

    def __init__(self, page_bytes: int, storage: bool, waited_s: Callable[[], float], most_slices: int = 0) -> None:
        self.page_bytes = page_bytes
        self.slices: list[Slice] = []
        self.op_counts = dict.fromkeys(OpKind, 0)
        """Operations submitted."""
        self.failed: Counter[OpKind] = Counter()
        self.good: Counter[OpKind] = Counter()
        """Good pages of operations that have ended; decode steps of COMPUTE."""
        self.short: Counter[OpKind] = Counter()
        """Pages that did not become good."""
        self.seconds = dict.fromkeys(OpKind, 0.0)
        """From the beginning of operations to their ends, waits in between included."""
        self._free_s = dict.fromkeys(OpKind, -math.inf)
        """The end of the last operation of each kind, before which the next cannot have begun."""
        self._storage = storage
        self._waited_s = waited_s
        self._most_slices = most_slices

    def begun(self, op: Op) -> None:
        self.op_counts[op.kind] += 1

    def ended(self, op: Op, pages_ok: int, failed: bool, start_s: float | None, end_s: float) -> None:
        """`start_s`: not before this; None: its turn never came. Operations of a kind are done one after the other."""
        self.failed[op.kind] += failed
        self.good[op.kind] += pages_ok
        self.short[op.kind] += op.pages - pages_ok
        if start_s is None:
            return
        start_s = min(max(start_s, self._free_s[op.kind]), end_s)
        self._free_s[op.kind] = end_s
        self.seconds[op.kind] += end_s - start_s
        if len(self.slices) < self._most_slices:
            self.slices.append(Slice(op.kind.name.lower(), start_s, end_s, op.id, op.pages))

    @property
    def links(self) -> list[LinkTally]:
        ways = [("pcie_h2d", OpKind.LOAD), ("pcie_d2h", OpKind.BACKUP)]
        if self._storage:
            ways += [("store_read", OpKind.FETCH), ("store_write", OpKind.STORE)]
        return [LinkTally(name, float(self.good[kind] * self.page_bytes)) for name, kind in ways]

    @property
    def store(self) -> StoreTally | None:
        if not self._storage:
            return None
        failed_calls = sum(self.failed[kind] for kind in (OpKind.PROBE, OpKind.FETCH, OpKind.STORE))
        return StoreTally(self.good[OpKind.FETCH], self.good[OpKind.STORE], failed_calls, self.short[OpKind.STORE])

    @property
    def busy_s(self) -> float:
        return self.seconds[OpKind.COMPUTE]

    @property
    def waited_s(self) -> float:
        return self._waited_s()
