"""The simulated driver: arrivals, reports and waits of one engine, in SimPy's time.

Rules of this file
- Reports and arrivals reach the engine at once while it decodes or idles; during a prefill batch they wait for its end,
  as they do in upstream's loop, but for the worker threads': a store's answer leads to the fetch at once.
- A step forms the next batch. It is taken when a batch is done, or when something comes and none is computed; once for
  all that happens at one instant.
- A step that has to wait (write_back's eviction) is resumed when its operations have completed. Until then nothing
  reaches the engine but their reports, as upstream's blocked scheduler thread would have it; the wait is a stall.
- Deterministic: the same requests, configuration and seed give the same run, event by event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

from simpy import Environment
from simpy.events import Event, Timeout

from hicache_ref.control import invariants
from hicache_ref.control.active import Active
from hicache_ref.control.engine import Engine
from hicache_ref.control.log import EntryKind, EventLog
from hicache_ref.control.types import Op, Report, Wait
from workloads.request import Request

from .arrivals import Arrivals
from .errors import Stuck
from .plane import SimPlane

_LAST: Any = 9
"""SimPy priority of steps: after everything else at the same instant."""


class Observer(Protocol):
    """Who wants to know: metrics, tables, progress bars."""

    def admitted(self, request: Active) -> None: ...

    def ended(self, request: Active) -> None: ...

    def stepped(self, now_s: float) -> None: ...


class Simulation:
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
    ) -> None:
        self.env = env
        self.engine = engine
        self.plane = plane
        self.stalls = 0
        self.stalled_s = 0.0
        self.last_s = 0.0
        """When the last thing happened. SimPy's clock may stand later, at an alarm that nobody needed any more."""
        self.arrivals = Arrivals(env, requests, self._arrive, linked, max_parallel)
        self._activate = activate
        self._observer = observer
        self._log = log
        self._check = check
        self._ready: list[Request] = []
        """Arrived, not yet brought to the engine."""
        self._waves: dict[int, int] = {}
        self._waiting_for: set[int] = set()
        self._step: Generator[Wait, None, None] | None = None
        self._stalled_since_s = 0.0
        self._scheduled = False
        self._alarm_s: float | None = None
        plane.deliver = self._report

    def run(self) -> None:
        """Until every request has ended and every transfer with it."""
        self.arrivals.start()
        self.env.run()
        if not self.engine.idle or self._waiting_for or self.arrivals.waiting:
            waiting = len(self.engine.scheduler.requests()) + self.arrivals.waiting
            raise Stuck(f"at {self.env.now:.6f} s: {waiting} requests can never end")

    # What comes

    def _report(self, event: Report, computed: bool) -> None:
        """The plane reports."""
        self.last_s = self.env.now
        if self._log is not None:
            self._log.report(event, self.env.now)
        self.engine.on(event)
        if self._step is not None:
            self._submit()
            if event.ends:
                self._waiting_for.discard(event.op_id)
                if not self._waiting_for:
                    self._schedule_step()
            return
        batch = self.engine.batch
        if computed or batch is None:
            self._schedule_step()
        elif batch.may_stop and self.engine.wants_tick:
            self._tick()
        else:
            self._submit()

    def _arrive(self, request: Request) -> None:
        """A request of the workload is due."""
        batch = self.engine.batch
        if self._step is not None or (batch is not None and not batch.may_stop) or self._scheduled:
            self._ready.append(request)
            return
        self._bring(request)
        if batch is None:
            self._schedule_step()
        else:
            self._submit()

    def _bring(self, request: Request) -> None:
        self.last_s = self.env.now
        active = self._activate(request)
        if request.wave:
            self._waves[request.id] = request.wave
        if self._log is not None:
            self._log.add(EntryKind.ARRIVE, self.env.now, request.id)
        self.engine.arrive(active, self.env.now)
        self._collect_ended()

    def _tick(self) -> None:
        """Acknowledgements while decoding."""
        if self._log is not None:
            self._log.add(EntryKind.TICK, self.env.now)
        self.engine.tick(self.env.now)
        self._submit()

    # Steps

    def _schedule_step(self) -> None:
        if self._scheduled:
            return
        self._scheduled = True
        event = Event(self.env)
        event.callbacks.append(self._on_step)
        event._ok, event._value = True, None
        self.env.schedule(event, priority=_LAST)

    def _on_step(self, _: Event) -> None:
        self._scheduled = False
        if self._step is not None:
            if not self._waiting_for:
                self.stalled_s += self.env.now - self._stalled_since_s
                self._go_on(EntryKind.RESUME)
            return
        if self._ready:
            ready, self._ready = self._ready, []
            for request in ready:
                self._bring(request)
        self._step = self.engine.step(self.env.now)
        self._go_on(EntryKind.STEP)

    def _go_on(self, kind: EntryKind) -> None:
        """Run the step until it ends or waits, and hand what it has decided to the plane."""
        assert self._step is not None
        if self._log is not None:
            self._log.add(kind, self.env.now)
        wait = next(self._step, None)
        if wait is not None:
            self._waiting_for = set(wait.op_ids)
            self._submit()
            self.stalls += 1
            self._stalled_since_s = self.env.now
            return
        self._step = None
        self._submit()
        self._after_step()

    def _submit(self) -> None:
        plane = self.plane
        for op in self.engine.take_ops():
            if op.__class__ is Op:
                plane.submit(op)
            else:
                plane.cancel(op[0])
        self._set_alarm()

    def _after_step(self) -> None:
        if self._check:
            invariants.check(self.engine.cache)
        for request in self.engine.scheduler.take_admitted():
            self._observer.admitted(request)
        self._collect_ended()
        self._observer.stepped(self.env.now)
        if self._ready and (self.engine.batch is None or self.engine.batch.may_stop):
            self._schedule_step()

    def _set_alarm(self) -> None:
        """Look again when the first prefetch that a request waits for times out, even if nothing else happens."""
        deadline_s = self.engine.next_deadline_s()
        # One that has passed without effect belongs to a request that others keep from being considered.
        if deadline_s is not None and deadline_s != self._alarm_s and deadline_s > self.env.now:
            self._alarm_s = deadline_s
            Timeout(self.env, _delay_s(self.env.now, deadline_s)).callbacks.append(self._on_alarm)

    def _collect_ended(self) -> None:
        for request in self.engine.scheduler.take_ended():
            self._observer.ended(request)
            self.arrivals.ended(request.id, self._waves.pop(request.id, 0))

    def _on_alarm(self, _: Event) -> None:
        """A prefetch that a request waits for times out."""
        self._alarm_s = None
        batch = self.engine.batch
        if batch is None:
            self._schedule_step()
        elif batch.may_stop and self._step is None:
            self._tick()


def _delay_s(now_s: float, at_s: float) -> float:
    """The delay that ends at `at_s` or just after: a deadline that is met a rounding too early never passes."""
    delay_s = max(at_s - now_s, 0.0)
    while now_s + delay_s < at_s:
        delay_s = math.nextafter(delay_s + math.ulp(now_s), math.inf)
    return delay_s
