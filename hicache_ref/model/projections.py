"""What a layer makes of tokens before and after attention: queries, the rows that go into the cache, and the way back.

Rules of this file
- One class for each attention type, found by the shape's `attention.name`. Nothing else asks which type it has.
- Letters: N tokens, H query heads and J cached heads of this rank, D elements of a query and of a cached row.
- Attention itself sees cached rows only. MLA is absorbed: queries are turned into the latent space, so that attention
  is MQA over rows as they lie in the cache, and values are the leading part of those rows.

Sources: `transformers`' Llama, Qwen2, Qwen3 and DeepSeek-V3; absorption as in SGLang's `forward_absorb`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config.models import Mha, Mla, ModelError, Nsa
from .layers import Linear, Norm
from .positions import Rotary
from .spec import ModelSpec
from .weights import Loader, times


class Heads(NamedTuple):
    """One rank's attention, as its kernels see it."""

    queries: int
    kv: int
    k_dim: int
    v_dim: int
    scale: float
    latent: bool
    """Values are the first `v_dim` elements of the cached row; else they are a component of their own."""


class Projected(NamedTuple):
    """queries [N, H, D], and for each component its new rows [N, J, D]."""

    queries: Tensor
    rows: tuple[Tensor, ...]


class Projections(Protocol):
    """Around one layer's attention."""

    def __init__(self, spec: ModelSpec, load: Loader, name: str) -> None: ...

    @staticmethod
    def heads(shape: Any, ranks: int, score_factor: float) -> Heads:
        """What attention sees on one of `ranks` ranks; `score_factor` is `Rotary`'s."""
        ...

    @staticmethod
    def turned(shape: Any) -> int:
        """Elements of a head that positions concern."""
        ...

    def inward(self, x: Tensor, rotary: Rotary, turns: Tensor) -> Projected:
        """x [N, hidden]; turns: `rotary.rows` of the tokens' positions."""
        ...

    def outward(self, attended: Tensor) -> Tensor:
        """[N, H, v_dim] to [N, hidden], this rank's part of the sum."""
        ...


class HeadProjections:
    """MHA, GQA, MQA: keys and values by head, with the biases and norms that Qwen adds."""

    @staticmethod
    def heads(shape: Mha, ranks: int, score_factor: float) -> Heads:
        dim = shape.head_dim
        scale = dim**-0.5 * score_factor
        return Heads(shape.local_heads(ranks), shape.local_kv_heads(ranks), dim, dim, scale, latent=False)

    @staticmethod
    def turned(shape: Mha) -> int:
        return shape.head_dim

    def __init__(self, spec: ModelSpec, load: Loader, name: str) -> None:
        shape: Any = spec.shape.attention
        dim, hidden = shape.head_dim, spec.shape.hidden
        mine, kept = load.part.of(shape.heads, "query heads"), load.part.of_kv(shape.group_heads)
        self.dim = dim
        self.widths = [times(mine, dim), times(kept, dim), times(kept, dim)]
        counts = (shape.heads * dim, shape.group_heads * dim, shape.group_heads * dim)
        parts = list(zip("qkv", counts, self.widths, strict=True))
        self.qkv = torch.cat([load.get(f"{name}.{p}_proj.weight", n, hidden, rows=cut) for p, n, cut in parts])
        biases = [load.get(f"{name}.{p}_proj.bias", n, rows=cut) for p, n, cut in parts if shape.qkv_bias]
        self.bias = torch.cat(biases) if biases else None
        self.norms = [Norm(load.get(f"{name}.{p}_norm.weight", dim), spec.eps) for p in ("q", "k") if shape.qk_norm]
        self.out = load.get(f"{name}.o_proj.weight", hidden, shape.heads * dim, columns=self.widths[0])
        # A bias of the sum belongs to one rank.
        adds = spec.output_bias and load.part.rank == 0
        self.out_bias = load.get(f"{name}.o_proj.bias", hidden) if adds else None

    def inward(self, x: Tensor, rotary: Rotary, turns: Tensor) -> Projected:
        split = [cut.stop - cut.start for cut in self.widths]
        q, k, v = (each.view(len(x), -1, self.dim) for each in torch.split(F.linear(x, self.qkv, self.bias), split, -1))
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        return Projected(rotary.turn(q, turns), (rotary.turn(k, turns), v))

    def outward(self, attended: Tensor) -> Tensor:
        return F.linear(attended.flatten(-2), self.out, self.out_bias)


