"""What the model is asked to compute: rows of new tokens, each on top of pages that already hold its past.

Rules of this file
- Records only. A row says which tokens are new, where the first of them stands, and which slots hold its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Fence = Callable[[int], None]
"""Called with a layer's number."""


class RowError(ValueError):
    """A row that its pages do not cover. One line."""


class Row(NamedTuple):
    """One sequence's part of a batch.

    tokens: [n] int64, the new tokens, at least one
    start: position of the first of them; the pages hold positions 0..start-1 already
    pages: [P] int64 device slots, which cover start + n tokens. Where n tokens begin amid a page, it is page start // T
    """

    tokens: NDArray[np.int64] | Sequence[int]
    start: int
    pages: NDArray[np.int64] | Sequence[int]


def no_fence(layer: int) -> None:
    """Nothing to wait for."""


def check_rows(rows: Sequence[Row], page_tokens: int, pool_pages: int) -> None:
    """RowError for a row without tokens, or whose pages are too few or not in the pool."""
    for number, row in enumerate(rows):
        end = row.start + len(row.tokens)
        if len(row.tokens) == 0 or row.start < 0:
            raise RowError(f"row {number} has {len(row.tokens)} tokens at position {row.start}: give it at least one")
        if len(row.pages) * page_tokens < end:
            raise RowError(f"row {number} ends at token {end}, its {len(row.pages)} pages of {page_tokens} do not")
        slots = np.asarray(row.pages)
        if slots.min() < 0 or slots.max() >= pool_pages:
            raise RowError(f"row {number} names page {slots.min()} or {slots.max()} of a pool of {pool_pages}")
