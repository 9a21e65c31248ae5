"""The event log: rows of plain numbers that say everything that was brought to an engine."""

from __future__ import annotations

from hicache_ref.control.log import Entry, EntryKind, EventLog
from hicache_ref.control.types import Completion, Progress

from .lives import life


def test_rows():
    log = EventLog()
    log.add(EntryKind.ARRIVE, 0.5, 7)
    log.add(EntryKind.STEP, 0.5)
    log.report(Progress(3, 2), 1.0)
    log.report(Completion(3, 5), 2.0)
    log.report(Completion(4, 1, failed=True), 2.5)
    assert list(log.entries()) == [
        Entry(EntryKind.ARRIVE, 0.5, 7, 0),
        Entry(EntryKind.STEP, 0.5, 0, 0),
        Entry(EntryKind.PROGRESS, 1.0, 3, 2),
        Entry(EntryKind.COMPLETION, 2.0, 3, 5),
        Entry(EntryKind.FAILURE, 2.5, 4, 1),
    ]
    assert len(log) == 5
    log.clear()
    assert len(log) == 0
    assert list(log.entries()) == []


def test_every_kind_of_entry_is_replayed():
    """Each of these lives has been replayed at its end: together they have all kinds of rows."""
    kinds = {entry.kind for seed in range(40) for entry in life(seed).log.entries()}
    assert kinds == set(EntryKind)
