"""AIBrix's manager with its cache in memory alone, for `benchmarks.transports`.

Rules of this file
- The manager forgets nothing when it is told to. So each round has names of its own, and the memory holds a few
  batches, of which the oldest go.
- Raw: the manager's own calls, with torch's copies between its blocks and host memory.
- Upstream: SGLang's class on a manager like ours, handed flat pages as SGLang's generic path does.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

import torch

from hicache_ref.data.pools import HostPool
from hicache_ref.data.storage.aibrix import Managers, shape_of
from hicache_ref.data.storage.registry import make_client

from .storage import BATCH, PAGES
from .stores import WHO, Store, folder_each

BATCHES = 4
"""That its memory holds."""


class Side(ABC):
    """What all sides do: new names, where others empty their store."""

    def __init__(self, host: HostPool) -> None:
        self.host, self.round = host, 0
        self.empty()

    def empty(self) -> None:
        self.round += 1
        self.names = [f"{self.round:032x}{page:032x}" for page in range(BATCH)]

    @abstractmethod
    def put(self) -> None: ...
    @abstractmethod
    def get(self) -> None: ...
    @abstractmethod
    def close(self) -> None: ...


class Ours(Side):
    def __init__(self, host: HostPool, folder: str) -> None:
        super().__init__(host)
        self.client = make_client("aibrix", WHO, {}, _variables(host))

    def put(self) -> None:
        assert self.client.put(self.names, self.host, PAGES) == BATCH

    def get(self) -> None:
        assert self.client.get(self.names, self.host, PAGES) == BATCH

    def close(self) -> None:
        self.client.close()


class WithManager(Side):
    """A manager of its own."""

    def __init__(self, host: HostPool, folder: str) -> None:
        self.managers = Managers()
        self.key, self.manager = self.managers.take(shape_of(WHO, host.geometry), _variables(host))
        super().__init__(host)

    def close(self) -> None:
        self.managers.give_back(self.key)


class Raw(WithManager):
    def __init__(self, host: HostPool, folder: str) -> None:
        super().__init__(host, folder)
        pages = map(host.page_memory, PAGES.tolist())
        self.pages = [[torch.frombuffer(piece, dtype=torch.uint8) for piece in pieces] for pieces in pages]

    def put(self) -> None:
        handle = self.manager.allocate_for(None, self._hashes()).value
        for block, pieces in zip(handle.to_tensors(), self.pages, strict=True):
            for part, piece in zip(block.flatten().chunk(len(pieces)), pieces, strict=True):
                part.copy_(piece)
        assert self.manager.put(None, self._hashes(), handle).value == self._tokens

    def get(self) -> None:
        tokens, handle = self.manager.acquire(None, self._hashes()).value
        assert tokens == self._tokens
        for block, pieces in zip(handle.to_tensors(), self.pages, strict=True):
            for part, piece in zip(block.flatten().chunk(len(pieces)), pieces, strict=True):
                piece.copy_(part)
        handle.release()

    @property
    def _tokens(self) -> int:
        return BATCH * self.host.geometry.page_size

    def _hashes(self) -> Any:
        from aibrix_kvcache import BlockHashes

        return BlockHashes(self.names, self.host.geometry.page_size)


class Upstream(WithManager):
    def __init__(self, host: HostPool, folder: str) -> None:
        super().__init__(host, folder)
        upstream = importlib.import_module("tests.storage.upstream_stores")
        duck, shape = upstream.UpstreamHost(host), host.geometry
        duck.target_layer_num, duck.head_num, duck.head_dim = shape.layers, shape.heads, shape.dim * shape.itemsize
        duck.start_layer, duck.end_layer = 0, shape.layers
        module = upstream.stores().module("aibrix_kvcache.aibrix_kvcache_storage")
        module.BaseKVCacheManager = lambda config: self.manager
        with upstream.stores().in_place():
            self.store = module.AibrixKVCacheStorage(upstream.stores().config(WHO, {}), duck)
        self.duck, self.tokens = duck, duck.tokens(*PAGES.tolist())[:: duck.page_size].tolist()

    def put(self) -> None:
        assert self.store.batch_set(self.names, [self.duck.get_data_page(token) for token in self.tokens])

    def get(self) -> None:
        flat = [self.duck.get_dummy_flat_data_page() for _ in self.tokens]
        for token, page in zip(self.tokens, self.store.batch_get(self.names, flat), strict=True):
            self.duck.set_from_flat_data_page(token, page)


def _variables(host: HostPool) -> dict[str, str]:
    found = {"L1_CACHE_ENABLED": "1", "L2_CACHE_BACKEND": ""}
    found["L1_CACHE_CAPACITY_GB"] = str(BATCHES * BATCH * host.page_bytes / 2**30)
    return {f"AIBRIX_KV_CACHE_OL_{key}": value for key, value in found.items()}


AIBRIX = Store(folder_each, {"ours": Ours, "raw": Raw, "upstream": Upstream}, ("aibrix_kvcache",))
