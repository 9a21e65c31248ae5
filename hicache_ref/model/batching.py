"""How a batch is cut into what is computed at once: whole, for speed, or in tiles, for bits.

Rules of this file
- A unit is a matrix of tokens that passes through a layer as one: every GEMM and every reduction sees its shape.
- `Whole`: one unit, all new tokens of the batch. Fast; last bits of a result depend on what else was in the batch.
- `Tiles`: a unit is `size` consecutive positions of one row, aligned to a multiple of `size`. A token stands in its
  tile at the place its position gives it, whatever was cached, chunked or batched; absent tokens are rows of zeros, and
  keys are zeros up to the tile's end. So all shapes, and the place within them, depend on the position alone, and a row
  of a GEMM depends on no other row: results are equal bit by bit, by construction. This holds for one machine, one
  number of threads and one attention backend; page sizes make no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .attention.base import Span
from .layers import Choice, Gated, by_tile, by_token
from .rows import Row


class Unit(NamedTuple):
    """Tokens computed at once.

    tokens: [n] int64 on the device
    at: where they stand among the unit's `size` rows; the rest is zeros
    positions: [size] int64 on the device; highest: the greatest of them
    slots: [n] int64 on the device, page * T + place: where their rows go in the pool
    spans: their attention, `size` queries in all
    last: (row's number, its last token's place in the unit) for the rows that end here
    """

    tokens: Tensor
    at: slice
    size: int
    positions: Tensor
    highest: int
    slots: Tensor
    spans: list[Span]
    last: list[tuple[int, int]]


class Batching(Protocol):
    """A way to cut batches."""

    picks_first: bool
    """The head computes chosen tokens only; else the whole unit, of which they are chosen."""

    def units(self, rows: Sequence[Row], page_tokens: int, device: torch.device) -> list[Unit]:
        """What is computed at once, in the order of the rows."""
        ...

    def mix(self, x: Tensor, choice: Choice, experts: list[Gated]) -> Tensor:
        """A unit [size, hidden] through the experts its tokens chose."""
        ...


class Whole:
    """All new tokens of a batch in one unit."""

    picks_first = True

    def mix(self, x: Tensor, choice: Choice, experts: list[Gated]) -> Tensor:
        return by_token(x, choice, experts)

    def units(self, rows: Sequence[Row], page_tokens: int, device: torch.device) -> list[Unit]:
        counts = [len(row.tokens) for row in rows]
        ends = np.cumsum(counts)
        positions = [np.arange(row.start, row.start + n) for row, n in zip(rows, counts, strict=True)]
        slots = [_slots(row, at, page_tokens) for row, at in zip(rows, positions, strict=True)]
        flat = np.concatenate(positions)
        packed = np.stack([np.concatenate([np.asarray(row.tokens, np.int64) for row in rows]), flat])
        tokens, at, where = torch.as_tensor(np.vstack([packed, np.concatenate(slots)]), device=device)
        spans = [
            Span(_held(row, row.start + n, page_tokens), row.start, n, row.start + n, row.start + n)
            for row, n in zip(rows, counts, strict=True)
        ]
        last = [(number, int(end) - 1) for number, end in enumerate(ends)]
        return [Unit(tokens, slice(0, len(flat)), len(flat), at, int(flat.max()), where, spans, last)]


class Tiles:
    """Tiles of `size` positions."""

    picks_first = False

    def mix(self, x: Tensor, choice: Choice, experts: list[Gated]) -> Tensor:
        return by_tile(x, choice, experts)

    def __init__(self, size: int = 16) -> None:
        self.size = size

    def units(self, rows: Sequence[Row], page_tokens: int, device: torch.device) -> list[Unit]:
        return [unit for number, row in enumerate(rows) for unit in self._tiles(number, row, page_tokens, device)]

    def _tiles(self, number: int, row: Row, page_tokens: int, device: torch.device) -> Iterator[Unit]:
        size, end = self.size, row.start + len(row.tokens)
        for tile in range(row.start // size * size, end, size):
            low, high = max(row.start, tile), min(end, tile + size)
            tokens = np.asarray(row.tokens[low - row.start : high - row.start], np.int64)
            slots = _slots(row, np.arange(low, high), page_tokens)
            span = Span(_held(row, high, page_tokens), tile, size, high, tile + size)
            yield Unit(
                torch.as_tensor(tokens, device=device),
                slice(low - tile, high - tile),
                size,
                torch.arange(tile, tile + size, device=device),
                tile + size - 1,
                torch.as_tensor(slots, device=device),
                [span],
                [(number, end - 1 - tile)] if high == end else [],
            )


def _slots(row: Row, positions: NDArray[np.int64], page_tokens: int) -> NDArray[np.int64]:
    pages = np.asarray(row.pages, np.int64)
    return pages[positions // page_tokens] * page_tokens + positions % page_tokens


def _held(row: Row, tokens: int, page_tokens: int) -> NDArray[np.int64]:
    return np.asarray(row.pages[: -(-tokens // page_tokens)], np.int64)
