"""What all ranks have reported, as one plane's reports.

Rules of this file
- An operation ends when it has ended on every rank, with the fewest good pages of any; it has failed or lingers if it
  has on one. Its progress is the least of theirs. So whatever every rank reports before another thing, a load before
  its batch, stays before it.
- Nothing here waits or knows of processes: reports go in, reports come out.
- Source: article 5.5, its MIN and MAX reductions as one rule.
"""

from __future__ import annotations

from ..control.types import Completion, Progress, Released, Report


class _Op:
    """What the ranks have said of one operation."""

    __slots__ = ("ends", "held", "pages", "told")

    def __init__(self, size: int) -> None:
        self.pages = [0] * size
        """Good pages, by rank, as far as is known."""
        self.told = 0
        """Progress that everybody knows of."""
        self.ends: dict[int, Completion] = {}
        self.held: set[int] = set()
        """Ranks on which a call that hangs may still touch its pages."""


class Agreement:
    """Reports of `size` ranks in, agreed reports out."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ops: dict[int, _Op] = {}

    @property
    def open(self) -> int:
        """Operations on which some rank has reported, and not all have said the last."""
        return len(self._ops)

    def tell(self, rank: int, report: Report) -> Report | None:
        """`rank` has reported. What has come true for all ranks with that, if anything."""
        op = self._ops.get(report.op_id)
        if op is None:
            op = self._ops[report.op_id] = _Op(self._size)
        if isinstance(report, Progress):
            return self._further(op, rank, report)
        if isinstance(report, Completion):
            return self._ended(op, rank, report)
        return self._released(op, rank, report)

    def _further(self, op: _Op, rank: int, report: Progress) -> Progress | None:
        op.pages[rank] = report.pages_ok
        least = min(op.pages)
        if least <= op.told:
            return None
        op.told = least
        return Progress(report.op_id, least)

    def _ended(self, op: _Op, rank: int, report: Completion) -> Completion | None:
        op.pages[rank] = report.pages_ok
        op.ends[rank] = report
        if report.lingers:
            op.held.add(rank)
        if len(op.ends) < self._size:
            return None
        if not op.held:
            del self._ops[report.op_id]
        failed = any(end.failed for end in op.ends.values())
        return Completion(report.op_id, min(op.pages), failed, lingers=bool(op.held))

    def _released(self, op: _Op, rank: int, report: Released) -> Released | None:
        op.held.discard(rank)
        if op.held or len(op.ends) < self._size:
            return None
        del self._ops[report.op_id]
        return report
