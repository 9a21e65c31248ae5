"""`triton`: a paged attention kernel of our own, for prefill and decoding, over rows where they lie.

Rules of this file
- A program computes the queries of one item (some neighbouring queries of a span) for one cached head: with query heads
  that share it side by side they are M rows of one matrix. MLA's many heads for one cached head are several programs.
- Keys beyond the span, and those after a query, are never loaded or count as minus infinity: free pages may hold NaN.
- Long contexts are split over programs. Each split writes its own normalised result and the logarithm of its sum; the
  splits are then weighed by those. How many splits there are follows from positions and counts alone.
- A row whose width is no power of two is taken in two parts (MLA's 576 = 512 + 64).
- Letters: N queries, H heads, J cached heads, P pages, T tokens of a page, D elements.

Source: online softmax as in FlashAttention 2 (arXiv 2307.08691), splits as in Flash-Decoding.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
import triton  # type: ignore[import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray
from torch import Tensor

from ..cache import KvCache
from .base import AttentionError, Plan, Span

_ROWS, _WIDE_ROWS = 64, 16
"""Rows M of a program at most, and where rows are wide (more than `_WIDE` elements): what registers hold."""
_WIDE = 256
_LEAST_ROWS = 16
"""What a tensor core's matrix takes."""
_PROGRAMS = 256
"""Programs worth having: fewer, and long contexts are split."""
_SPLIT_KEYS = 256
"""The least that a split is worth."""


class TritonPaged:
    """CUDA devices; the CPU under TRITON_INTERPRET=1."""

    def __init__(self, cache: KvCache) -> None:
        if cache.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise AttentionError("triton attention needs a GPU: take torch_native on the CPU")
        self.cache = cache

    def plan(self, spans: Sequence[Span]) -> Plan:
        return _TritonPlan(self.cache, spans)


