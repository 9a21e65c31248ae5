"""SGLang's own Mooncake, NIXL and 3FS stores, out of its wheel, on host pools of ours.

Rules of this file
- As in `upstream`: single modules are executed where they lie, with small stand-ins for what is too heavy to import.
- Its stores see our pools through upstream's methods; that pieces and flat pages are upstream's is tested elsewhere.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from hicache_ref.config.layouts import LAYOUTS
from hicache_ref.data.pools import HostPool
from hicache_ref.data.storage.client import StorageIdentity

from .contract import MHA, MLA
from .upstream import Upstream

VERSION = "0.5.23"
_STORES = "sglang.srt.mem_cache.storage"


@cache
def stores() -> UpstreamStores:
    """Skips the test if the wheel cannot be had."""
    return UpstreamStores()


class UpstreamStores(Upstream):
    def __init__(self) -> None:
        super().__init__(VERSION)
        self._stand_in("sglang.srt.mem_cache.pool_host", HostKVCache=object, HostTensorAllocator=object)
        self._stand_in("sglang.srt.mem_cache.pool_host.mla", MLATokenToKVPoolHost=type("Mla", (), {}))
        self._stand_in("sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler", DevicePoolEntry=type("Entry", (), {}))
        self._stand_in("sglang.srt.observability.metrics_collector", StorageMetrics=SimpleNamespace)

    def config(self, who: StorageIdentity, extra: dict[str, Any]) -> Any:
        return self.storage.HiCacheStorageConfig(
            tp_rank=who.tp_rank,
            tp_size=who.tp_size,
            pp_rank=who.pp_rank,
            pp_size=who.pp_size,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=who.replicated,
            enable_storage_metrics=False,
            is_page_first_layout=who.layout == "page_first",
            model_name=who.model_name,
            extra_config=extra,
        )

    def module(self, name: str) -> Any:
        """A module of the package of stores, executed."""
        name = f"{_STORES}.{name}"
        return self.modules.get(name) or self._execute(name)

    def _stand_in(self, name: str, **members: Any) -> ModuleType:
        module = super()._stand_in(name, **members)
        module.__package__ = name.rpartition(".")[0]
        return module

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While its code runs: its modules are found, and it takes no signals from the tests."""
        with patch.dict(sys.modules, self.modules), patch.object(signal, "signal"):
            yield


class UpstreamHost:
    """A host pool of ours as upstream's stores see one. Tokens are numbered through all pages."""

    def __init__(self, host: HostPool) -> None:
        self.host = host
        self.layout = host.layout.name
        self.page_size = host.geometry.page_size
        self.size = host.pages * self.page_size
        self.dtype = torch.uint8
        self.kv_buffer = host.memory.data
        self.pin_memory = False

    def tokens(self, *pages: int) -> torch.Tensor:
        return torch.cat([torch.arange(self.page_size) + page * self.page_size for page in pages])

    def get_page_buffer_meta(self, tokens: torch.Tensor) -> tuple[list[int], list[int]]:
        pages = [int(token) // self.page_size for token in tokens[:: self.page_size]]
        buffers = [buffer for page in pages for buffer in self.host.page_buffers(page)]
        return [address for address, _ in buffers], [size for _, size in buffers]

    def get_data_page(self, token: int, flat: bool = True) -> Any:
        """One flat copy, or the keys and the values where they lie."""
        pieces = self.host.page_memory(int(token) // self.page_size)
        if flat:
            return torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
        views = [torch.frombuffer(piece, dtype=torch.uint8) for piece in pieces]
        return views if len(views) > 1 else views[0]

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(self.host.page_bytes, dtype=torch.uint8)

    def set_from_flat_data_page(self, token: int, data: torch.Tensor) -> None:
        at, flat = 0, data.numpy()
        for piece in self.host.page_memory(int(token) // self.page_size):
            np.frombuffer(piece, np.uint8)[:] = flat[at : at + piece.nbytes]
            at += piece.nbytes

    def get_size_per_token(self) -> int:
        return self.host.page_bytes // self.page_size

    def get_ksize_per_token(self) -> int:
        return self.get_size_per_token() // self.host.geometry.components

    def is_stride_page_aligned(self, size: int) -> bool:
        return all(address % size == 0 == bytes_ % size for address, bytes_ in self.host.page_buffers(1))


def host_pool(who: StorageIdentity, pages: int = 8) -> HostPool:
    """What a rank of this identity has as L2."""
    return HostPool(LAYOUTS[who.layout], MLA if who.replicated else MHA, pages, torch.bfloat16, pin=False)
