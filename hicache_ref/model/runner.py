"""Runs batches: rows in, logits out, everything that is remembered in the pool.

Rules of this file
- A runner has no state beyond model and pool: what a row sees is what its pages hold.
- It never samples. The caller picks tokens, or forces them.
- `before_layer(i)` is called before layer i touches the pool, `after_layer(i)` when it is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.pools import DevicePool
from .attention import make_attention
from .batching import Batching, Unit, Whole
from .cache import Codec, KvCache
from .decoder import Model
from .rows import Fence, Row, no_fence
from .stack import Stack, placed


class Tokens(NamedTuple):
    """Every new token of a batch, rows one after another: hidden [N, hidden] (normed), logits [N, vocab]."""

    hidden: Tensor
    logits: Tensor


class Runner:
    """A model over a pool.

    codec: how rows are stored
    attention: a backend's name; decode_attention: another one for batches that only decode
    batching: `Whole()` for speed, `Tiles()` for bits
    """

    def __init__(
        self,
        model: Model,
        pool: DevicePool,
        codec: Codec,
        attention: str = "torch_native",
        batching: Batching | None = None,
        decode_attention: str | None = None,
    ) -> None:
        self.model, self.pool, self.batching = model, pool, batching or Whole()
        cache = KvCache(pool, codec, model.heads, model.dtype)
        backend = make_attention(attention, cache, decode_attention)
        self.stack = Stack(model.layers, model.rotary, cache, backend, self.batching)

    def forward(self, rows: Sequence[Row], before_layer: Fence = no_fence, after_layer: Fence = no_fence) -> Tensor:
        """Logits [rows, vocab] of each row's last token."""
        with torch.inference_mode():
            units, states = self._layers(rows, before_layer, after_layer)
            ends = [[at for _, at in unit.last] for unit in units]
            found = [self._out(x, at).logits for x, at in zip(states, ends, strict=True) if at]
            return torch.cat(found)

    def forward_all(self, rows: Sequence[Row], before_layer: Fence = no_fence, after_layer: Fence = no_fence) -> Tokens:
        """Hidden states and logits of every new token: what verifying a draft needs."""
        with torch.inference_mode():
            units, states = self._layers(rows, before_layer, after_layer)
            found = [self._out(x, list(range(unit.size))[unit.at]) for unit, x in zip(units, states, strict=True)]
            return Tokens(torch.cat([each.hidden for each in found]), torch.cat([each.logits for each in found]))

    def _layers(self, rows: Sequence[Row], before: Fence, after: Fence) -> tuple[list[Unit], list[Tensor]]:
        units = self.stack.units(rows)
        states = [placed(unit, F.embedding(unit.tokens, self.model.embedding)) for unit in units]
        return units, self.stack.run(units, states, before, after)

    def _out(self, states: Tensor, at: list[int]) -> Tokens:
        """The rows `at` of a unit, normed, and their logits."""
        if self.batching.picks_first:
            hidden = self.model.norm(states[at])
            return Tokens(hidden, self.model.logits(hidden))
        hidden = self.model.norm(states)
        return Tokens(hidden[at], self.model.logits(hidden)[at])


def greedy(logits: Tensor) -> list[int]:
    """The likeliest token of each row; the first of equals."""
    return logits.argmax(-1).tolist()
