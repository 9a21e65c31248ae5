"""Copies between L1 and L2 on their streams, and the fence between a load and the batch that reads it.

Rules of this file
- A load has an event a layer. A batch waits, before layer i touches the pool, for layer i of the loads it was given,
  and for nothing else. A load that fails lets go of all its events and makes those who waited fail with it.
- A copy starts after the forward that was under way at its submit (upstream's #20611 and #38463: bytes copied before
  the forward that makes them). What it copies is older still, in the engine's order of things; the wait makes sure.
- Three loads may be on their way on the device, as upstream has three producers; the fourth waits for the first, where
  upstream asserts. Events are each load's own: a batch still waiting for an old load cannot mistake a new one for it.
- Source: article 2.3, 2.4; `LayerDoneCounter` and `LayerLoadingEvent` of `cache_controller.py` 0.5.7.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..control.types import Op, Slots
from .streams import Event, Stream

PRODUCERS = 3
"""Loads on their way at a time."""

BeforeLayer = Callable[[int], None]
"""Called with i before layer i of a forward touches the pool."""


class LoadPlan(Protocol):
    """One load, cut into parts. `parts`: one a layer, or 1 where an operator brings all layers at once."""

    @property
    def parts(self) -> int: ...

    def layer(self, layer: int, /) -> None: ...


class BackupPlan(Protocol):
    def run(self) -> None: ...


class Copies(Protocol):
    """Makes plans. `copy.Copier` does; so does whatever a test puts around one."""

    def load(self, host_pages: Slots, device_pages: Slots, /) -> LoadPlan: ...

    def backup(self, device_pages: Slots, host_pages: Slots, /) -> BackupPlan: ...


class LoadFailed(RuntimeError):
    """A batch was to read pages whose load has failed."""


class Ended(NamedTuple):
    """How an operation went. `start_s` None: its turn never came."""

    op: Op
    pages_ok: int
    start_s: float | None
    error: BaseException | None = None


class Arrival:
    """One load, as the batch sees it that reads what it brings."""

    def __init__(self, op_id: int, events: Sequence[Event]) -> None:
        self.op_id = op_id
        self.error: BaseException | None = None
        self._events = events
        self._reported = threading.Event()

    def landed(self, part: int, parts: int) -> None:
        """By the load's job: part `part` of `parts` has been launched, which brings its share of the layers."""
        layers = len(self._events)
        for event in self._events[part * layers // parts : (part + 1) * layers // parts]:
            event.record()

    def over(self, error: BaseException | None) -> None:
        """Nothing more will come, and the load has been reported."""
        self.error = error
        for event in self._events:
            event.release()
        self._reported.set()

    def fence(self, reader: Stream) -> BeforeLayer:
        """What a job of `reader` calls before each layer. Raises LoadFailed."""

        def before_layer(layer: int) -> None:
            reader.wait(self._events[layer])
            self.check()

        return before_layer

    def reported(self) -> None:
        """Wait until the load has been reported. Raises LoadFailed."""
        self._reported.wait()
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise LoadFailed(f"LOAD {self.op_id} has failed: {self.error}")


class Producers:
    """Places for the loads on their way, taken in turn."""

    def __init__(self, count: int = PRODUCERS) -> None:
        self._places = [threading.Event() for _ in range(count)]
        self._taken = 0
        for place in self._places:
            place.set()

    def take(self) -> threading.Event:
        """The next place, once the load that had it is over. Set it when this one is."""
        place = self._places[self._taken % len(self._places)]
        self._taken += 1
        place.wait()
        place.clear()
        return place


class LoadJob:
    """One LOAD on the load stream."""

    def __init__(self, loads: Loads, op: Op, after: Event, arrival: Arrival) -> None:
        self.arrival = arrival
        self._loads = loads
        self._op = op
        self._after = after
        self._start_s: float | None = None
        self._place: threading.Event | None = None
        self._plan: LoadPlan | None = None
        """Kept until the end: it holds the index tensors the device reads."""

    def run(self) -> None:
        loads, op = self._loads, self._op
        assert op.src is not None and op.dst is not None
        loads.stream.wait(self._after)
        self._place = loads.producers.take()
        self._start_s = loads.clock()
        self._plan = plan = loads.copier.load(op.src, op.dst)
        for part in range(plan.parts):
            plan.layer(part)
            self.arrival.landed(part, plan.parts)

    def ended(self, error: BaseException | None) -> None:
        # Reported first, so that who fails with it is seen to fail after it.
        self._loads.report(Ended(self._op, self._op.pages if error is None else 0, self._start_s, error))
        self.arrival.over(error)
        del self._loads.arrivals[self._op.id]
        if self._place is not None:
            self._place.set()


class Loads:
    """L2 to L1, layer by layer."""

    def __init__(
        self,
        stream: Stream,
        copier: Copies,
        layers: int,
        clock: Callable[[], float],
        report: Callable[[Ended], None],
    ) -> None:
        self.stream = stream
        self.copier = copier
        self.layers = layers
        self.clock = clock
        self.report = report
        self.producers = Producers()
        self.arrivals: dict[int, Arrival] = {}
        """Loads that have not been reported yet."""

    def start(self, op: Op, after: Event) -> None:
        """Load `op`, not before `after`."""
        arrival = Arrival(op.id, [self.stream.event() for _ in range(self.layers)])
        self.arrivals[op.id] = arrival
        self.stream.run(LoadJob(self, op, after, arrival))


class BackupJob:
    """One BACKUP on the write stream."""

    def __init__(self, backups: Backups, op: Op, after: Event) -> None:
        self._backups = backups
        self._op = op
        self._after = after
        self._start_s: float | None = None
        self._plan: BackupPlan | None = None

    def run(self) -> None:
        backups, op = self._backups, self._op
        assert op.src is not None and op.dst is not None
        backups.stream.wait(self._after)
        self._start_s = backups.clock()
        self._plan = backups.copier.backup(op.src, op.dst)
        self._plan.run()

    def ended(self, error: BaseException | None) -> None:
        self._backups.report(Ended(self._op, self._op.pages if error is None else 0, self._start_s, error))


class Backups:
    """L1 to L2."""

    def __init__(
        self, stream: Stream, copier: Copies, clock: Callable[[], float], report: Callable[[Ended], None]
    ) -> None:
        self.stream = stream
        self.copier = copier
        self.clock = clock
        self.report = report

    def start(self, op: Op, after: Event) -> None:
        """Copy `op` to the host, not before `after`."""
        self.stream.run(BackupJob(self, op, after))
