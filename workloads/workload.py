"""What every source of requests is, be it a file or a generator.

Rules of this file
- A workload can be read any number of times; every reading gives the same requests.
- Reading is lazy. Only what a schedule has to hold is held: live sessions, or one instant's ties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from .request import Request
from .schedule import OpenLoop, Schedule, Session


class Workload(ABC):
    """Requests under a schedule, and what is known about them.

    name          of the file or generator. format: of the file, or "generated".
    verdict       how block ids cover the prompts (see fit.MEANING).
    block_tokens  the size of the blocks that the ids stand for; for generators, a page size to count with.
    linked        requests say which earlier one they follow, so a closed loop is possible.
    schedule      the schedule used when none is given.
    max_parallel  at most this many requests are under way at once (a rule for the driver); None: no limit.
    """

    name: str
    format: str
    verdict: str
    block_tokens: int
    linked: bool = True
    schedule: Schedule = OpenLoop()
    max_parallel: int | None = None

    @abstractmethod
    def requests(self, schedule: Schedule | None = None) -> Iterator[Request]:
        """The requests, in order of `arrival_s`, parents before children, ids 0, 1, 2, …

        TraceError, while reading: a row that cannot be used. At once: a closed loop over rows without links.
        """


class ClockedWorkload(Workload):
    """A workload whose rows carry the times of one clock, in order."""

    @abstractmethod
    def recorded(self) -> Iterator[Request]:
        """Requests with recorded `arrival_s`, counted from the first, never going back; links where known."""

    def requests(self, schedule: Schedule | None = None) -> Iterator[Request]:
        return (schedule or self.schedule).clocked(self)


class SessionWorkload(Workload):
    """A workload of sessions, each with a clock of its own."""

    @abstractmethod
    def sessions(self) -> Iterable[Session]:
        """Sessions in order of start. Each is made anew for every reading: schedules change them in place."""

    def requests(self, schedule: Schedule | None = None) -> Iterator[Request]:
        return (schedule or self.schedule).sessions(self.sessions())
