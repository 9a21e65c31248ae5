"""A decoder: embeddings, layers, a head, as one rank holds them.

Rules of this file
- Weights and arithmetic only. The pool is reached through the `attend` a layer is given, which writes new rows and
  looks back over the pages.
- Sums over ranks happen here, twice a layer; embeddings and head are whole on every rank.
- `WHOLE` is the whole model: one rank of one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .layers import FeedForward, Mix, Norm, feed_forward
from .positions import Rotary
from .projections import Heads, Projected, Projections, projections_of
from .spec import ModelSpec, spec_from_folder
from .weights import AllReduce, Folder, Loader, Part, Seeded, Source

WHOLE = Part(0, 1)

Attend = Callable[[Projected], Tensor]
"""Writes a layer's new rows, then answers its queries: [N, H, D of values]."""


def alone(x: Tensor) -> Tensor:
    """The sum over one rank."""
    return x


class Layer(NamedTuple):
    """Attention and feed forward, each behind a norm and added to what came in."""

    norm: Norm
    projections: Projections
    middle: Norm
    feed_forward: FeedForward
    all_reduce: AllReduce

    def __call__(self, x: Tensor, rotary: Rotary, turns: Tensor, attend: Attend, mix: Mix) -> Tensor:
        """x [N, hidden]; turns: `rotary.rows` of the tokens' positions."""
        inward = self.projections.inward(self.norm(x), rotary, turns)
        x = x + self.all_reduce(self.projections.outward(attend(inward)))
        return x + self.all_reduce(self.feed_forward(self.middle(x), mix))


class Model(NamedTuple):
    """One rank of a decoder."""

    spec: ModelSpec
    source: Source
    part: Part
    heads: Heads
    rotary: Rotary
    embedding: Tensor
    layers: list[Layer]
    norm: Norm
    head: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states [N, hidden] to [N, vocab]."""
        return F.linear(hidden, self.head)


def build(
    spec: ModelSpec,
    source: Source,
    part: Part = WHOLE,
    all_reduce: AllReduce = alone,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """One rank's share of the weights of `source`."""
    shape, device = spec.shape, torch.device(device)
    kind = projections_of(spec)
    load = Loader(source, part, dtype, device)
    rotary = Rotary(spec.positions, kind.turned(shape.attention), dtype, device)
    embedding = load.get("model.embed_tokens.weight", shape.vocab, shape.hidden)
    layers = [build_layer(spec, load, number, all_reduce) for number in range(shape.layers)]
    norm = Norm(load.get("model.norm.weight", shape.hidden), spec.eps)
    head = embedding if shape.tied_embeddings else load.get("lm_head.weight", shape.vocab, shape.hidden)
    source.finish()
    heads = kind.heads(shape.attention, part.size, rotary.score_factor)
    return Model(spec, source, part, heads, rotary, embedding, layers, norm, head)


def build_layer(spec: ModelSpec, load: Loader, number: int, all_reduce: AllReduce = alone) -> Layer:
    """Layer `number`, with the feed forward that its place in the shape's blocks gives it."""
    name, hidden = f"model.layers.{number}", spec.shape.hidden
    ffns = [ffn for count, ffn in spec.shape.blocks for _ in range(count)]
    return Layer(
        Norm(load.get(f"{name}.input_layernorm.weight", hidden), spec.eps),
        projections_of(spec)(spec, load, f"{name}.self_attn"),
        Norm(load.get(f"{name}.post_attention_layernorm.weight", hidden), spec.eps),
        feed_forward(ffns[number], load, f"{name}.mlp", hidden, spec.routing),
        all_reduce,
    )


def random_model(
    spec: ModelSpec, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Model:
    """Random weights, the same for the same seed, on every machine and any number of ranks."""
    return build(spec, Seeded(seed, depth=(2 * spec.shape.layers) ** 0.5), dtype=dtype, device=device)


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Model:
    """A Hugging Face folder: config.json and safetensors. ModelError names what is missing or unknown."""
    spec = spec_from_folder(folder)
    return build(spec, Folder(folder, spec.shape.layers), dtype=dtype, device=device)


def shard(model: Model, rank: int, size: int, all_reduce: AllReduce) -> Model:
    """The share of `rank` among `size`: heads and columns are split, MLA's latent rows stay whole on every rank.

    all_reduce: sums a tensor over the ranks; every rank calls it twice a layer, in the same order.
    """
    return build(model.spec, model.source, Part(rank, size), all_reduce, model.dtype, model.device)
