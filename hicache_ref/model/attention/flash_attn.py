"""`fa3`: an adapter for FlashAttention 3's paged kernel.

Rules of this file
- Thin: index tensors, one call. MLA hands over the position part as keys and the latent part as values, with the
  queries' latent part beside (`qv`), which is how FlashAttention 3 does absorbed MLA.

Source: `flash_attn_with_kvcache` of flash-attention's hopper/flash_attn_interface.py; sgl_kernel ships the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from ..cache import KvCache
from .base import AttentionError, Plan, Span
from .tables import Tables, gpu_only

_MODULES = ("flash_attn_interface", "sgl_kernel.flash_attn")


class FlashAttention3:
    """Hopper GPUs with flash-attn 3 or sgl_kernel. `kernel`: stands in for `flash_attn_with_kvcache`."""

    def __init__(self, cache: KvCache, kernel: Callable[..., Any] | None = None) -> None:
        self.cache, self._kernel = cache, kernel or _kernel(cache)

    def plan(self, spans: Sequence[Span]) -> Plan:
        return _Plan(self.cache, Tables(self.cache, spans), self._kernel)


class _Plan:
    def __init__(self, cache: KvCache, tables: Tables, kernel: Callable[..., Any]) -> None:
        self._heads, self._view = cache.heads, tables.view
        self._call = partial(
            kernel,
            page_table=tables.grid,
            cache_seqlens=tables.keys,
            cu_seqlens_q=tables.query_ends,
            max_seqlen_q=tables.most_queries,
            softmax_scale=cache.heads.scale,
            causal=True,
        )

    def attend(self, layer: int, q: Tensor) -> Tensor:
        k, v = self._view.read(layer)
        cut = self._heads.v_dim if self._heads.latent else 0
        beside = {"qv": q[..., :cut].contiguous()} if cut else {}
        out: Tensor = self._call(q[..., cut:].contiguous(), k[..., cut:], v, **beside)
        return out


def _kernel(cache: KvCache) -> Callable[..., Any]:
    gpu_only("fa3", cache.device)
    for name in _MODULES:
        try:
            module: Any = import_module(name)
        except ImportError:
            continue
        kernel: Callable[..., Any] = module.flash_attn_with_kvcache
        return kernel
    raise AttentionError(
        "attention backend fa3 is not installed: pip install flash-attn-3 or sgl-kernel, or take triton"
    )
