"""Planes that stand before a plane and note what passes: what its store has, what was decided.

A store is asked, never remembered, by whoever decides (article 3.3). This is for reports only, which have to say why a
page was not fetched: because it was not there, or for another reason.
"""

from __future__ import annotations

from collections.abc import Callable

from ..control.log import Fingerprint
from ..control.types import Cancel, Completion, Op, OpKind, Report
from ..plane import DataPlane
from .texts import Texts


class StoreWatch:
    """A plane that passes everything on, and notes what its store says. `page in watch`: believed to be stored."""

    def __init__(self, plane: DataPlane, texts: Texts) -> None:
        self._plane = plane
        self.capabilities = plane.capabilities
        self._texts = texts
        self.stored: Callable[[list[int]], None] = lambda atoms: None
        """Told the atoms of every page that the store has taken."""
        self._names: set[str] = set()
        self._asked: dict[int, Op] = {}

    def __contains__(self, atom: object) -> bool:
        return isinstance(atom, int) and self._texts.name(atom) in self._names

    def __len__(self) -> int:
        return len(self._names)

    def submit(self, op: Op) -> None:
        if op.kind in _NOTES:
            self._asked[op.id] = op
        self._plane.submit(op)

    def cancel(self, op_id: int) -> None:
        self._plane.cancel(op_id)

    def poll(self) -> list[Report]:
        reports = self._plane.poll()
        for report in reports:
            if isinstance(report, Completion) and report.op_id in self._asked:
                op = self._asked.pop(report.op_id)
                _NOTES[op.kind](self, op, report)
        return reports

    def _note_stored(self, op: Op, end: Completion) -> None:
        good = op.keys[: end.pages_ok]
        self._names.update(good)
        self.stored(self._texts.atoms(good))

    def _note_found(self, op: Op, end: Completion) -> None:
        self._names.update(op.keys[: end.pages_ok])
        if end.pages_ok < op.pages and not end.failed:
            self._names.discard(op.keys[end.pages_ok])

    def _note_cleared(self, op: Op, end: Completion) -> None:
        self._names.clear()


class OpWatch:
    """A plane that passes everything on, and takes the fingerprint of what was decided."""

    def __init__(self, plane: DataPlane, fingerprint: Fingerprint) -> None:
        self._plane = plane
        self.capabilities = plane.capabilities
        self._fingerprint = fingerprint
        self.poll = plane.poll

    def submit(self, op: Op) -> None:
        self._fingerprint.add(op)
        self._plane.submit(op)

    def cancel(self, op_id: int) -> None:
        self._fingerprint.add(Cancel(op_id))
        self._plane.cancel(op_id)


_NOTES: dict[OpKind, Callable[[StoreWatch, Op, Completion], None]] = {
    OpKind.STORE: StoreWatch._note_stored,
    OpKind.PROBE: StoreWatch._note_found,
    OpKind.CLEAR: StoreWatch._note_cleared,
}
