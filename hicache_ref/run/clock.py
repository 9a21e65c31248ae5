"""The wall's time, for the driver's loop."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable


class WallClock:
    """Satisfies `drive.clock.Clock`. Nothing is called but by `run_due`, on the driver's thread."""

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._began_s = source()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._last: list[Callable[[], None]] = []
        self._count = 0

    def start(self) -> None:
        """From now on it counts from zero."""
        self._began_s = self._source()

    def now_s(self) -> float:
        return self._source() - self._began_s

    def at(self, time_s: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (time_s, self._count, then))

    def last(self, then: Callable[[], None]) -> None:
        self._last.append(then)

    def run_due(self) -> None:
        """Call whatever is due by now."""
        now_s = self.now_s()
        while self._timers and self._timers[0][0] <= now_s:
            heapq.heappop(self._timers)[2]()

    def run_last(self) -> None:
        """Call what was to come after everything else of this instant."""
        while self._last:
            last, self._last = self._last, []
            for then in last:
                then()

    def next_s(self) -> float | None:
        """Seconds from now until something is due; None: nothing will be."""
        return max(self._timers[0][0] - self.now_s(), 0.0) if self._timers else None
