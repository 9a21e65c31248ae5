"""What happens around an engine, in either world: arrivals and reports reach it, steps are taken, waits waited for.

Rules of this file
- Reports and arrivals reach the engine at once while it decodes or idles; during a prefill batch they wait for its end,
  as they do in upstream's loop, but for the worker threads': a store's answer leads to the fetch at once.
- A step forms the next batch. It is taken when a batch is done, or when something comes and none is computed; once for
  all that happens at one instant.
- A step that has to wait (write_back's eviction) is resumed when its operations have completed. Until then nothing
  reaches the engine but their reports, as upstream's blocked scheduler thread would have it; the wait is a stall.
- Everything that reaches the engine goes into the log first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol

from workloads.request import Request

from ..control import invariants
from ..control.active import Active
from ..control.engine import Engine
from ..control.log import EntryKind, EventLog
from ..control.types import Op, Report, Wait
from ..plane import DataPlane
from .arrivals import Arrivals
from .clock import Clock


class Observer(Protocol):
    """Who wants to know: metrics, tables, progress bars."""

    def admitted(self, request: Active) -> None: ...

    def ended(self, request: Active) -> None: ...

    def stepped(self, now_s: float) -> None: ...


class Loop:
    """One engine on one plane. A driver supplies the clock, and brings the plane's reports to `report`."""

    def __init__(
        self,
        clock: Clock,
        engine: Engine,
        plane: DataPlane,
        requests: Iterable[Request],
        activate: Callable[[Request], Active],
        observer: Observer,
        log: EventLog | None = None,
        check: bool = False,
        linked: bool = False,
        max_parallel: int | None = None,
    ) -> None:
        self.clock = clock
        self.engine = engine
        self.plane = plane
        self.stalls = 0
        self.stalled_s = 0.0
        self.last_s = 0.0
        """When the last thing happened. The clock may stand later, at an alarm that nobody needed any more."""
        self.arrivals = Arrivals(clock, requests, self._arrive, linked, max_parallel)
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

    @property
    def over(self) -> bool:
        """Every request has ended, and no step waits."""
        return self.engine.idle and not self._waiting_for and not self.arrivals.waiting

    @property
    def unfinished(self) -> int:
        """Requests in the engine, and those that wait for one of them."""
        return len(self.engine.scheduler.requests()) + self.arrivals.waiting

    # What comes

    def report(self, event: Report, computed: bool) -> None:
        """The plane reports; `computed`: the end of the batch."""
        now_s = self.last_s = self.clock.now_s()
        if self._log is not None:
            self._log.report(event, now_s)
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
        now_s = self.last_s = self.clock.now_s()
        active = self._activate(request)
        if request.wave:
            self._waves[request.id] = request.wave
        if self._log is not None:
            self._log.add(EntryKind.ARRIVE, now_s, request.id)
        self.engine.arrive(active, now_s)
        self._collect_ended()

    def _tick(self) -> None:
        """Acknowledgements while decoding."""
        now_s = self.clock.now_s()
        if self._log is not None:
            self._log.add(EntryKind.TICK, now_s)
        self.engine.tick(now_s)
        self._submit()

    # Steps

    def _schedule_step(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.clock.last(self._on_step)

    def _on_step(self) -> None:
        self._scheduled = False
        now_s = self.clock.now_s()
        if self._step is not None:
            if not self._waiting_for:
                self.stalled_s += now_s - self._stalled_since_s
                self._go_on(EntryKind.RESUME, now_s)
            return
        if self._ready:
            ready, self._ready = self._ready, []
            for request in ready:
                self._bring(request)
        self._step = self.engine.step(now_s)
        self._go_on(EntryKind.STEP, now_s)

    def _go_on(self, kind: EntryKind, now_s: float) -> None:
        """Run the step until it ends or waits, and hand what it has decided to the plane."""
        assert self._step is not None
        if self._log is not None:
            self._log.add(kind, now_s)
        wait = next(self._step, None)
        if wait is not None:
            self._waiting_for = set(wait.op_ids)
            self._submit()
            self.stalls += 1
            self._stalled_since_s = now_s
            return
        self._step = None
        self._submit()
        self._after_step(now_s)

    def _submit(self) -> None:
        plane = self.plane
        for op in self.engine.take_ops():
            if isinstance(op, Op):
                plane.submit(op)
            else:
                plane.cancel(op.op_id)
        self._set_alarm()

    def _after_step(self, now_s: float) -> None:
        if self._check:
            invariants.check(self.engine.cache)
        for request in self.engine.scheduler.take_admitted():
            self._observer.admitted(request)
        self._collect_ended()
        self._observer.stepped(now_s)
        if self._ready and (self.engine.batch is None or self.engine.batch.may_stop):
            self._schedule_step()

    def _set_alarm(self) -> None:
        """Look again when the first prefetch that a request waits for times out, even if nothing else happens."""
        deadline_s = self.engine.next_deadline_s()
        # One that has passed without effect belongs to a request that others keep from being considered.
        if deadline_s is not None and deadline_s != self._alarm_s and deadline_s > self.clock.now_s():
            self._alarm_s = deadline_s
            self.clock.at(deadline_s, self._on_alarm)

    def _collect_ended(self) -> None:
        for request in self.engine.scheduler.take_ended():
            self._observer.ended(request)
            self.arrivals.ended(request.id, self._waves.pop(request.id, 0))

    def _on_alarm(self) -> None:
        """A prefetch that a request waits for times out."""
        self._alarm_s = None
        batch = self.engine.batch
        if batch is None:
            self._schedule_step()
        elif batch.may_stop and self._step is None:
            self._tick()
