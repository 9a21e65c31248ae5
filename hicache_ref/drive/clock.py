"""What a driver needs of time: SimPy's, or that of the wall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Seconds since the start of a run, and calls at later times."""

    def now_s(self) -> float: ...

    def at(self, time_s: float, then: Callable[[], None]) -> None:
        """Call `then` when it is `time_s` or just after, never before; soon if that has passed."""
        ...

    def last(self, then: Callable[[], None]) -> None:
        """Call `then` after everything else of this instant."""
        ...
