"""Planes that all ranks agree on: each stands before its rank's own plane, and reports only what is true everywhere.

Rules of this file
- Rank 0 leads. Once for each `wait` of the driver's loop, always, it sends a round: its clock, and what has been agreed
  on since. The others wait for rounds and for nothing else, and send what their planes report the moment they do. All
  that a loop sees of time and of its plane comes from rounds, so all loops see the same, in the same order.
- Who waits for whom: followers for the next round, for `SILENCE_S` at most (rank 0 sleeps less than that); rank 0 for
  reports, until something is due, and for followers that are more than `MOST_AHEAD` rounds behind. No rank holds back
  what another one waits for: a thread of its own forwards the reports of each plane.
- Every `MARK_ROUNDS` rounds the ranks compare the fingerprints of what they have decided (law L9).
- A batch or load that fails on any rank ends the run there and then; the others may never finish theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from ..control.log import Fingerprint
from ..control.types import Completion, Op, Report
from ..run.clock import WallClock
from ..run.driver import FATAL, WaitingPlane
from .council import Council

SILENCE_S = 300.0
MARK_ROUNDS = 64
MOST_AHEAD = 4 * MARK_ROUNDS
LOOK_S = 0.2
"""How often the thread that forwards reports looks whether it is still wanted."""


class Wire(Protocol):
    """A follower's way to rank 0."""

    def send(self, name: str, *what: Any) -> None: ...

    def round(self, timeout_s: float) -> tuple[float, list[Report]]:
        """The next round. RunFailed: none came. EOFError: rank 0 is gone."""
        ...


class Peers(Protocol):
    """Rank 0's way to its followers. `news` guards the council, and is told of everything said there."""

    @property
    def news(self) -> threading.Condition: ...

    @property
    def council(self) -> Council: ...

    def send_all(self, name: str, *what: Any) -> None: ...

    def wait_for(self, what: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Holding `news`: until it is so, or the time is over; whether it is. RunFailed: a rank has failed."""
        ...


S = TypeVar("S", bound="AgreedPlane")


class AgreedPlane:
    """Satisfies `run.driver.WaitingPlane` but for `wait`. `clock`: the loop's; it stands still between rounds.

    tell: takes what this rank's plane reports, and why the run cannot go on after that, if so.
    """

    def __init__(
        self, plane: WaitingPlane, fingerprint: Fingerprint, tell: Callable[[Report, str | None], None]
    ) -> None:
        self.capabilities = plane.capabilities
        self._plane = plane
        self._fingerprint = fingerprint
        self._tell = tell
        self._now_s = 0.0
        self.clock = WallClock(lambda: self._now_s)
        self._round = 0
        self._agreed: list[Report] = []
        """Of rounds, not polled yet."""
        self._open: set[int] = set()
        self._over = False
        self._pump = threading.Thread(target=self._forward, name="hicache reports", daemon=True)

    def submit(self, op: Op) -> None:
        self._open.add(op.id)
        self._plane.submit(op)

    def cancel(self, op_id: int) -> None:
        self._plane.cancel(op_id)

    def poll(self) -> list[Report]:
        reports, self._agreed = self._agreed, []
        self._open.difference_update([report.op_id for report in reports if report.ends])
        return reports

    @property
    def in_flight(self) -> int:
        """Operations whose end has not been agreed on, or not been polled."""
        return len(self._open)

    @property
    def errors(self) -> Iterable[Any]:
        return list(self._plane.errors)

    def start(self) -> None:
        """The machine is built. Rank 0 waits until all are."""
        self._pump.start()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        """Forward nothing more."""
        self._over = True
        if self._pump.is_alive():
            self._pump.join()

    def _take(self, now_s: float, reports: list[Report]) -> bool:
        """A round."""
        self._round += 1
        self._now_s = now_s
        self._agreed += reports
        return bool(reports)

    def _forward(self) -> None:
        while not self._over:
            self._plane.wait(LOOK_S)
            for report in self._plane.poll():
                self._tell(report, self._fatal(report))

    def _fatal(self, report: Report) -> str | None:
        """Why the run cannot go on after this report, if so."""
        if isinstance(report, Completion) and report.failed:
            for failure in self.errors:
                if failure.op_id == report.op_id and failure.kind in FATAL:
                    return f"{failure.kind.name} {failure.op_id} has failed: {failure.what}"
        return None


class FollowingPlane(AgreedPlane):
    """Of every rank but 0."""

    def __init__(self, plane: WaitingPlane, fingerprint: Fingerprint, wire: Wire) -> None:
        super().__init__(plane, fingerprint, lambda report, fatal: wire.send("report", report, fatal))
        self._wire = wire

    def wait(self, timeout_s: float | None = None) -> bool:
        """Take rank 0's next round, whenever that comes."""
        if self._agreed:
            return True
        if self._round % MARK_ROUNDS == 0:
            self._wire.send("mark", self._round, self._fingerprint.hexdigest())
        return self._take(*self._wire.round(SILENCE_S))


class LeadingPlane(AgreedPlane):
    """Rank 0's. real: the clock that everybody goes by, once it has been started."""

    def __init__(self, plane: WaitingPlane, fingerprint: Fingerprint, peers: Peers, real: WallClock) -> None:
        super().__init__(plane, fingerprint, self._report)
        self._peers = peers
        self._council = peers.council
        self._real = real

    def start(self) -> None:
        super().start()
        with self._peers.news:
            self._peers.wait_for(lambda: self._behind == 0)
        self._real.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until there is something, or the time is over, and send a round."""
        if self._agreed:
            return True
        peers, council = self._peers, self._council
        with peers.news:
            if self._round % MARK_ROUNDS == 0:
                council.mark(0, self._round, self._fingerprint.hexdigest())
            self._let_catch_up()
            # Of the clock as the loop sees it, which has stood still since the last round.
            left_s = None if timeout_s is None else max(self._now_s + timeout_s - self._real.now_s(), 0.0)
            peers.wait_for(lambda: council.has_news, left_s)
            reports = council.take()
        now_s = self._real.now_s()
        peers.send_all("round", now_s, reports)
        return self._take(now_s, reports)

    @property
    def _behind(self) -> int:
        """Rounds since the last sign of the slowest; more than that many if it has not begun."""
        return self._round - min(self._council.marks.values())

    def _let_catch_up(self) -> None:
        """What is on its way to followers is bounded."""
        if not self._peers.wait_for(lambda: self._behind <= MOST_AHEAD, SILENCE_S):
            marks = self._council.marks
            self._council.fail(min(marks, key=marks.__getitem__), f"has not taken a step for {SILENCE_S:g} s")

    def _report(self, report: Report, fatal: str | None) -> None:
        with self._peers.news:
            self._council.report(0, report, fatal)
            self._peers.news.notify_all()
