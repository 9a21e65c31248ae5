"""When requests arrive: open loop by the clock, closed loop by the answers, and how sessions start.

Rules of this file
- A *clocked* workload has recorded times for all its requests. A *session* workload has sessions whose turns are
  timed from the session's own start. A schedule turns either into one stream of requests.
- The stream is in order of `arrival_s`, parents before children. In a closed loop `arrival_s` is the earliest start:
  a turn starts at the latest of `arrival_s` and `think_s` after its parent's end.
- Open loop clears `parent`, `think_s` and `wave`: nothing but the clock decides.
- Every random draw has a seed that the caller can see.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import ClassVar, Protocol

from .errors import TraceError
from .request import Request


@dataclass(slots=True)
class Session:
    """Turns that belong together, before they are placed on the run's clock.

    start_s   from the start of the run. turns: `turns[i].id == i`, `arrival_s` from the session's start,
              `parent` an index into `turns` that is smaller than the turn's own.
    """

    start_s: float
    turns: list[Request]


class Clocked(Protocol):
    """A workload with recorded times. `linked`: its rows say which turn follows which."""

    name: str
    linked: bool

    def recorded(self) -> Iterator[Request]: ...


class Schedule(Protocol):
    waits: ClassVar[bool]
    """Whether requests wait for others to end."""

    def clocked(self, workload: Clocked) -> Iterator[Request]: ...

    def sessions(self, sessions: Iterable[Session]) -> Iterator[Request]: ...


# --- How sessions start ---------------------------------------------------------------------------------------------


class Arrivals(Protocol):
    """A law of session starts."""

    def starts(self) -> Iterator[float]:
        """Start times in seconds, never decreasing, without end."""
        ...


@dataclass(frozen=True)
class Together:
    """All sessions start at 0; requests are merged by their time in the session."""

    def starts(self) -> Iterator[float]:
        return repeat(0.0)


@dataclass(frozen=True)
class Poisson:
    """Sessions start at random, `rate_per_s` of them a second on average."""

    rate_per_s: float
    seed: int = 1

    def __post_init__(self) -> None:
        positive("rate_per_s", self.rate_per_s)

    def starts(self) -> Iterator[float]:
        rng = random.Random(self.seed)
        start_s = 0.0
        while True:
            start_s += rng.expovariate(self.rate_per_s)
            yield start_s


@dataclass(frozen=True)
class Spaced:
    """Sessions start `gap_s` seconds apart, the first at 0."""

    gap_s: float

    def __post_init__(self) -> None:
        positive("gap_s", self.gap_s)

    def starts(self) -> Iterator[float]:
        number = 0
        while True:
            yield number * self.gap_s
            number += 1


ARRIVALS: dict[str, type[Together] | type[Poisson] | type[Spaced]] = {
    "together": Together,
    "poisson": Poisson,
    "spaced": Spaced,
}


# --- The two schedules ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenLoop:
    """Requests arrive by the recorded clock, whether or not earlier answers are done.

    speed     recorded times are divided by it: 2 = twice the load.
    spread    a coarse clock (Mooncake: 3 s) puts many requests on one instant. True spaces them evenly over the gap
              to the next instant, in file order; the last instant gets the gap before it.
    arrivals  how sessions start; None keeps the starts that the workload has (kv-cache-tester has none: all at 0).
              `speed` does not change a law that was asked for.
    """

    waits: ClassVar[bool] = False
    speed: float = 1.0
    spread: bool = False
    arrivals: Arrivals | None = None

    def __post_init__(self) -> None:
        positive("speed", self.speed)

    def clocked(self, workload: Clocked) -> Iterator[Request]:
        return self._finish(self._by_clock(workload.recorded()))

    def sessions(self, sessions: Iterable[Session]) -> Iterator[Request]:
        return self._finish(interleave(map(self._placed, placed(sessions, self.arrivals, self.speed))))

    def _by_clock(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            request.arrival_s /= self.speed
            request.parent = None
            request.think_s = 0.0
            request.wave = 0
            yield request

    def _placed(self, session: Session) -> Session:
        for turn in self._by_clock(session.turns):
            turn.arrival_s += session.start_s
        return session

    def _finish(self, requests: Iterator[Request]) -> Iterator[Request]:
        return spread_ties(requests) if self.spread else requests


@dataclass(frozen=True)
class ClosedLoop:
    """A turn starts `think_s` after the answer it follows has ended.

    speed     recorded times and think times are divided by it.
    arrivals  as for OpenLoop.

    Sessions run on their think times alone. A clocked workload does not record when an answer ended, so its turns
    also never start before their recorded time.
    """

    waits: ClassVar[bool] = True
    speed: float = 1.0
    arrivals: Arrivals | None = None

    def __post_init__(self) -> None:
        positive("speed", self.speed)

    def clocked(self, workload: Clocked) -> Iterator[Request]:
        """TraceError: the workload does not say which turn follows which."""
        if not workload.linked:
            raise TraceError(
                "no row names its session, so nothing can wait for an answer", workload.name, "use OpenLoop"
            )
        return self._by_answer(workload.recorded())

    def sessions(self, sessions: Iterable[Session]) -> Iterator[Request]:
        return interleave(map(self._earliest, placed(sessions, self.arrivals, self.speed)))

    def _by_answer(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            request.arrival_s /= self.speed
            request.think_s /= self.speed
            yield request

    def _earliest(self, session: Session) -> Session:
        """Replace recorded times by the earliest ones: the parent's, its answer taking no time, and the thinking."""
        for turn in self._by_answer(session.turns):
            if turn.parent is None:
                turn.arrival_s += session.start_s
            else:
                turn.arrival_s = session.turns[turn.parent].arrival_s + turn.think_s
        return session


