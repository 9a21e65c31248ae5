"""Where a process sits among the ranks of a run, and what a run asks of its seat.

Rules of this file
- A run is the same program on every rank; what differs is its seat. `ALONE` is the seat of one process.
- Ranks above 0 have no output: they follow, and hand in what they have counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..control.log import Fingerprint
from ..run.clock import WallClock
from ..run.driver import WaitingPlane


@dataclass(frozen=True)
class Figures:
    """What one rank has counted in a run."""

    rank: int
    operations_sha256: str
    cpu_s: float
    moved_bytes: dict[str, float]
    """On its own links and ways to the store."""
    failures: dict[str, int]
    store: dict[str, float] | None


class Place(NamedTuple):
    """What a driver's loop works with."""

    plane: WaitingPlane
    clock: WallClock
    start: Callable[[], None]
    """Everything is ready. Time counts from here."""


class Seat(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> str | None:
        """This rank's, where the seat says; None: the one that the run names."""
        ...

    def all_reduce(self, x: Tensor, /) -> Tensor:
        """On the compute thread: the sum of `x` over the ranks. May use its memory."""
        ...

    def stops(self, asked: bool, /) -> bool:
        """On the compute thread, after each step of a decode but the last: whether it stops there."""
        ...

    def sit(self, plane: WaitingPlane, real: WallClock, fingerprint: Fingerprint) -> AbstractContextManager[Place]:
        """Between this rank's plane and its loop. real: the clock of the plane's meters, started here."""
        ...

    def gather(self, figures: Figures) -> list[Figures]:
        """At the end, on rank 0: the figures of all. On others: their own. RunFailed: they have parted (L9)."""
        ...


class Alone:
    """Satisfies `Seat`."""

    rank, size, device = 0, 1, None

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def stops(self, asked: bool) -> bool:
        return asked

    @contextmanager
    def sit(self, plane: WaitingPlane, real: WallClock, fingerprint: Fingerprint) -> Iterator[Place]:
        yield Place(plane, real, real.start)

    def gather(self, figures: Figures) -> list[Figures]:
        return [figures]


ALONE: Seat = Alone()

Task = Callable[[Seat], Any]
"""What a rank does in its seat. It can be pickled."""
