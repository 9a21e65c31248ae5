"""`flashinfer`: an adapter. FlashInfer reads pages in place, given which pages each row has.

Rules of this file
- Thin: index tensors in FlashInfer's form, its wrapper's `plan` and `run`, nothing else.
- MLA goes to its MLA wrapper, with the row cut into latent and position part.

Source: docs.flashinfer.ai, `BatchPrefillWithPagedKVCacheWrapper` and `BatchMLAPagedAttentionWrapper`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import KvCache, PagedView
from .base import AttentionError, Plan, Span
from .tables import Tables, gpu_only

_WORKSPACE_BYTES = 128 << 20


class FlashInfer:
    """CUDA devices with the package flashinfer-python. `module`: stands in for it."""

    def __init__(self, cache: KvCache, module: Any = None) -> None:
        self._module = module or _flashinfer(cache)
        self.cache = cache
        space = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=cache.device)
        heads = cache.heads
        kind = self._module.mla.BatchMLAPagedAttentionWrapper if heads.latent else None
        self._wrapper = kind(space) if kind else self._module.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
        self._plan = self._plan_latent if heads.latent else self._plan_heads

    def plan(self, spans: Sequence[Span]) -> Plan:
        tables = Tables(self.cache, spans)
        return self._plan(tables)

    def _plan_heads(self, t: Tables) -> Plan:
        heads, dtype = self.cache.heads, self.cache.dtype
        self._wrapper.plan(
            t.query_ends, t.page_ends, t.pages, t.last_page_tokens, heads.queries, heads.kv, heads.k_dim,
            self.cache.page_tokens, causal=True, sm_scale=heads.scale, q_data_type=dtype, kv_data_type=dtype,
        )  # fmt: skip
        return _HeadsPlan(self._wrapper, t.view)

    def _plan_latent(self, t: Tables) -> Plan:
        heads, dtype = self.cache.heads, self.cache.dtype
        self._wrapper.plan(
            t.query_ends, t.page_ends, t.pages, t.keys, heads.queries, heads.v_dim, heads.k_dim - heads.v_dim,
            self.cache.page_tokens, True, heads.scale, dtype, dtype,
        )  # fmt: skip
        return _LatentPlan(self._wrapper, t.view, heads.v_dim)


class _HeadsPlan:
    def __init__(self, wrapper: Any, view: PagedView) -> None:
        self._wrapper, self._view = wrapper, view

    def attend(self, layer: int, q: Tensor) -> Tensor:
        out: Tensor = self._wrapper.run(q.contiguous(), self._view.read(layer))
        return out


class _LatentPlan:
    def __init__(self, wrapper: Any, view: PagedView, latent: int) -> None:
        self._wrapper, self._view, self._latent = wrapper, view, latent

    def attend(self, layer: int, q: Tensor) -> Tensor:
        rows = self._view.read(layer)[0].squeeze(2)
        cut = self._latent
        latent, position = q[..., :cut].contiguous(), q[..., cut:].contiguous()
        out: Tensor = self._wrapper.run(latent, position, rows[..., :cut], rows[..., cut:])
        return out


def _flashinfer(cache: KvCache) -> Any:
    gpu_only("flashinfer", cache.device)
    try:
        import flashinfer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise AttentionError(
            "attention backend flashinfer is not installed: pip install flashinfer-python, or take triton"
        ) from None
    return flashinfer
