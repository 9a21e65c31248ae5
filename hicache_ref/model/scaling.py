"""A model shrunk to a machine: fewer layers, narrower, with the cache of the big one in small.

Rules of this file
- Kept: family, attention type, that several query heads share a KV head, the order of dense and expert layers, biases
  and norms, the dtype of the cache. Reduced: layers, widths, heads, head sizes, experts, vocabulary.
- Widths are multiples of 32, MLA's latent of 128 (NSA's scales have blocks of it), and never below what makes a layer.
- What is scaled is a shape of its own, with the name of the model it came from, so that pools and simulator take it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

from ..config.models import Attention, Dense, Ffn, Mha, Mla, ModelError, ModelShape, Moe, Nsa
from .spec import ModelSpec, spec_of

_LEAST = 1e-4
"""The smallest factor looked at."""


def scale(model: ModelSpec | ModelShape, factor: float | None = None, parameters: int | None = None) -> ModelSpec:
    """`model` made small: every width times `factor`, or as large as `parameters` allow (or the smallest there is).

    ModelError: neither or both given, or a factor outside (0, 1].
    """
    spec = model if isinstance(model, ModelSpec) else spec_of(model)
    if (factor is None) == (parameters is None):
        raise ModelError("scale takes a factor or a number of parameters: give one of them")
    if factor is None:
        factor = _factor_for(spec.shape, int(parameters or 0))
    if not 0 < factor <= 1:
        raise ModelError(f"a factor of {factor} does not shrink: give one above 0, at most 1")
    routing = replace(spec.routing, groups=1, top_groups=1) if factor < 1 else spec.routing
    return replace(spec, shape=_scaled(spec.shape, factor), routing=routing)


def _factor_for(shape: ModelShape, parameters: int) -> float:
    """Bisection: the count rises with the factor."""
    low, high = _LEAST, 1.0
    if shape.parameters <= parameters:
        return high
    for _ in range(40):
        middle = (low * high) ** 0.5
        if _scaled(shape, middle).parameters <= parameters:
            low = middle
        else:
            high = middle
    return low


def _scaled(shape: ModelShape, factor: float) -> ModelShape:
    if factor == 1:
        return shape
    attention = scaled_attention(shape.attention, factor)
    return replace(
        shape,
        name=f"{shape.name} scaled",
        hidden=_to(shape.hidden * factor, 32, 64),
        vocab=min(shape.vocab, _to(shape.vocab * factor, 64, 512)),
        attention=attention,
        blocks=_blocks(shape, factor),
        source=f"{shape.source}, every width times {factor:.3g}",
    )


def _blocks(shape: ModelShape, factor: float) -> tuple[tuple[int, Ffn], ...]:
    """At least one layer of each block, and two in all."""
    # Depth shrinks more slowly than width: layers are what a load overlaps with.
    counts = [max(1, round(count * factor**0.6)) for count, _ in shape.blocks]
    counts[-1] = min(max(counts[-1], 2 - sum(counts[:-1])), shape.blocks[-1][0])
    return tuple((n, scaled_ffn(ffn, factor)) for n, (_, ffn) in zip(counts, shape.blocks, strict=True))


def _to(size: float, multiple: int, least: int) -> int:
    """The nearest multiple, not below `least`."""
    return max(least, round(size / multiple) * multiple)


def _power_of_two(size: float) -> int:
    """The greatest that is not above `size`."""
    return 1 << (int(size).bit_length() - 1)


@singledispatch
def scaled_attention(attention: Attention, factor: float) -> Any:
    raise ModelError(f"no way to scale {attention.name} attention; known: mha, mla, nsa")


@scaled_attention.register
def _mha(attention: Mha, factor: float) -> Mha:
    """Powers of two, and two KV heads at least: ranks have something to split, evenly."""
    kv = min(attention.group_heads, _power_of_two(max(2.0, attention.group_heads * factor**0.5)))
    share = attention.heads // attention.group_heads
    # Kept whole, many query heads for a KV head would be most of the model.
    share = min(share, _power_of_two(max(4.0, share * factor**0.5)))
    dim = _to(attention.head_dim * factor**0.5, 16, min(attention.head_dim, 32))
    return replace(attention, heads=kv * share, group_heads=kv, head_dim=min(dim, attention.head_dim))


@scaled_attention.register
def _mla(attention: Mla, factor: float) -> Mla:
    part = factor**0.5
    low = attention.q_lora_rank
    return replace(
        attention,
        heads=min(attention.heads, _to(attention.heads * factor, 4, 4)),
        kv_lora_rank=min(attention.kv_lora_rank, _to(attention.kv_lora_rank * part, 128, 128)),
        qk_rope_head_dim=min(attention.qk_rope_head_dim, _to(attention.qk_rope_head_dim * part, 16, 16)),
        qk_nope_head_dim=min(attention.qk_nope_head_dim, _to(attention.qk_nope_head_dim * part, 16, 32)),
        v_head_dim=min(attention.v_head_dim, _to(attention.v_head_dim * part, 16, 32)),
        q_lora_rank=None if low is None else min(low, _to(low * factor, 32, 64)),
    )


@scaled_attention.register
def _nsa(attention: Nsa, factor: float) -> Nsa:
    """The index shrinks as well, though the decoder leaves it out: it counts in sizes."""
    small: Any = _mla(attention, factor)
    result: Nsa = replace(small, index_heads=max(2, round(attention.index_heads * factor)))
    return result


@singledispatch
def scaled_ffn(ffn: Ffn, factor: float) -> Ffn:
    raise ModelError(f"no way to scale {type(ffn).__name__}; known: Dense, Moe")


@scaled_ffn.register
def _dense(ffn: Dense, factor: float) -> Ffn:
    return Dense(_to(ffn.intermediate * factor, 32, 64))


@scaled_ffn.register
def _moe(ffn: Moe, factor: float) -> Ffn:
    """Eight experts, two for a token: routing, not its weight."""
    width = _to(ffn.intermediate * factor, 32, 32)
    shared = _to(ffn.shared_intermediate * factor, 32, 32) if ffn.shared_intermediate else 0
    return replace(
        ffn, experts=min(ffn.experts, 8), topk=min(ffn.topk, 2), intermediate=width, shared_intermediate=shared
    )
