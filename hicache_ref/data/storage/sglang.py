"""A store of ours as SGLang's `dynamic` backend: `HicacheStore`, which SGLang finds by name.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "hicache",
      "module_path": "hicache_ref.data.storage.sglang", "class_name": "HicacheStore", "interface_v1": 1,
      "store": "lmdb", "path": "/data/kv"}'

Rules of this file
- It is imported by SGLang, and nobody else: this is the only module that needs it.
- `store` names one of our backends, and what else the extra config holds is that backend's.
- On the data path nothing is raised: a store that fails has no pages and takes none, and says so in the log.
- Pages of one pool lie at equal distances. So two of them tell where all are, and SGLang is asked twice, not per page.
- Source: `hicache_storage.py` (`HiCacheStorage`), `backend_factory.py`, `pool_host/` of 0.5.23.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
from torch import Tensor

from .client import Slots, StorageClient, StorageError, StorageIdentity, StoreFailed
from .registry import BACKENDS, make_client

logger = logging.getLogger(__name__)
_SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1", "store")


class HicacheStore(HiCacheStorage):  # type: ignore[misc]
    """Both of upstream's interfaces, by addresses and by flat pages, with the same keys and bytes."""

    def __init__(self, storage_config: Any, kwargs: dict[str, Any]) -> None:
        extra = dict(storage_config.extra_config or {})
        self._backend = str(extra.get("store"))
        if self._backend not in BACKENDS:
            raise StorageError(f"HicacheStore: give a store in the extra config, one of {', '.join(BACKENDS)}")
        self._extra = {key: value for key, value in extra.items() if key not in _SGLANGS}
        self._config = storage_config
        self._client: StorageClient | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Keys of some stores depend on the pool's layout, so the client is made here."""
        super().register_mem_pool_host(mem_pool_host)
        self.close()
        tag = self._extra.get("extra_backend_tag", "") + _part(self._config)
        extra = self._extra | ({"extra_backend_tag": tag} if tag else {})
        self._client = make_client(self._backend, _identity(self._config, mem_pool_host.layout), extra)
        self._pages = _PoolPages(mem_pool_host, 1 if self._config.is_mla_model else 2)

    # By addresses

    def batch_get_v1(self, keys: list[str], host_indices: Tensor, extra_info: Any = None) -> list[bool]:
        return self._fates(self._store.get, keys, self._pages, self._pages.slots(host_indices))

    def batch_set_v1(self, keys: list[str], host_indices: Tensor, extra_info: Any = None) -> list[bool]:
        return self._fates(self._store.put, keys, self._pages, self._pages.slots(host_indices))

    # By flat pages

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Tensor | None:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Tensor | None]:
        fates = self._fates(self._store.get, keys, _TensorPages(target_locations), np.arange(len(keys)))
        return [target if good else None for target, good in zip(target_locations, fates, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        pages = _TensorPages([value.contiguous() for value in values])
        return all(self._fates(self._store.put, keys, pages, np.arange(len(keys))))

    # Both

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return self._leading(self._store.exists, keys)

    def clear(self) -> None:
        self._leading(self._cleared)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def _store(self) -> StorageClient:
        if self._client is None:
            raise StorageError("HicacheStore: asked before register_mem_pool_host was called")
        return self._client

    def _cleared(self) -> int:
        self._store.clear()
        return 0

    def _fates(self, call: Callable[..., int], keys: list[str], *where: Any) -> list[bool]:
        good = self._leading(call, keys, *where) if keys else 0
        return [at < good for at in range(len(keys))]

    def _leading(self, call: Callable[..., int], *arguments: Any) -> int:
        try:
            return call(*arguments)
        except StoreFailed as failure:
            logger.warning("%s", failure)
            return failure.pages_ok


def _identity(config: Any, layout: str) -> StorageIdentity:
    return StorageIdentity(
        model_name=config.model_name or "",
        tp_rank=config.tp_rank,
        tp_size=config.tp_size,
        pp_rank=config.pp_rank,
        pp_size=config.pp_size,
        replicated=config.is_mla_model,
        layout=layout,
    )


def _part(config: Any) -> str:
    """Context-parallel ranks hold different parts of a page, so each is a namespace of its own."""
    parts = (("cp", config.attn_cp_rank, config.attn_cp_size), ("dcp", config.dcp_rank, config.dcp_size))
    return "".join(f"{what}{rank}-{size}" for what, rank, size in parts if size > 1)


class _PoolPages:
    """`PageMemory` over a host pool of SGLang's."""

    def __init__(self, pool: Any, components: int) -> None:
        self._tokens = pool.page_size
        self._components = components
        self._pages = pool.size // pool.page_size
        buffers = self._ask(pool, 0)
        second = self._ask(pool, min(1, self._pages - 1))
        self._buffers = [(at, size, other - at) for (at, size), (other, _) in zip(buffers, second, strict=True)]
        self.page_bytes = sum(size for _, size in buffers)

    def _ask(self, pool: Any, page: int) -> list[tuple[int, int]]:
        tokens = torch.arange(page * self._tokens, (page + 1) * self._tokens)
        return list(zip(*pool.get_page_buffer_meta(tokens), strict=True))

    def slots(self, host_indices: Tensor) -> Slots:
        """The pages of all these tokens."""
        return cast(Slots, host_indices[:: self._tokens].numpy() // self._tokens)

    def page_buffers(self, page: int) -> list[tuple[int, int]]:
        return [(at + page * stride, size) for at, size, stride in self._buffers]

    def page_memory(self, page: int) -> list[memoryview]:
        # Keys and values of a layer side by side, where a page has a piece for each layer.
        buffers = self.page_buffers(page)
        ordered = [buffer for component in range(self._components) for buffer in buffers[component :: self._components]]
        return [memoryview((ctypes.c_uint8 * size).from_address(at)).cast("B") for at, size in ordered]

    def regions(self) -> list[tuple[int, int]]:
        return [(at, size + (self._pages - 1) * stride) for at, size, stride in self._buffers]


class _TensorPages:
    """`PageMemory` over flat pages, contiguous tensors of their own."""

    def __init__(self, pages: Sequence[Tensor]) -> None:
        self._pages = [page.view(torch.uint8).view(-1) for page in pages]
        self.page_bytes = self._pages[0].numel() if self._pages else 0

    def page_buffers(self, page: int) -> list[tuple[int, int]]:
        return [(self._pages[page].data_ptr(), self.page_bytes)]

    def page_memory(self, page: int) -> list[memoryview]:
        return [memoryview(self._pages[page].numpy().data)]

    def regions(self) -> list[tuple[int, int]]:
        return [self.page_buffers(page)[0] for page in range(len(self._pages))]
