"""Rotary positions: tables of cosines and sines, and the ways configs stretch them.

Rules of this file
- A stretch is a function in `STRETCHES`, by its `rope_type`: inverse frequencies in, inverse frequencies out, with two
  factors: on the table, and on attention's scores.
- Tables grow by blocks of a fixed size, so that the same position always has the same bits.

Source: `transformers/modeling_rope_utils.py` for the formulas; YaRN, arXiv 2309.00071.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config.models import ModelError
from .spec import Positions

_BLOCK = 4096
"""Positions a table grows by."""


class Stretch(NamedTuple):
    """Frequencies [D/2] float64, the factor on cosines and sines, and the factor on attention's scores."""

    inverse: Tensor
    table: float = 1.0
    scores: float = 1.0


def _default(inverse: Tensor, config: Mapping[str, Any], theta: float) -> Stretch:
    return Stretch(inverse)


def _linear(inverse: Tensor, config: Mapping[str, Any], theta: float) -> Stretch:
    return Stretch(inverse / float(config["factor"]))


def _llama3(inverse: Tensor, config: Mapping[str, Any], theta: float) -> Stretch:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    low, high = float(config["low_freq_factor"]), float(config["high_freq_factor"])
    turns = float(config["original_max_position_embeddings"]) * inverse / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return Stretch(inverse * keep + inverse / float(config["factor"]) * (1 - keep))


def _yarn(inverse: Tensor, config: Mapping[str, Any], theta: float) -> Stretch:
    factor, limit = float(config["factor"]), float(config["original_max_position_embeddings"])
    pairs = len(inverse)

    def pair_of(turns: float) -> float:
        """The pair that makes so many turns within the original length."""
        return pairs * math.log(limit / (turns * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(pair_of(float(config.get("beta_fast", 32)))), 0)
    high = min(math.ceil(pair_of(float(config.get("beta_slow", 1)))), 2 * pairs - 1)
    keep = 1 - ((torch.arange(pairs, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    stretched = inverse * keep + inverse / factor * (1 - keep)
    whole = _magnitude(factor, float(config.get("mscale_all_dim") or 0))
    if "mscale" in config and "mscale_all_dim" in config:
        return Stretch(stretched, _magnitude(factor, float(config["mscale"])) / whole, whole**2)
    return Stretch(stretched, float(config.get("attention_factor") or _magnitude(factor, 1.0)), whole**2)


def _magnitude(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


STRETCHES: dict[str, Callable[[Tensor, Mapping[str, Any], float], Stretch]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


class Rotary:
    """The turning of queries and keys.

    dim: elements of a head (or of MLA's rope part); the leading `share` of them turn.
    score_factor: what a stretch multiplies attention's scale with.
    """

    def __init__(self, positions: Positions, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dim = int(dim * positions.share) // 2 * 2
        kind = positions.scaling.get("rope_type", positions.scaling.get("type", "default"))
        if kind not in STRETCHES:
            raise ModelError(f"unknown rope_type {kind!r}; known: {', '.join(STRETCHES)}")
        steps = torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim
        stretch = STRETCHES[kind](positions.theta**-steps, positions.scaling, positions.theta)
        self.score_factor = stretch.scores
        self._stretch, self._dtype, self._device = stretch, dtype, device
        self._turn = _turn_neighbours if positions.interleaved else _turn_halves
        self._table = torch.empty(0, 2, self.dim // 2, dtype=dtype, device=device)

    def rows(self, positions: Tensor, highest: int) -> Tensor:
        """Cosines and sines at `positions` [n] int64, none above `highest`: [n, 2, D/2]."""
        table = self._table
        while len(table) <= highest:
            table = self._table = torch.cat([table, self._block(len(table))])
        return table.index_select(0, positions)

    def turn(self, x: Tensor, rows: Tensor) -> Tensor:
        """x [n, H, >= D], its leading D elements turned by `rows` [n, 2, D/2]."""
        cos, sin = rows[:, None, 0], rows[:, None, 1]
        turned = self._turn(x[..., : self.dim], cos, sin)
        return turned if x.shape[-1] == self.dim else torch.cat([turned, x[..., self.dim :]], -1)

    def _block(self, start: int) -> Tensor:
        at = torch.arange(start, start + _BLOCK, dtype=torch.float64)
        angles = at[:, None] * self._stretch.inverse
        table = torch.stack([angles.cos(), angles.sin()], 1) * self._stretch.table
        return table.to(self._device, self._dtype)


def _turn_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _turn_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
