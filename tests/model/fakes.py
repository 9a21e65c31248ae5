"""Stand-ins for packaged kernels: their calls, as documented, computed in plain torch. Anything else they refuse."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor


def _paged(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, keys: int, scale: float) -> Tensor:
    """Causal, the last query at the last key. q [n, H, D], k and v [P, T, J, D]."""
    assert pages.dtype == torch.int32
    k, v = (each[pages.long()].flatten(0, 1)[:keys].double() for each in (k, v))
    share = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(share, 1) for each in (k, v))
    scores = torch.einsum("nhd,khd->hnk", q.double(), k) * scale
    hidden = torch.ones(len(q), keys, dtype=torch.bool).triu(keys - len(q) + 1)
    return torch.einsum("hnk,khd->nhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v).to(q.dtype)


class _Wrapper:
    def _spans(self):
        ends, page_ends = self.query_ends.tolist(), self.page_ends.tolist()
        for row in range(len(ends) - 1):
            yield row, slice(ends[row], ends[row + 1]), self.pages[page_ends[row] : page_ends[row + 1]]


class HeadsWrapper(_Wrapper):
    """docs.flashinfer.ai: BatchPrefillWithPagedKVCacheWrapper."""

    def __init__(self, workspace: Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8 and kv_layout == "NHD"

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, causal=False, sm_scale=None, q_data_type=None, kv_data_type=None):  # fmt: skip
        assert causal and q_data_type == kv_data_type
        self.query_ends, self.page_ends, self.pages = qo_indptr, paged_kv_indptr, paged_kv_indices
        self.last, self.size, self.scale = paged_kv_last_page_len, page_size, sm_scale
        self.shape = (num_qo_heads, num_kv_heads, head_dim_qk)

    def run(self, q, paged_kv_cache):
        k, v = paged_kv_cache
        assert (q.shape[1], k.shape[2], q.shape[2]) == self.shape and q.is_contiguous()
        keys = [(len(pages) - 1) * self.size + int(self.last[row]) for row, _, pages in self._spans()]
        return torch.cat([_paged(q[at], k, v, pages, keys[row], self.scale) for row, at, pages in self._spans()])


class LatentWrapper(_Wrapper):
    """docs.flashinfer.ai: BatchMLAPagedAttentionWrapper."""

    def __init__(self, float_workspace_buffer: Tensor) -> None:
        assert float_workspace_buffer.dtype == torch.uint8

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size,
             causal, sm_scale, q_data_type, kv_data_type):  # fmt: skip
        assert causal and q_data_type == kv_data_type
        self.query_ends, self.page_ends, self.pages = qo_indptr, kv_indptr, kv_indices
        self.keys, self.scale, self.shape = kv_len_arr.tolist(), sm_scale, (num_heads, head_dim_ckv, head_dim_kpe)

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache):
        assert (q_nope.shape[1], ckv_cache.shape[2], kpe_cache.shape[2]) == self.shape
        q, rows = torch.cat([q_nope, q_pe], -1), torch.cat([ckv_cache, kpe_cache], -1)[:, :, None]
        values = ckv_cache[:, :, None]
        return torch.cat(
            [_paged(q[at], rows, values, pages, self.keys[row], self.scale) for row, at, pages in self._spans()]
        )


FLASHINFER = SimpleNamespace(
    BatchPrefillWithPagedKVCacheWrapper=HeadsWrapper, mla=SimpleNamespace(BatchMLAPagedAttentionWrapper=LatentWrapper)
)


def flash_attn_with_kvcache(q, k_cache, v_cache, *, page_table, cache_seqlens, cu_seqlens_q, max_seqlen_q,
                            softmax_scale, causal, qv=None):  # fmt: skip
    """flash-attention's hopper/flash_attn_interface.py. `qv` scores against the values."""
    assert causal and max_seqlen_q == int((cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max())
    q, k = (q, k_cache) if qv is None else (torch.cat([q, qv], -1), torch.cat([k_cache, v_cache], -1))
    ends, outs = cu_seqlens_q.tolist(), []
    for row, keys in enumerate(cache_seqlens.tolist()):
        pages = page_table[row, : -(-keys // k.shape[1])]
        outs.append(_paged(q[ends[row] : ends[row + 1]], k, v_cache, pages, keys, softmax_scale))
    return torch.cat(outs)
