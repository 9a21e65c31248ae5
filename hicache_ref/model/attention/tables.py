"""The index tensors that packaged kernels want, from a batch's spans.

Rules of this file
- int32 on the cache's device, as FlashInfer and flash-attn both ask for.
- Queries of padding have no place in these kernels: tiles with padding behind the last key need torch_native or triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache import KvCache
from .base import AttentionError, Span


def gpu_only(name: str, device: torch.device) -> None:
    if device.type == "cpu":
        raise AttentionError(f"attention backend {name} needs a GPU: take torch_native on the CPU")


class Tables:
    """Of B spans: where their queries and pages end, how much of the last page is used.

    query_ends, page_ends: [B + 1]; pages: [all]; keys, last_page_tokens: [B]; grid: [B, most pages], padded with 0
    """

    def __init__(self, cache: KvCache, spans: Sequence[Span]) -> None:
        if any(span.first + span.queries != span.keys for span in spans):
            raise AttentionError("this attention backend has no padding: take torch_native or triton for exact tiles")
        size = cache.page_tokens
        held = [-(-span.keys // size) for span in spans]
        self.view = cache.view(np.concatenate([s.pages[:n] for s, n in zip(spans, held, strict=True)]))
        keys = np.array([span.keys for span in spans])
        ends = np.cumsum([0, *held])
        grid = np.zeros((len(spans), max(held)), np.int64)
        for row, (start, stop) in enumerate(pairwise(ends)):
            grid[row, : stop - start] = self.view.table[start:stop]

        def put(x: NDArray[np.int64]) -> Tensor:
            return torch.as_tensor(x.astype(np.int32), device=cache.device)

        self.most_queries = max(span.queries for span in spans)
        self.query_ends = put(np.cumsum([0, *(span.queries for span in spans)]))
        self.page_ends, self.pages, self.grid = put(ends), put(self.view.table), put(grid)
        self.keys, self.last_page_tokens = put(keys), put((keys - 1) % size + 1)
