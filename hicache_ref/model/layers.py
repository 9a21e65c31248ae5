"""The parts of a layer that look at one token at a time: norms, gated feed forward, experts.

Rules of this file
- Letters: N tokens, hidden the width of the residual stream. A part maps [N, hidden] to [N, hidden].
- What ranks share comes out as a partial sum; the decoder adds it up, once per part.
- How tokens meet experts is the batching's choice (`tiles`): by token where speed counts, by tile where bits do. Both
  ways are here, side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config.models import Dense, Ffn, ModelError, Moe
from .spec import Routing
from .weights import Loader


@dataclass(frozen=True)
class Norm:
    """RMSNorm over the last axis."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


@dataclass(frozen=True)
class Linear:
    """`weight` [N, K], from [.., K] to [.., N]."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


@dataclass(frozen=True)
class Gated:
    """SwiGLU: `gate_up` [2I, hidden], `down` [hidden, I]."""

    gate_up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down)


class Choice(NamedTuple):
    """The experts of N tokens: weights [N, k] and their numbers [N, k]."""

    weights: Tensor
    experts: Tensor


Mix = Callable[[Tensor, Choice, list[Gated]], Tensor]
"""Tokens [N, hidden] through the experts of their choice, weighted and summed."""


class FeedForward(Protocol):
    """The second half of a layer; a partial sum where ranks share it."""

    def __call__(self, x: Tensor, mix: Mix) -> Tensor: ...


@dataclass(frozen=True)
class DenseMlp:
    """One gated MLP for every token."""

    mlp: Gated

    def __call__(self, x: Tensor, mix: Mix) -> Tensor:
        return self.mlp(x)


@dataclass(frozen=True)
class Experts:
    """Routed experts, and a shared one where the family has it."""

    router: Tensor
    bias: Tensor | None
    routing: Routing
    topk: int
    routed: list[Gated]
    shared: Gated | None

    def __call__(self, x: Tensor, mix: Mix) -> Tensor:
        out = mix(x, self.choose(x), self.routed)
        return out if self.shared is None else out + self.shared(x)

    def choose(self, x: Tensor) -> Choice:
        """Source: DeepSeek-V3's modelling file, `noaux_tc`; one group and no bias is plain top-k."""
        scores = SCORES[self.routing.score](F.linear(x.float(), self.router.float()))
        ranks = scores if self.bias is None else scores + self.bias.float()
        if self.routing.groups > 1:
            ranks = self._in_best_groups(ranks)
        experts = ranks.topk(self.topk, -1).indices
        weights = scores.gather(-1, experts)
        if self.routing.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Choice((weights * self.routing.scale).to(x.dtype), experts)

    def _in_best_groups(self, ranks: Tensor) -> Tensor:
        r = self.routing
        grouped = ranks.view(len(ranks), r.groups, -1)
        best = grouped.topk(r.group_best, -1).values.sum(-1).topk(r.top_groups, -1).indices
        kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, True)
        return torch.where(kept[..., None], grouped, float("-inf")).flatten(-2)


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "sigmoid": torch.sigmoid,
}


def by_token(x: Tensor, choice: Choice, experts: list[Gated]) -> Tensor:
    """Each expert computes the tokens that chose it, and no others."""
    out = torch.zeros_like(x)
    for number in _numbers(choice.experts):
        token, rank = torch.nonzero(choice.experts == number, as_tuple=True)
        out.index_add_(0, token, experts[number](x[token]) * choice.weights[token, rank, None])
    return out


def by_tile(x: Tensor, choice: Choice, experts: list[Gated]) -> Tensor:
    """Each chosen expert computes the whole tile: the shape does not depend on who chose it."""
    out = torch.zeros_like(x)
    for number in _numbers(choice.experts):
        chosen = choice.experts == number
        weight = (choice.weights * chosen).sum(-1, keepdim=True)
        out = torch.where(chosen.any(-1, keepdim=True), out + experts[number](x) * weight, out)
    return out


def _numbers(experts: Tensor) -> list[int]:
    """Each that was chosen, rising."""
    return sorted(set(experts.flatten().tolist()))


# Building


def gated(load: Loader, name: str, hidden: int, width: int) -> Gated:
    """`width` is the whole one; the rank keeps its share of it."""
    mine = load.part.of(width, f"columns of {name}")
    gate_up = [load.get(f"{name}.{half}_proj.weight", width, hidden, rows=mine) for half in ("gate", "up")]
    return Gated(torch.cat(gate_up), load.get(f"{name}.down_proj.weight", hidden, width, columns=mine))


@singledispatch
def feed_forward(ffn: Ffn, load: Loader, name: str, hidden: int, routing: Routing) -> FeedForward:
    """What stands behind a shape's feed forward. One more kind is one more registration."""
    raise ModelError(f"no feed forward for {type(ffn).__name__}; known: Dense, Moe")


@feed_forward.register
def _dense(ffn: Dense, load: Loader, name: str, hidden: int, routing: Routing) -> FeedForward:
    return DenseMlp(gated(load, name, hidden, ffn.intermediate))


@feed_forward.register
def _experts(ffn: Moe, load: Loader, name: str, hidden: int, routing: Routing) -> FeedForward:
    if ffn.shared_gate:
        raise ModelError("no feed forward for a gated shared expert; known: Dense, and Moe without such a gate")
    bias = load.get(f"{name}.gate.e_score_correction_bias", ffn.experts) if ffn.router_bias else None
    shared = ffn.shared_intermediate
    return Experts(
        load.get(f"{name}.gate.weight", ffn.experts, hidden),
        bias,
        routing,
        ffn.topk,
        [gated(load, f"{name}.experts.{number}", hidden, ffn.intermediate) for number in range(ffn.experts)],
        gated(load, f"{name}.shared_experts", hidden, shared) if shared else None,
    )