class LatentProjections:
    """MLA: one latent row a token, the same on every rank; ranks share the query heads.

    NSA is MLA here: its index, which picks the rows worth attending, is left out, and all rows are attended.
    """

    @staticmethod
    def heads(shape: Mla, ranks: int, score_factor: float) -> Heads:
        scale = (shape.qk_nope_head_dim + shape.qk_rope_head_dim) ** -0.5 * score_factor
        return Heads(shape.local_heads(ranks), 1, shape.row_dim, shape.kv_lora_rank, scale, latent=True)

    @staticmethod
    def turned(shape: Mla) -> int:
        return shape.qk_rope_head_dim

    def __init__(self, spec: ModelSpec, load: Loader, name: str) -> None:
        shape: Any = spec.shape.attention
        hidden, rank = spec.shape.hidden, shape.kv_lora_rank
        self.parts = [rank, shape.qk_rope_head_dim]
        self.query_parts = [shape.qk_nope_head_dim, shape.qk_rope_head_dim]
        mine = load.part.of(shape.heads, "query heads")
        self.count = mine.stop - mine.start
        self.ask = self._queries(spec, load, name, mine)
        self.keep = load.get(f"{name}.kv_a_proj_with_mqa.weight", shape.row_dim, hidden)
        self.norm = Norm(load.get(f"{name}.kv_a_layernorm.weight", rank), spec.eps)
        width, values = shape.qk_nope_head_dim + shape.v_head_dim, shape.heads * shape.v_head_dim
        unpack = load.get(f"{name}.kv_b_proj.weight", shape.heads * width, rank, rows=times(mine, width))
        keys, rest = torch.split(unpack.view(self.count, width, rank), [shape.qk_nope_head_dim, shape.v_head_dim], 1)
        self.to_latent = keys.contiguous()  # [H, D plain, latent]
        self.from_latent = rest.transpose(1, 2).contiguous()  # [H, latent, v]
        self.out = load.get(f"{name}.o_proj.weight", hidden, values, columns=times(mine, shape.v_head_dim))

    def _queries(self, spec: ModelSpec, load: Loader, name: str, mine: slice) -> list[Callable[[Tensor], Tensor]]:
        """What makes queries, in order: one matrix, or down, norm and up."""
        shape: Any = spec.shape.attention
        hidden, low, width = spec.shape.hidden, shape.q_lora_rank, sum(self.query_parts)
        rows = times(mine, width)
        if low is None:
            return [Linear(load.get(f"{name}.q_proj.weight", shape.heads * width, hidden, rows=rows))]
        return [
            Linear(load.get(f"{name}.q_a_proj.weight", low, hidden)),
            Norm(load.get(f"{name}.q_a_layernorm.weight", low), spec.eps),
            Linear(load.get(f"{name}.q_b_proj.weight", shape.heads * width, low, rows=rows)),
        ]

    def inward(self, x: Tensor, rotary: Rotary, turns: Tensor) -> Projected:
        q = x
        for step in self.ask:
            q = step(q)
        still, turned = torch.split(q.view(len(x), self.count, -1), self.query_parts, -1)
        absorbed = torch.bmm(still.transpose(0, 1), self.to_latent).transpose(0, 1)
        latent, shared = torch.split(F.linear(x, self.keep), self.parts, -1)
        row = torch.cat([self.norm(latent)[:, None], rotary.turn(shared[:, None], turns)], -1)
        return Projected(torch.cat([absorbed, rotary.turn(turned, turns)], -1), (row,))

    def outward(self, attended: Tensor) -> Tensor:
        values = torch.bmm(attended.transpose(0, 1), self.from_latent).transpose(0, 1)
        return F.linear(values.flatten(-2), self.out)


PROJECTIONS: dict[str, type[Projections]] = {
    Mha.name: HeadProjections,
    Mla.name: LatentProjections,
    Nsa.name: LatentProjections,
}
"""By the `name` of a shape's attention."""


def projections_of(spec: ModelSpec) -> type[Projections]:
    name = spec.shape.attention.name
    if name not in PROJECTIONS:
        raise ModelError(f"no decoder for {name!r} attention; known: {', '.join(PROJECTIONS)}")
    return PROJECTIONS[name]
