"""The real driver: the loop of `hicache_ref.drive` in the wall's time, over a plane that moves bytes.

Rules of this file
- One thread brings everything to the engine. It sleeps until the plane reports or something is due.
- A batch or a load that fails ends the run, with the plane's own words: what was computed since cannot be trusted. What
  the store fails at is the control plane's business, and ends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from workloads.request import Request

from ..control.active import Active
from ..control.engine import Engine
from ..control.log import EventLog
from ..control.types import Completion, OpKind, Report
from ..drive.loop import Loop, Observer
from ..plane import DataPlane
from .clock import WallClock

IDLE_S = 60.0
"""The longest sleep: a plane that says nothing for so long is looked at again."""


class RunFailed(RuntimeError):
    """The run cannot go on. One line."""


class WaitingPlane(DataPlane, Protocol):
    """A plane whose reports can be waited for."""

    @property
    def in_flight(self) -> int: ...

    @property
    def errors(self) -> Iterable[Any]:
        """The latest failures: op_id, kind, what."""
        ...

    def wait(self, timeout_s: float | None = None) -> bool: ...


FATAL = (OpKind.COMPUTE, OpKind.LOAD)


class RealRun(Loop):
    """One engine on one real plane. `door`: the plane as the engine sees it, if something stands between them."""

    def __init__(
        self,
        engine: Engine,
        plane: WaitingPlane,
        requests: Iterable[Request],
        activate: Callable[[Request], Active],
        observer: Observer,
        log: EventLog | None = None,
        check: bool = False,
        linked: bool = False,
        max_parallel: int | None = None,
        clock: WallClock | None = None,
        door: DataPlane | None = None,
    ) -> None:
        self.wall = clock or WallClock()
        super().__init__(
            self.wall, engine, door or plane, requests, activate, observer, log, check, linked, max_parallel
        )
        self._waits = plane

    def run(self) -> None:
        """Until every request has ended and every transfer with it. RunFailed: a batch or a load has failed, or nothing
        can happen any more."""
        self.arrivals.start()
        while True:
            self.wall.run_due()
            for event in self.plane.poll():
                self._stop_if_fatal(event)
                self.report(event, self.engine.computes(event.op_id))
            self.wall.run_last()
            due_s = self.wall.next_s()
            if not self._waits.in_flight and not self._waits.wait(0.0):
                if self.arrivals.finished and self.over:
                    return
                if due_s is None:
                    break
            self._waits.wait(IDLE_S if due_s is None else min(due_s, IDLE_S))
        raise RunFailed(f"at {self.wall.now_s():.3f} s: {self.unfinished} requests can never end")

    def _stop_if_fatal(self, event: Report) -> None:
        if isinstance(event, Completion) and event.failed:
            for failure in self._waits.errors:
                if failure.op_id == event.op_id and failure.kind in FATAL:
                    raise RunFailed(f"{failure.kind.name} {failure.op_id} has failed: {failure.what}")
