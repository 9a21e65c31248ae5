"""`torch_native`: gather the pages, then torch's own scaled dot product attention.

Rules of this file
- Shapes and the choice of path follow from a span's `queries` and `padded_keys`, never from what the cache holds. So
  spans of equal shape give equal bits for equal contents.
- Rows that are gathered but not part of a span become zeros: they may be poisoned, and NaN times zero is NaN.
- Spans of the same few queries are batched by length (decoding, verification); a long one is computed alone.
- Query heads that share a cached head are laid side by side as further queries of it, or, for long spans, see it
  through a stride of zero: keys are never copied for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import KvCache
from .base import Plan, Span

_FEW_QUERIES = 32
"""Spans of at most so many queries are batched with others of the same number."""
_GROUP_KEYS = 1 << 17
"""Keys a group gathers at most, padding included."""
_WASTE = 1.25
"""The longest span of a group, in shortest ones."""
_MASK_QUERIES = 512
"""Queries of a long span whose mask is made at a time."""


class TorchNative:
    """Any device, any codec."""

    def __init__(self, cache: KvCache) -> None:
        self.cache = cache

    def plan(self, spans: Sequence[Span]) -> Plan:
        starts = np.cumsum([0, *(span.queries for span in spans)])
        parts: list[_Part] = []
        for members in _groups(spans):
            chosen = [spans[m] for m in members]
            rows = _rows([slice(starts[m], starts[m + 1]) for m in members], self.cache.device)
            few = chosen[0].queries <= _FEW_QUERIES
            parts.append((_Few if few else _Long)(self.cache, chosen, rows))
        return _NativePlan(parts, self.cache.heads.v_dim)


class _Part(Protocol):
    rows: Tensor | slice

    def attend(self, layer: int, q: Tensor) -> Tensor: ...


class _NativePlan(NamedTuple):
    parts: list[_Part]
    v_dim: int

    def attend(self, layer: int, q: Tensor) -> Tensor:
        if len(self.parts) == 1:  # all queries, in order
            return self.parts[0].attend(layer, q)
        out = q.new_empty(q.shape[0], q.shape[1], self.v_dim)
        for part in self.parts:
            out[part.rows] = part.attend(layer, q[part.rows])
        return out


def _rows(slices: list[slice], device: torch.device) -> Tensor | slice:
    """Where a group's queries stand: a slice where they are neighbours."""
    if all(a.stop == b.start for a, b in pairwise(slices)):
        return slice(slices[0].start, slices[-1].stop)
    rows = np.concatenate([np.arange(each.start, each.stop) for each in slices])
    return torch.as_tensor(rows, device=device)


def _groups(spans: Sequence[Span]) -> Iterator[list[int]]:
    """Numbers of spans computed together, each group in order."""
    group: list[int] = []
    for number in sorted(range(len(spans)), key=lambda n: (spans[n].queries, spans[n].padded_keys)):
        span = spans[number]
        if group and not _joins(span, spans[group[0]], len(group)):
            yield sorted(group)
            group = []
        group.append(number)
    if group:
        yield sorted(group)


def _joins(span: Span, shortest: Span, members: int) -> bool:
    return (
        span.queries == shortest.queries <= _FEW_QUERIES
        and span.padded_keys <= _WASTE * shortest.padded_keys + 64
        and (members + 1) * span.padded_keys <= _GROUP_KEYS
    )


