"""Attention over pages: spans of queries, and the interface of what computes them.

Rules of this file
- A span is consecutive queries of one row over its pages. Causal: the query at position p sees the keys 0..p.
- A backend makes a plan of a batch's spans once, and the plan attends layer after layer: index tensors are built once.
- Letters: N queries of all spans, one after another; H query heads, J cached heads, D elements; T tokens of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..cache import KvCache


class AttentionError(ValueError):
    """A backend that is unknown, not installed, or cannot do what is asked. One line."""


class Span(NamedTuple):
    """Queries that are computed together.

    pages: [m] int64 slots that cover `keys` tokens, and no more pages than that takes
    first: position of the first query
    queries: how many; those at positions from `keys` on are padding, and what comes out for them means nothing
    keys: tokens in the cache, the new ones included
    padded_keys: what keys are padded to with zeros, where shapes must not depend on `keys`; else `keys`
    """

    pages: NDArray[np.int64]
    first: int
    queries: int
    keys: int
    padded_keys: int


class Plan(Protocol):
    """Attention of one batch."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Queries [N, H, D] over the pages of a layer: [N, H, D of values]."""
        ...


class AttentionBackend(Protocol):
    """One value of `--attention-backend`, over one cache."""

    def __init__(self, cache: KvCache) -> None: ...

    def plan(self, spans: Sequence[Span]) -> Plan:
        """Once a batch. Spans may be empty of padding only."""
        ...
