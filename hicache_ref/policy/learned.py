"""A prefetch threshold that is learned: which lengths of span are worth asking L3 for.

Upstream asks for spans of at least `prefetch_threshold` tokens, 256 unless told otherwise, whatever comes of it (SGLang
PR #26449 asks which threshold to take; issues #12809 and #31600 are prefetches that cost more than they bring).

Rules of this file
- What is remembered belongs to one storage side and is a function of what it was told: no clock, no chance.
- Spans are put together by length, each class from a power of two pages to the next. Of each class a running mean says
  how many pages were there when the request went on. It begins with all of them: long spans are tried longer.
"""

from __future__ import annotations

from ..control.policies import FetchLimits


class LearnedLimits:
    """Asks for spans of a class as long as `worth_pages` of them arrive, on the mean; of the others for one in
    `tries`, to notice when that changes. The given threshold is not used."""

    def __init__(self, given: FetchLimits, worth_pages: float, memory: float, tries: int) -> None:
        self.capacity_tokens = given.capacity_tokens
        self._worth_pages, self._memory, self._tries = worth_pages, memory, tries
        self._arrive: dict[int, float] = {}
        """Pages that arrive of a span, on the mean, by class."""
        self._passed: dict[int, int] = {}
        """Spans of a class not asked for since the last try."""

    def asks(self, pages: int, tokens: int) -> bool:
        kind = pages.bit_length()
        if not pages or self._arrive.get(kind, pages) >= self._worth_pages:
            return bool(pages)
        self._passed[kind] = (self._passed.get(kind, 0) + 1) % self._tries
        return not self._passed[kind]

    def worth(self, tokens: int) -> bool:
        """Whatever the store has: it has been asked already."""
        return tokens > 0

    def ended(self, pages: int, arrived: int) -> None:
        kind = pages.bit_length()
        known = self._arrive.get(kind, float(pages))
        self._arrive[kind] = known + (arrived - known) * self._memory
