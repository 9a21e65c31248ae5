"""A prefetch threshold that is learned: which lengths of span are worth asking L3 for.

Upstream asks for spans of at least `prefetch_threshold` tokens, 256 unless told otherwise, whatever comes of it (SGLang
PR #26449 asks which threshold to take; issues #12809 and #31600 are prefetches that cost more than they bring).

Rules of this file
- What is remembered belongs to one storage side and is a function of what it was told: no clock, no chance.
- Spans are put together by length, each class from a power of two pages to the next. Of each class a running mean says
  what share of the pages asked for was there when the request went on.
"""

from __future__ import annotations

from ..control.storage import PrefetchLimits


class LearnedLimits(PrefetchLimits):
    """Asks for spans of a class as long as at least `worth_share` of their pages arrives; of the others one in
    `tries`, to notice when that changes. A class nobody has tried is worth a try. The given threshold is not used."""

    def __init__(self, given: PrefetchLimits, worth_share: float, memory: float, tries: int) -> None:
        super().__init__(given.threshold_tokens, given.capacity_tokens)
        self._worth_share, self._memory, self._tries = worth_share, memory, tries
        self._yields: dict[int, float] = {}
        """Mean share that arrives, by class."""
        self._passed: dict[int, int] = {}
        """Spans of a class not asked for since the last try."""

    def asks(self, pages: int, tokens: int) -> bool:
        kind = pages.bit_length()
        if not pages or self._yields.get(kind, 1.0) >= self._worth_share:
            return bool(pages)
        self._passed[kind] = (self._passed.get(kind, 0) + 1) % self._tries
        return not self._passed[kind]

    def worth(self, tokens: int) -> bool:
        """Whatever the store has: it has been asked already."""
        return tokens > 0

    def ended(self, pages: int, arrived: int) -> None:
        kind, share = pages.bit_length(), arrived / pages
        known = self._yields.get(kind)
        self._yields[kind] = share if known is None else known + (share - known) * self._memory
