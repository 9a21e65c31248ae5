"""The whole LRU curve from one pass: L1 alone, and L1 over an inclusive or an exclusive L2, at any sizes.

Rules of this file
- Hits are pages; rates are of all whole prompt pages. Sizes are pages.
- L2 under LRU on both levels: an inclusive one repeats what is in L1 (write_through, L2 the larger), so together they
  hold as much as the larger one; an exclusive one holds what L1 has let go, so together they hold as much as both.
- A sample's ranks are divided by its rate; what it has too many or too few references of goes to the shortest
  distance (SHARDS-adj), since hot pages cause the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .references import Ints, References
from .stack import distances

Rates = NDArray[np.float64]
_PARTS = 8
"""Disjoint samples whose spread is the error that is shown."""


@dataclass(frozen=True)
class LruCurve:
    """Pages hit at any size.

    ranks: [hits of an infinite cache] int64, sorted: stack distances, in sampled pages. rate, sampled: share and
    number of the references they were taken from, of `total`.
    """

    ranks: Ints
    total: int
    sampled: int
    rate: float = 1.0

    @classmethod
    def of(cls, references: References, leaf_first: bool = True, since: int = 0) -> LruCurve:
        """One pass over all references. since: number of the first request that counts; those before it warm up."""
        ranks = distances(references, leaf_first)[int(references.starts[since]) :]
        total = references.total if not since else round(len(ranks) / references.rate)
        return cls(np.sort(ranks[ranks > 0]), total, len(ranks), references.rate)

    def hits(self, pages: ArrayLike) -> Rates:
        """Pages hit by caches of these sizes: whole numbers, unless sampled."""
        sizes = np.asarray(pages, np.float64)
        found = np.searchsorted(self.ranks, np.floor(sizes * self.rate), side="right").astype(np.float64)
        if self.rate == 1.0:
            return found
        missing = self.total * self.rate - self.sampled
        return np.clip((found + missing * (sizes > 0)) / self.rate, 0, self.total)

    def rates(self, pages: ArrayLike) -> Rates:
        """Share of prompt pages hit."""
        return self.hits(pages) / max(self.total, 1)

    @property
    def ceiling(self) -> float:
        """Pages an infinite cache hits."""
        return float(self.hits(math.inf))

    def inclusive(self, l1_pages: ArrayLike, l2_pages: ArrayLike) -> Rates:
        """Share hit on either level, L2 repeating L1."""
        return self.rates(np.maximum(l1_pages, l2_pages))

    def exclusive(self, l1_pages: ArrayLike, l2_pages: ArrayLike) -> Rates:
        """Share hit on either level, no page on both."""
        return self.rates(np.add(l1_pages, l2_pages))


def error(references: References, pages: ArrayLike) -> Rates:
    """Standard error of a sample's `rates`, at these sizes: the spread over disjoint parts of it. 0 if not sampled.

    Each part is a smaller sample and so a noisier one; their mean has the noise of the whole.
    """
    sizes = np.asarray(pages, np.float64)
    if references.rate == 1.0:
        return np.zeros(sizes.shape)
    parts = [LruCurve.of(references.part(index, _PARTS)).rates(sizes) for index in range(_PARTS)]
    spread: Rates = np.std(parts, axis=0, ddof=1) / math.sqrt(_PARTS)
    return spread
