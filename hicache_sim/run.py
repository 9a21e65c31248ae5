"""The simulated driver: arrivals, reports and waits of one engine, in SimPy's time.

Rules of this file
- One step handles everything that happens at one instant: whatever comes schedules a step, once.
- A busy scheduler looks up between batches: what comes during a prefill batch waits for its end, a transfer's report
  during decoding for the next token, as it does in upstream's loop.
- A step that has to wait (write_back's eviction) is resumed when its operations have completed. Until then nothing
  reaches the engine but their reports, as upstream's blocked scheduler thread would have it; the wait is a stall.
- Deterministic: the same requests, configuration and seed give the same run, event by event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Protocol

from simpy import Environment
from simpy.events import Event, Timeout

from hicache_ref.control import invariants
from hicache_ref.control.engine import Engine
from hicache_ref.control.log import EntryKind, EventLog
from hicache_ref.control.scheduler import Active
from hicache_ref.control.types import Op, Wait
from workloads.request import Request

from .plane import SimPlane

_LAST = 9
"""SimPy priority of steps: after everything else at the same instant."""


class Stuck(RuntimeError):
    """Requests wait, and nothing is in flight that could wake them: law L5 is broken."""


class Observer(Protocol):
    """Who wants to know: metrics, tables, progress bars."""

    def arrived(self, request: Active) -> None: ...

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
    ) -> None:
        self.env = env
        self.engine = engine
        self.plane = plane
        self.stalls = 0
        self.stalled_s = 0.0
        self._requests = iter(requests)
        self._activate = activate
        self._observer = observer
        self._log = log
        self._check = check
        self._ready: list[Request] = []
        """Arrived, not yet brought to the engine."""
        self._next: Request | None = None
        self._children: dict[int, list[Request]] = {}
        """Closed loop: turns waiting for the end of the one before, by its id."""
        self._ended_s: dict[int, float] = {}
        self._later: list[tuple[float, int, Request]] = []
        self._waiting_for: set[int] = set()
        self._step: Generator[Wait, None, None] | None = None
        self._stalled_since_s = 0.0
        self._scheduled = False
        self._deadline_s: float | None = None
        self._looks_up = False
        plane.wake = self._reported

    def run(self) -> None:
        """Until every request has ended and every transfer with it."""
        self._fetch_next()
        self.env.run()
        if not self.engine.idle or self._waiting_for or self._children:
            raise Stuck(f"at {self.env.now:.6f} s: {len(self.engine.scheduler.requests())} requests can never end")

    # Arrivals

    def _fetch_next(self) -> None:
        """Hold the next request of the workload until its time; those that wait for a parent are put aside."""
        for request in self._requests:
            if request.parent is not None and not self._parent_over(request):
                self._children.setdefault(request.parent, []).append(request)
                continue
            self._next = request
            delay_s = max(request.arrival_s - self.env.now, 0.0)
            Timeout(self.env, delay_s).callbacks.append(self._arrive_next)
            return
        self._next = None

    def _parent_over(self, request: Request) -> bool:
        ended_s = self._ended_s.get(request.parent if request.parent is not None else -1)
        if ended_s is None:
            return False
        request.arrival_s = max(request.arrival_s, ended_s + request.think_s)
        return True

    def _arrive_next(self, _: Event) -> None:
        assert self._next is not None
        self._arrive(self._next)
        self._fetch_next()

    def _release_children(self, parent: Active) -> None:
        for request in self._children.pop(parent.id, ()):
            request.arrival_s = max(request.arrival_s, self.env.now + request.think_s)
            delay_s = request.arrival_s - self.env.now
            Timeout(self.env, delay_s).callbacks.append(lambda _, request=request: self._arrive(request))

    def _arrive(self, request: Request) -> None:
        self._ready.append(request)
        self._arrived()

    # Steps

    def _reported(self, computed: bool) -> None:
        """The plane has something to say: at once if a batch is done or none runs, else at the next token."""
        batch = self.engine.batch
        if computed or batch is None or self._step is not None:
            self._schedule_step()
        elif batch.may_stop and not self._looks_up:
            self._looks_up = True
            Timeout(self.env, self.plane.device.step_s).callbacks.append(self._look_up)

    def _look_up(self, _: Event) -> None:
        self._looks_up = False
        if self.plane.has_reports:
            self._schedule_step()

    def _arrived(self) -> None:
        batch = self.engine.batch
        if batch is None or batch.may_stop:
            self._schedule_step()

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
        self._bring_reports()
        if self._step is not None:
            if self._waiting_for:
                return
            self.stalled_s += self.env.now - self._stalled_since_s
            self._go_on(EntryKind.RESUME)
            return
        self._bring_arrivals()
        self._step = self.engine.step(self.env.now)
        self._go_on(EntryKind.STEP)

    def _go_on(self, kind: EntryKind) -> None:
        """Run the step until it ends or waits, and hand what it has decided to the plane."""
        assert self._step is not None
        if self._log is not None:
            self._log.add(kind, self.env.now)
        wait = next(self._step, None)
        self._waiting_for = set(wait.op_ids) if wait is not None else set()
        for op in self.engine.take_ops():
            if op.__class__ is Op:
                self.plane.submit(op)  # type: ignore[arg-type]
            else:
                self.plane.cancel(op[0])  # type: ignore[arg-type]
        if wait is not None:
            self.stalls += 1
            self._stalled_since_s = self.env.now
            return
        self._step = None
        self._after_step()

    def _after_step(self) -> None:
        if self._check:
            invariants.check(self.engine.cache)
        for request in self.engine.scheduler.take_ended():
            self._observer.ended(request)
            self._ended_s[request.id] = self.env.now
            self._release_children(request)
        self._observer.stepped(self.env.now)
        if self._ready:
            self._arrived()
        self._set_alarm()

    def _bring_reports(self) -> None:
        for event in self.plane.poll():
            if self._log is not None:
                self._log.report(event, self.env.now)
            self.engine.on(event)
            if event.ends:
                self._waiting_for.discard(event.op_id)

    def _bring_arrivals(self) -> None:
        ready, self._ready = self._ready, []
        for request in ready:
            active = self._activate(request)
            if self._log is not None:
                self._log.add(EntryKind.ARRIVE, self.env.now, request.id)
            self._observer.arrived(active)
            self.engine.arrive(active, self.env.now)

    def _set_alarm(self) -> None:
        """Step at the next deadline of a prefetch, if nothing else comes before."""
        deadline_s = self.engine.next_deadline_s()
        if deadline_s is None or deadline_s == self._deadline_s:
            return
        self._deadline_s = deadline_s
        Timeout(self.env, max(deadline_s - self.env.now, 0.0)).callbacks.append(self._on_alarm)

    def _on_alarm(self, _: Event) -> None:
        self._deadline_s = None
        self._schedule_step()


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """Requests by arrival, for sources that are not (a small heap keeps ties in their order)."""
    heap = [(request.arrival_s, number, request) for number, request in enumerate(requests)]
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)[2]
