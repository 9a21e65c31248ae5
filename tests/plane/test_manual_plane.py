"""The plane of tests, whose operations end when a test says so, is one too: here time says it, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from hicache_ref.control.types import Completion, Op, OpKind, Progress
from hicache_ref.plane import Capabilities
from hicache_ref.testing.memory import Identities, ShadowMemory
from hicache_ref.testing.plane import ManualPlane, ModelStore

from .contract import Bench, PlaneContract

SLOTS = Bench.slots
PAGE = 7
"""What every page that is stored holds."""


class Timed:
    """`ManualPlane` as a `DataPlane`: each kind does its operations in turn, a decode step or 100 pages a turn."""

    capabilities = Capabilities(page_bytes=1, layers=1, ranks=1, storage=True)

    def __init__(self) -> None:
        self.manual = ManualPlane(ShadowMemory(SLOTS, SLOTS, Identities()), ModelStore(lambda name: PAGE))
        self.reports: list[Completion | Progress] = []
        self.done: dict[int, int] = {}

    def submit(self, op: Op) -> None:
        if op.kind is OpKind.STORE:
            self.manual.memory.l2[op.src] = PAGE
        self.manual.submit(op, read_early=op.kind is OpKind.STORE)

    def cancel(self, op_id: int) -> None:
        self.manual.cancel(op_id)

    def poll(self) -> list[Completion | Progress]:
        reports, self.reports = self.reports, []
        return reports

    def turn(self) -> bool:
        """The first operation of each kind gets on; whether there was any."""
        first = list(self._first_of_each_kind())
        for op in first:
            self._get_on(op)
        return bool(first)

    def _first_of_each_kind(self) -> Iterator[Op]:
        kinds = set()
        for flight in list(self.manual.in_flight.values()):
            waits = flight.op.kind is OpKind.COMPUTE and any(
                at in self.manual.in_flight for at in flight.op.batch.loads
            )
            if flight.op.kind not in kinds and not waits:
                kinds.add(flight.op.kind)
                yield flight.op

    def _get_on(self, op: Op) -> None:
        at = self.done[op.id] = self.done.get(op.id, 0) + (1 if op.kind is OpKind.COMPUTE else 100)
        flight = self.manual.in_flight[op.id]
        stopped = flight.cancelled and (op.kind is OpKind.FETCH or (op.kind is OpKind.COMPUTE and op.batch.may_stop))
        if at >= op.pages or stopped:
            if op.kind is OpKind.CLEAR:
                self.manual.store.pages.clear()
            self.reports.append(self.manual.complete(op.id, at))
        elif op.kind is OpKind.FETCH:
            self.reports.append(self.manual.progress(op.id, at))


class ManualBench(Bench):
    """A turn takes 10 milliseconds."""

    def __init__(self) -> None:
        self.timed = Timed()
        super().__init__(self.timed)

    def let(self, seconds: float) -> None:
        for _ in range(int(min(seconds, 1.0) / 0.01)):
            self.timed.turn()

    def finish(self) -> None:
        while self.timed.turn():
            pass


class TestManualPlane(PlaneContract):
    def bench(self, seed: int = 0) -> Bench:
        return ManualBench()
