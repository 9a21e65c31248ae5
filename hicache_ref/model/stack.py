"""Layers over a cache: what a decoder and a draft head have in common.

Rules of this file
- Layer by layer, unit by unit: all of a batch passes a layer before any of it passes the next, so that a layer of the
  pool is waited for once, and a later tile finds the rows of an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .attention import AttentionBackend, Plan
from .batching import Batching, Unit
from .cache import KvCache
from .decoder import Layer
from .positions import Rotary
from .projections import Projected
from .rows import Fence, Row, check_rows


class Stack:
    """Layers, their positions, the cache they share, and how batches are cut."""

    def __init__(
        self,
        layers: Sequence[Layer],
        rotary: Rotary,
        cache: KvCache,
        attention: AttentionBackend,
        batching: Batching,
    ) -> None:
        self.layers, self.rotary, self.cache = layers, rotary, cache
        self.attention, self.batching = attention, batching

    def units(self, rows: Sequence[Row]) -> list[Unit]:
        """What is computed at once. RowError for rows that do not fit their pages."""
        check_rows(rows, self.cache.page_tokens, self.cache.pool.pages)
        return self.batching.units(rows, self.cache.page_tokens, self.cache.device)

    def run(self, units: Sequence[Unit], states: list[Tensor], before: Fence, after: Fence) -> list[Tensor]:
        """States [size, hidden] of each unit through all layers."""
        plans = [self.attention.plan(unit.spans) for unit in units]
        turns = [self.rotary.rows(unit.positions, unit.highest) for unit in units]
        for number, layer in enumerate(self.layers):
            before(self.cache.first_layer + number)
            for at, unit in enumerate(units):
                attend = partial(self._attend, number, unit, plans[at])
                states[at] = layer(states[at], self.rotary, turns[at], attend, self.batching.mix)
            after(self.cache.first_layer + number)
        return states

    def _attend(self, layer: int, unit: Unit, plan: Plan, new: Projected) -> Tensor:
        self.cache.write(layer, unit.slots, tuple(rows[unit.at] for rows in new.rows))
        return plan.attend(layer, new.queries)


def placed(unit: Unit, tokens: Tensor) -> Tensor:
    """What is known of a unit's tokens, [n, ..], at their places among its rows, [size, ..]; the rest is zeros."""
    if len(tokens) == unit.size:
        return tokens
    whole = torch.zeros((unit.size, *tokens.shape[1:]), dtype=tokens.dtype, device=tokens.device)
    whole[unit.at] = tokens
    return whole