SCHEDULES: dict[str, type[OpenLoop] | type[ClosedLoop]] = {"open": OpenLoop, "closed": ClosedLoop}


# --- What they are made of ------------------------------------------------------------------------------------------


def placed(sessions: Iterable[Session], arrivals: Arrivals | None, speed: float) -> Iterator[Session]:
    """Sessions with the starts of a law, or with their own on a clock `speed` times as fast."""
    if arrivals is None:
        for session in sessions:
            session.start_s /= speed
            yield session
    else:
        for session, session.start_s in zip(sessions, arrivals.starts(), strict=False):
            yield session


def interleave(sessions: Iterable[Session]) -> Iterator[Request]:
    """All turns in order of arrival; ties in order of session, then of turn. Ids, parents, sessions become global.

    A session is taken from the iterator when its start is due, so only the live ones are in memory.
    TraceError: session starts that go back.
    """
    live: list[tuple[float, int, int, list[Request], list[Request]]] = []
    next_id = 0
    now_s = -math.inf
    for number, session in chain(enumerate(sessions), repeat((0, Session(math.inf, [])))):
        while live and live[0][0] < session.start_s:
            _, owner, index, order, turns = live[0]
            turn = order[index]
            turn.session = owner
            turn.parent = None if turn.parent is None else turns[turn.parent].id
            turn.id = next_id
            next_id += 1
            if index + 1 < len(order):
                heapq.heapreplace(live, (order[index + 1].arrival_s, owner, index + 1, order, turns))
            else:
                heapq.heappop(live)
            yield turn
        if session.start_s == math.inf:
            return
        if session.start_s < now_s:
            raise TraceError(f"session {number} starts at {session.start_s} s, before the one ahead of it")
        now_s = session.start_s
        if session.turns:
            order = sorted(session.turns, key=_arrival)
            heapq.heappush(live, (order[0].arrival_s, number, 0, order, session.turns))


def spread_ties(requests: Iterable[Request]) -> Iterator[Request]:
    """Requests that share an instant, spread evenly over the gap to the next instant, in the order they came."""
    group: list[Request] = []
    gap_s = 0.0
    for request in requests:
        if group and request.arrival_s != group[0].arrival_s:
            gap_s = request.arrival_s - group[0].arrival_s
            yield from _spaced_out(group, gap_s)
            group = []
        group.append(request)
    yield from _spaced_out(group, gap_s)


def _spaced_out(group: list[Request], gap_s: float) -> list[Request]:
    for place, request in enumerate(group):
        request.arrival_s += gap_s * place / len(group)
    return group


def positive(name: str, value: float) -> None:
    """TraceError unless `value` is a finite number above 0."""
    if not 0 < value < math.inf:
        raise TraceError(f"{name} is {value}", do="give a number above 0")


def _arrival(request: Request) -> float:
    return request.arrival_s