class _TritonPlan:
    """Index tensors of a batch: `items` [5, I] and `pages`, int64 on the device."""

    def __init__(self, cache: KvCache, spans: Sequence[Span]) -> None:
        heads = cache.heads
        self._cache, self._shared = cache, heads.queries // heads.kv
        rows = _WIDE_ROWS if heads.k_dim > _WIDE else _ROWS
        self._share = min(triton.next_power_of_2(self._shared), _WIDE_ROWS)
        most = triton.next_power_of_2(max(span.queries for span in spans))
        self._block_q = max(1, min(most, rows // self._share))
        self._programs = heads.kv * triton.cdiv(self._shared, self._share)
        pages = [span.pages[: -(-span.keys // cache.page_tokens)] for span in spans]
        self._view = cache.view(np.concatenate(pages))
        self._items, positions = _items(spans, [len(each) for each in pages], self._block_q, cache.device)
        self._pages = torch.as_tensor(self._view.table, device=cache.device)
        programs = self._items.shape[1] * self._programs
        self._splits = int(max(1, min(_PROGRAMS // programs, positions // _SPLIT_KEYS)))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        k, v = self._view.read(layer)
        heads, splits = self._cache.heads, self._splits
        out = torch.zeros((splits, len(q), heads.queries, heads.v_dim), dtype=torch.float32, device=q.device)
        sums = torch.full((splits, len(q), heads.queries), float("-inf"), dtype=torch.float32, device=q.device)
        wide, rest = _widths(heads.k_dim)
        keys_at_once = 32 if heads.k_dim > _WIDE else 64
        _attend[(self._items.shape[1], self._programs, splits)](
            q.contiguous(), k, v, out, sums, self._items, self._pages, heads.scale,
            k.stride(0), k.stride(1), k.stride(2), v.stride(0), v.stride(1), v.stride(2),
            len(q), self._items.shape[1], splits,
            HEADS=heads.queries, SHARED=self._shared, PAGE=self._cache.page_tokens,
            K_DIM=heads.k_dim, V_DIM=heads.v_dim, WIDE=wide, REST=rest,
            VALUES=max(16, triton.next_power_of_2(heads.v_dim)),
            M=max(_LEAST_ROWS, self._block_q * self._share), SHARE=self._share, KEYS=keys_at_once,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        )  # fmt: skip
        if splits == 1:
            return out[0].to(q.dtype)
        return (out * sums.softmax(0)[..., None]).sum(0).to(q.dtype)


def _items(spans: Sequence[Span], pages: list[int], block_q: int, device: torch.device) -> tuple[Tensor, int]:
    """Items [5, I] int64, and the longest context that one of them may see.

    Rows of items: where the first query stands in q, its position, queries, keys, where the span's pages begin.
    """
    columns: list[NDArray[np.int64]] = []
    at = page_at = longest = 0
    for span, held in zip(spans, pages, strict=True):
        first = np.arange(0, span.queries, block_q)
        same = np.ones_like(first)
        queries = np.minimum(block_q, span.queries - first)
        columns.append(np.stack([at + first, span.first + first, queries, span.keys * same, page_at * same]))
        longest = max(longest, span.first + span.queries)
        at, page_at = at + span.queries, page_at + held
    return torch.as_tensor(np.concatenate(columns, 1), device=device), longest


def _widths(dim: int) -> tuple[int, int]:
    """A row as two blocks, powers of two: the greatest that fits, and one for what is left (0: nothing)."""
    wide = max(16, 1 << (dim.bit_length() - 1))
    rest = dim - wide
    return wide, max(16, triton.next_power_of_2(rest)) if rest > 0 else 0


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _attend(  # type: ignore[no-untyped-def,unused-ignore]
    q, k, v, out, sums, items, pages, scale,
    k_page, k_token, k_head, v_page, v_token, v_head,
    n_queries, n_items, n_splits,
    HEADS: tl.constexpr, SHARED: tl.constexpr, PAGE: tl.constexpr,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr, VALUES: tl.constexpr,
    M: tl.constexpr, SHARE: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One item, some heads of one cached head, one split.

    Pointers: q [N, H, K_DIM], k and v [P, T, J, D] by strides with D dense,
    out [splits, N, H, V_DIM] and sums [splits, N, H] float32, items [5, I] and pages int64.
    """
    item, split = tl.program_id(0), tl.program_id(2)
    blocks: tl.constexpr = (SHARED + SHARE - 1) // SHARE
    head, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    q_at = tl.load(items + item)
    position = tl.load(items + n_items + item)
    queries = tl.load(items + 2 * n_items + item)
    keys = tl.load(items + 3 * n_items + item)
    page_at = tl.load(items + 4 * n_items + item)

    row = tl.arange(0, M)
    query, shared = row // SHARE, block * SHARE + row % SHARE
    used = (query < queries) & (shared < SHARED)
    q_row = (q_at + query) * HEADS + head * SHARED + shared
    wide = tl.arange(0, WIDE)
    q_wide = tl.load(
        q + q_row[:, None] * K_DIM + wide[None, :], mask=used[:, None] & (wide < K_DIM)[None, :], other=0.0
    )
    if REST > 0:
        rest = WIDE + tl.arange(0, REST)
        q_rest = tl.load(
            q + q_row[:, None] * K_DIM + rest[None, :], mask=used[:, None] & (rest < K_DIM)[None, :], other=0.0
        )
    values = tl.arange(0, VALUES)

    seen = position + M // SHARE
    each = tl.cdiv(tl.cdiv(seen, KEYS), n_splits) * KEYS
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, VALUES], tl.float32)
    for start in range(split * each, tl.minimum(tl.minimum((split + 1) * each, seen), keys), KEYS):
        key = start + tl.arange(0, KEYS)
        there = key < keys
        page = tl.load(pages + page_at + key // PAGE, mask=there, other=0)
        k_row = k + page * k_page + (key % PAGE) * k_token + head * k_head
        k_wide = tl.load(k_row[None, :] + wide[:, None], mask=there[None, :] & (wide < K_DIM)[:, None], other=0.0)
        scores = tl.dot(q_wide, k_wide, input_precision=PRECISION)
        if REST > 0:
            k_rest = tl.load(k_row[None, :] + rest[:, None], mask=there[None, :] & (rest < K_DIM)[:, None], other=0.0)
            scores += tl.dot(q_rest, k_rest, input_precision=PRECISION)
        visible = there[None, :] & (key[None, :] <= (position + query)[:, None])
        scores = tl.where(visible, scores * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet keeps its zeros: minus infinity less itself is NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(top - base)
        total = total * fade + tl.sum(weights, 1)
        v_row = v + page * v_page + (key % PAGE) * v_token + head * v_head
        v_all = tl.load(v_row[:, None] + values[None, :], mask=there[:, None] & (values < V_DIM)[None, :], other=0.0)
        acc = acc * fade[:, None] + tl.dot(weights.to(v_all.dtype), v_all, input_precision=PRECISION)
        top = new_top

    some = total > 0
    o_row = split.to(tl.int64) * n_queries * HEADS + q_row
    result = acc / tl.where(some, total, 1.0)[:, None]
    tl.store(out + o_row[:, None] * V_DIM + values[None, :], result, mask=used[:, None] & (values < V_DIM)[None, :])
    tl.store(sums + o_row, tl.where(some, top + tl.log(tl.where(some, total, 1.0)), float("-inf")), mask=used)
