"""What the ranks of one run have said so far, on rank 0: reports, fingerprints, figures, and how far each has come.

Rules of this file
- One for each run, there before any rank can say anything. The caller holds the lock; nothing here waits.
- Of what has gone wrong the first is kept, but a death comes before what it has made others say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..control.types import Report
from .agreement import Agreement
from .seats import Figures


class Council:
    """Of `size` ranks. name_of: a rank, for people."""

    def __init__(self, size: int, name_of: Callable[[int], str]) -> None:
        self._size = size
        self._name_of = name_of
        self._agreement = Agreement(size)
        self._fresh: list[Report] = []
        self._failed: str | None = None
        self.died: str | None = None
        self.here: set[int] = set()
        """Followers that have understood what to do."""
        self.marks = dict.fromkeys(range(1, size), -1)
        """The round of each follower's last fingerprint."""
        self._digests: dict[int, dict[int, str]] = {}
        """Fingerprints by round and rank, until all have given theirs."""
        self.figures: dict[int, Figures] = {}
        self.done: set[int] = set()
        """Followers that have finished."""
        self._messages: dict[str, Callable[..., None]] = {
            "here": self.here.add,
            "report": self.report,
            "mark": self.mark,
            "figures": self.figures.__setitem__,
            "done": self.done.add,
            "failed": self.fail,
        }

    @property
    def failure(self) -> str | None:
        """Why the run cannot go on: one line, that begins with the rank."""
        return self.died or self._failed

    def hear(self, rank: int, name: str, *what: Any) -> None:
        """A message of a follower."""
        self._messages[name](rank, *what)

    def report(self, rank: int, report: Report, fatal: str | None) -> None:
        """A rank's plane has reported; `fatal`: why the run cannot go on after that."""
        if fatal is not None:
            self.fail(rank, fatal)
            return
        agreed = self._agreement.tell(rank, report)
        if agreed is not None:
            self._fresh.append(agreed)

    def mark(self, rank: int, at_round: int, digest: str) -> None:
        """What a rank has decided by that round."""
        if rank in self.marks:
            self.marks[rank] = at_round
        digests = self._digests.setdefault(at_round, {})
        digests[rank] = digest
        other = next((each for each in digests if digests[each] != digest), None)
        if other is not None:
            self.fail(max(rank, other), f"has decided otherwise than rank {min(rank, other)} by round {at_round} (L9)")
        elif len(digests) == self._size:
            del self._digests[at_round]

    def fail(self, rank: int, line: str) -> None:
        """The run has failed on `rank`."""
        if self._failed is None:
            self._failed = f"{self._name_of(rank)}: {line}"

    def died_of(self, rank: int, how: str) -> None:
        """The process of a rank has ended."""
        if self.died is None:
            self.died = f"{self._name_of(rank)} died: {how}"

    @property
    def has_news(self) -> bool:
        return bool(self._fresh)

    def take(self) -> list[Report]:
        """What has been agreed on since the last call, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh
