"""The event log of a run: what was brought to the engine, in order. It is what a run is a function of (law L6).

Rules of this file
- Entries: a request arrives or is aborted, a plane reports, the engine steps or ticks. Nothing else reaches an
  engine, so a log and its requests replay anywhere to the identical list of operations.
- Entries are rows of plain numbers; drivers put them into files. Requests are named by their id and come from the
  trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from .active import Active
from .engine import Engine
from .types import Cancel, Completion, Op, Progress, Released, Report


class EntryKind(IntEnum):
    ARRIVE = 0
    ABORT = 1
    COMPLETION = 2
    FAILURE = 3
    PROGRESS = 4
    STEP = 5
    RESUME = 6
    """A step that waited goes on."""
    TICK = 7
    CLEAR = 8
    """L3 is emptied."""
    LINGER = 9
    """A failure after which the plane may still touch the operation's pages."""
    RELEASED = 10
    """It touches them no more."""


class Entry(NamedTuple):
    """One row. `subject`: a request or an operation; `pages`: how many are good."""

    kind: int
    at_s: float
    subject: int
    pages: int


class EventLog:
    """Columns of entries, appended to. Lists: an array would look at the type of every number."""

    def __init__(self) -> None:
        self.kinds: list[EntryKind] = []
        self.times_s: list[float] = []
        self.subjects: list[int] = []
        self.pages: list[int] = []

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, kind: EntryKind, at_s: float, subject: int = 0, pages: int = 0) -> None:
        self.kinds.append(kind)
        self.times_s.append(at_s)
        self.subjects.append(subject)
        self.pages.append(pages)

    def report(self, event: Report, at_s: float) -> None:
        if isinstance(event, Released):
            self.add(EntryKind.RELEASED, at_s, event.op_id)
            return
        if isinstance(event, Progress):
            kind = EntryKind.PROGRESS
        elif event.lingers:
            kind = EntryKind.LINGER
        else:
            kind = EntryKind.FAILURE if event.failed else EntryKind.COMPLETION
        self.add(kind, at_s, event.op_id, event.pages_ok)

    def entries(self) -> Iterator[Entry]:
        return map(Entry, self.kinds, self.times_s, self.subjects, self.pages)

    def clear(self) -> None:
        """Forget what has been written away."""
        del self.kinds[:], self.times_s[:], self.subjects[:], self.pages[:]


class Fingerprint:
    """A digest of a run's operations, in order: equal for equal decisions (law L6)."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, op: Op | Cancel) -> None:
        words: list[object] = [op.op_id] if isinstance(op, Cancel) else [op.id, int(op.kind), op.pages, *op.keys]
        if isinstance(op, Op):
            for slots in (op.src, op.dst):
                words += ["-"] if slots is None else slots.tolist()
            if op.batch is not None:
                words += [(request.id, before, new) for request, before, new in op.batch.parts()]
                words += op.batch.loads
        self._hash.update(repr(words).encode())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def replay(entries: Iterable[Entry], engine: Engine, request: Callable[[int, float], Active]) -> Iterator[Op | Cancel]:
    """Bring a log to a fresh engine; the operations it decides, in order. `request(id, arrival_s)` makes requests."""
    step: Iterator[object] | None = None
    for entry in entries:
        match entry.kind:
            case EntryKind.ARRIVE:
                engine.arrive(request(entry.subject, entry.at_s), entry.at_s)
                yield from engine.take_ops()
            case EntryKind.ABORT:
                engine.abort(entry.subject, entry.at_s)
                yield from engine.take_ops()
            case EntryKind.CLEAR:
                engine.clear_storage()
                yield from engine.take_ops()
            case EntryKind.TICK:
                engine.tick(entry.at_s)
                yield from engine.take_ops()
            case EntryKind.COMPLETION | EntryKind.FAILURE | EntryKind.LINGER:
                failed, lingers = entry.kind != EntryKind.COMPLETION, entry.kind == EntryKind.LINGER
                engine.on(Completion(entry.subject, entry.pages, failed, lingers))
                yield from engine.take_ops()
            case EntryKind.RELEASED:
                engine.on(Released(entry.subject))
            case EntryKind.PROGRESS:
                engine.on(Progress(entry.subject, entry.pages))
            case _:
                step = engine.step(entry.at_s) if entry.kind == EntryKind.STEP else step
                assert step is not None
                next(step, None)
                yield from engine.take_ops()