class _Keys:
    """The keys and values of b spans, gathered and padded to S: [b, S, J, D] each."""

    def __init__(self, cache: KvCache, spans: list[Span]) -> None:
        size = cache.page_tokens
        most = max(-(-span.keys // size) for span in spans)
        pages = np.zeros((len(spans), most), dtype=np.int64)
        unused = np.ones((len(spans), most * size), dtype=bool)
        for row, span in enumerate(spans):
            held = -(-span.keys // size)
            pages[row, :held] = span.pages[:held]
            unused[row, : span.keys] = False
        self._cache = cache
        self.tokens = max(span.padded_keys for span in spans)
        self._pages = torch.as_tensor(pages.ravel(), device=cache.device)
        self._unused = torch.as_tensor(np.flatnonzero(unused), device=cache.device)
        self._shape = (len(spans), most * size)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        latent = self._cache.heads.latent
        k, v = self._cache.gather(layer, self._pages)
        k = self._padded(k)
        # MLA's values are the keys' leading part. Whole rows stand in for them, so that both have one width, as
        # torch's fast path asks for; the rest is cut off the result.
        return k, k if latent else self._padded(v)

    def _padded(self, x: Tensor) -> Tensor:
        if len(self._unused):
            x.flatten(0, 1).index_fill_(0, self._unused, 0)
        x = x.reshape(*self._shape, *x.shape[2:])[:, : self.tokens]
        missing = self.tokens - x.shape[1]
        return F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x


def _mask(first: Tensor, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """[b, queries, keys]: zero where the key is not after the query, minus infinity elsewhere. first: [b]."""
    at = torch.arange(keys, device=first.device)
    queries_at = first[:, None] + torch.arange(queries, device=first.device)
    zero = torch.zeros((), dtype=dtype, device=first.device)
    return torch.where(at <= queries_at[..., None], zero, float("-inf"))


class _Few:
    """b spans of n queries: [b, J, n * G, D] over [b, J, S, D], where G query heads share a cached one."""

    def __init__(self, cache: KvCache, spans: list[Span], rows: Tensor | slice) -> None:
        self.rows, self._heads, self._keys = rows, cache.heads, _Keys(cache, spans)
        self._count, self._queries = len(spans), spans[0].queries
        first = torch.tensor([span.first for span in spans], device=cache.device)
        mask = _mask(first, self._queries, self._keys.tokens, cache.dtype)
        self._mask = mask.repeat_interleave(cache.heads.queries // cache.heads.kv, 1)[:, None]

    def attend(self, layer: int, q: Tensor) -> Tensor:
        k, v = self._keys.read(layer)
        heads = self._heads
        q = q.view(self._count, self._queries, heads.kv, -1, heads.k_dim).transpose(1, 2).flatten(2, 3)
        out = F.scaled_dot_product_attention(
            q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=self._mask, scale=heads.scale
        )[..., : heads.v_dim]
        out = out.reshape(self._count, heads.kv, self._queries, -1, heads.v_dim).transpose(1, 2)
        return out.reshape(-1, heads.queries, heads.v_dim)


class _Long:
    """One span: [J, G, n, D] over [J, 1, S, D], a slice of the queries at a time."""

    def __init__(self, cache: KvCache, spans: list[Span], rows: Tensor | slice) -> None:
        (self._span,) = spans
        self.rows, self._heads, self._keys = rows, cache.heads, _Keys(cache, spans)
        self._dtype, self._device = cache.dtype, cache.device

    def attend(self, layer: int, q: Tensor) -> Tensor:
        k, v = (each[0].transpose(0, 1)[:, None] for each in self._keys.read(layer))
        heads, span = self._heads, self._span
        shared = heads.queries // heads.kv
        q = q.view(-1, heads.kv, shared, heads.k_dim).permute(1, 2, 0, 3)
        k, v = (each.expand(-1, shared, -1, -1) for each in (k, v))
        if span.first == 0 and span.queries == span.padded_keys:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=heads.scale)
        else:
            out = self._sliced(q, k, v)
        return out[..., : heads.v_dim].permute(2, 0, 1, 3).reshape(-1, heads.queries, heads.v_dim)

    def _sliced(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for at in range(0, self._span.queries, _MASK_QUERIES):
            some = q[:, :, at : at + _MASK_QUERIES]
            seen = min(self._span.first + at + _MASK_QUERIES, k.shape[2])
            first = torch.tensor([self._span.first + at], device=self._device)
            mask = _mask(first, some.shape[2], seen, self._dtype)[None]
            parts.append(
                F.scaled_dot_product_attention(
                    some, k[:, :, :seen], v[:, :, :seen], attn_mask=mask, scale=self._heads.scale
                )
            )
        return torch.cat(parts, 2)
