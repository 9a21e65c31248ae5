"""A data plane in a test's hands: nothing completes before the test says so, and how.

Rules of this file
- The plane is as hostile as the protocol lets it be. It spoils a destination when it takes an operation and again
  where it does not complete it; it reads a source when it takes the operation, or only when that ends.
- It never decides: which operation ends, how far it came, what the store forgets, all that is said by the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..control.invariants import LawBroken
from ..control.types import Completion, Op, OpKind, Progress, Released, Slots
from .memory import GARBAGE, ShadowMemory


class ModelStore:
    """L3 that may forget pages, refuse writes, and answer probes with pages it does not have."""

    def __init__(self, page_called: Callable[[Any], int]) -> None:
        self.pages: dict[Any, int] = {}
        """Identity of the page behind each name."""
        self.lies: set[Any] = set()
        """Names it claims to have and cannot deliver."""
        self.refusing = False
        self._page_called = page_called

    def claimed(self, names: Sequence[Any]) -> int:
        """Leading pages a probe is told of."""
        return _leading(names, lambda name: name in self.pages or name in self.lies)

    def put(self, name: Any, page: int) -> None:
        """Keep a page. Its name must be its own: a wrong one would be served to everybody."""
        if page != self._page_called(name):
            raise LawBroken(f"L10: page {page} stored under the name of page {self._page_called(name)}")
        self.pages.setdefault(name, page)

    def drop(self, count: int) -> None:
        """Forget the oldest pages."""
        for name in list(self.pages)[:count]:
            del self.pages[name]


class Flight:
    """An operation in flight: the leading `good` pages have arrived; `source` is what was read, if it was already."""

    __slots__ = ("cancelled", "good", "op", "source")

    def __init__(self, op: Op, source: list[int] | None) -> None:
        self.op = op
        self.source = source
        self.good = 0
        self.cancelled = False


class ManualPlane:
    """Operations in flight over shadow memory and a model store."""

    def __init__(self, memory: ShadowMemory, store: ModelStore) -> None:
        self.memory = memory
        self.store = store
        self.in_flight: dict[int, Flight] = {}
        self.lingering: dict[int, Flight] = {}
        """Operations that have ended, whose hanging calls may still touch their pages."""

    def submit(self, op: Op, read_early: bool) -> None:
        """Take an operation. `read_early`: its source is read now, else when it ends."""
        self.in_flight[op.id] = Flight(op, self._read(op) if read_early else None)
        if op.dst is not None:
            self._destination(op)[op.dst] = GARBAGE

    def cancel(self, op_id: int) -> None:
        """The wish that an operation end early."""
        if op_id in self.in_flight:
            self.in_flight[op_id].cancelled = True

    def most(self, op_id: int) -> int:
        """Pages that could be good if the operation ended now."""
        flight = self.in_flight[op_id]
        if flight.op.kind is OpKind.PROBE:
            return self.store.claimed(flight.op.keys)
        if flight.op.kind is OpKind.STORE and self.store.refusing:
            return 0
        if flight.op.kind is OpKind.FETCH:
            there = _leading(self._source(flight), lambda page: page != GARBAGE)
            return max(there, flight.good)
        return flight.op.pages

    def progress(self, op_id: int, pages: int) -> Progress:
        """`pages` leading pages have arrived, no fewer than before."""
        flight = self.in_flight[op_id]
        self._deliver(flight, max(min(pages, self.most(op_id)), flight.good))
        return Progress(op_id, flight.good)

    def may_linger(self, op_id: int) -> bool:
        """Whether it is a call to a store, which can hang."""
        return self.in_flight[op_id].op.kind in (OpKind.FETCH, OpKind.STORE)

    def complete(self, op_id: int, pages: int | None = None, lingers: bool = False) -> Completion:
        """The operation ends with `pages` good ones, or with all there can be. `lingers`: a call still hangs."""
        flight = self.in_flight[op_id]
        most = self.most(op_id)
        self._deliver(flight, most if pages is None else max(min(pages, most), flight.good))
        if flight.op.dst is not None:
            self._destination(flight.op)[flight.op.dst[flight.good :]] = GARBAGE
        del self.in_flight[op_id]
        lingers = lingers and flight.good < flight.op.pages
        if lingers:
            self.lingering[op_id] = flight
        return Completion(op_id, flight.good, flight.good < flight.op.pages, lingers)

    def release(self, op_id: int) -> Released:
        """The hanging call has returned: what it wrote is worth nothing, what it read is stored."""
        flight = self.lingering.pop(op_id)
        if flight.op.dst is not None:
            self._destination(flight.op)[flight.op.dst[flight.good :]] = GARBAGE
        else:
            self._deliver(flight, flight.op.pages)
        return Released(op_id)

    def _deliver(self, flight: Flight, pages: int) -> None:
        """Pages that have arrived are not touched again, nor can they be taken back."""
        op, news = flight.op, slice(flight.good, pages)
        flight.good = pages
        if op.kind is OpKind.STORE:
            for name, page in zip(op.keys[news], self._source(flight)[news], strict=True):
                self.store.put(name, page)
        elif op.dst is not None:
            self._destination(op)[op.dst[news]] = self._source(flight)[news]

    def _source(self, flight: Flight) -> list[int]:
        return self._read(flight.op) if flight.source is None else flight.source

    def _read(self, op: Op) -> list[int]:
        if op.kind is OpKind.FETCH:
            return [self.store.pages.get(name, GARBAGE) for name in op.keys]
        if op.src is None:
            return []
        level = self.memory.l1 if op.kind is OpKind.BACKUP else self.memory.l2
        pages: list[int] = level[op.src].tolist()
        return pages

    def _destination(self, op: Op) -> Slots:
        return self.memory.l1 if op.kind is OpKind.LOAD else self.memory.l2


def _leading(items: Sequence[Any], holds: Callable[[Any], bool]) -> int:
    """How many leading items pass."""
    return next((at for at, item in enumerate(items) if not holds(item)), len(items))
