"""The simulated driver: the loop of `hicache_ref.drive` in SimPy's time.

Deterministic: the same requests, configuration and seed give the same run, event by event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from simpy import Environment

from hicache_ref.control.active import Active
from hicache_ref.control.engine import Engine
from hicache_ref.control.log import EventLog
from hicache_ref.drive.loop import Loop, Observer
from workloads.request import Request

from .agenda import Agenda, Call
from .errors import Stuck
from .plane import SimPlane

_LAST = 9
"""SimPy priority of steps: after everything else at the same instant."""


class SimClock:
    """Satisfies `drive.clock.Clock` on a SimPy environment."""

    def __init__(self, env: Environment) -> None:
        self._agenda = Agenda(env)

    def now_s(self) -> float:
        return self._agenda.now_s

    def at(self, time_s: float, then: Callable[[], None]) -> None:
        Call(self._agenda, _delay_s(self._agenda.now_s, time_s), then)

    def last(self, then: Callable[[], None]) -> None:
        Call(self._agenda, 0.0, then, _LAST)


class Simulation(Loop):
    """One engine on one simulated plane."""

    def __init__(
        self,
        env: Environment,
        engine: Engine,
        plane: SimPlane,
        requests: Iterable[Request],
        activate: Callable[[Request], Active],
        observer: Observer,
        log: EventLog | None = None,
        check: bool = False,
        linked: bool = False,
        max_parallel: int | None = None,
        arrival_s: float = 0.0,
    ) -> None:
        """arrival_s: from when a request is due until the engine sees it."""
        super().__init__(SimClock(env), engine, plane, requests, activate, observer, log, check, linked, max_parallel)
        self.env = env
        self._agenda = Agenda(env)
        self._arrival_s = arrival_s
        plane.deliver = self.report

    def _arrive(self, request: Request) -> None:
        if self._arrival_s:
            Call(self._agenda, self._arrival_s, partial(super()._arrive, request))
        else:
            super()._arrive(request)

    def run(self) -> None:
        """Until every request has ended and every transfer with it."""
        self.arrivals.start()
        self._agenda.run()
        if not self.over:
            raise Stuck(f"at {self.env.now:.6f} s: {self.unfinished} requests can never end")


def _delay_s(now_s: float, at_s: float) -> float:
    """The delay that ends at `at_s` or just after: a deadline that is met a rounding too early never passes."""
    delay_s = max(at_s - now_s, 0.0)
    while now_s + delay_s < at_s:
        delay_s = math.nextafter(delay_s + math.ulp(now_s), math.inf)
    return delay_s
