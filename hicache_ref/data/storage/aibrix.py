"""AIBrix's KV cache manager: a cache in memory (its L1), and behind it a database or a service (its L2).

Rules of this file
- A block of the manager is a page, byte for byte upstream's flat page; its key is the page's hash. Ranks and stages
  are told apart by their heads and layers, models by the manager's namespace alone, so give each model its own.
- Latent rows (MLA), which SGLang's class refuses, are stored as keys and values of half their width.
- A manager is made for one shape of pages, and clients of one process share it: its database is opened once.
- All of its settings are variables of its own, AIBRIX_KV_CACHE_OL_*. A page in RocksDB has RocksDB's checksum.
- The manager counts leading pages only, and a question for each page takes as long as writing it. So pages behind the
  first that is missing are written, also those that are there, as upstream does with all.
- One call at a time: the manager's own threads do what can be done at once.
- Source: `aibrix_kvcache_storage.py` of 0.5.23.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from ...config.layouts import KvGeometry
from .client import Counts, PageMemory, Slots, StorageIdentity, StoreFailed
from .flat import scatter
from .gate import Gate
from .keeping import Keeping, unlimited
from .options import Options

_PREFIX = "AIBRIX_KV_CACHE_OL_"
_NAMESPACE = _PREFIX + "L2_CACHE_NAMESPACE"
_MODEL_TOKENS = 102_400
"""What upstream says of the model."""


def from_options(identity: StorageIdentity, options: Options) -> AibrixClient:
    options.end()
    import aibrix_kvcache  # noqa: F401  (the error names what is missing, before anything is made)

    variables = {key: value for key, value in options.environ.items() if key.startswith(_PREFIX)}
    if identity.tag:
        variables[_NAMESPACE] = f"{variables.get(_NAMESPACE, 'aibrix')}-{identity.tag}"
    return AibrixClient(identity, variables)


# Managers


class Shape(NamedTuple):
    """What a manager knows of a page."""

    tokens: int
    heads: tuple[int, ...]
    """Numbers of this rank's heads among those of all ranks."""
    layers: tuple[int, ...]
    head_bytes: int


def shape_of(identity: StorageIdentity, geometry: KvGeometry) -> Shape:
    rank = 0 if identity.replicated else identity.tp_rank
    heads = range(rank * geometry.heads, (rank + 1) * geometry.heads)
    layers = range(identity.pp_rank * geometry.layers, (identity.pp_rank + 1) * geometry.layers)
    width = geometry.components * geometry.dim * geometry.itemsize // 2
    return Shape(geometry.page_size, tuple(heads), tuple(layers), width)


Key: TypeAlias = "tuple[Shape, tuple[tuple[str, str], ...]]"


class Managers:
    """The managers of this process, by shape and variables, as long as somebody has them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[Key, tuple[Any, int]] = {}

    def take(self, shape: Shape, variables: Mapping[str, str]) -> tuple[Key, Any]:
        """A manager to be given back. StoreFailed: there can be none."""
        key = (shape, tuple(sorted(variables.items())))
        with self._lock:
            manager, users = self._made.get(key, (None, 0))
            if manager is None:
                manager = self._make(shape, variables)
            self._made[key] = (manager, users + 1)
            return key, manager

    def give_back(self, key: Key) -> None:
        with self._lock:
            manager, users = self._made.pop(key)
            if users > 1:
                self._made[key] = (manager, users - 1)
            else:
                manager.close()

    def _make(self, shape: Shape, variables: Mapping[str, str]) -> Any:
        os.environ.setdefault("TQDM_DISABLE", "1")
        import torch
        from aibrix_kvcache import (
            BaseKVCacheManager,
            KVCacheBlockLayout,
            KVCacheBlockSpec,
            KVCacheConfig,
            KVCacheTensorSpec,
            ModelSpec,
            cache_manager,
        )

        # It would pin memory wherever its device is the CPU, and there is nothing to pin it for without CUDA.
        cache_manager.TESTING_DISABLE_PIN_MEMORY = not torch.cuda.is_available()
        tensors = KVCacheTensorSpec(heads=list(shape.heads), layers=list(shape.layers), head_size=shape.head_bytes)
        block = KVCacheBlockSpec(
            block_ntokens=shape.tokens,
            block_dtype=torch.uint8,
            block_layout=KVCacheBlockLayout.NCLD,
            tensor_spec=tensors,
        )
        config = KVCacheConfig(block_spec=block, model_spec=ModelSpec(_MODEL_TOKENS), multi_threaded=True)
        with _environment(variables):
            try:
                return BaseKVCacheManager(config)
            except Exception as error:
                raise StoreFailed(f"aibrix: no manager: {error}; see its variables, {_PREFIX}*") from error


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The manager reads variables while it is made, and only then."""
    before = {key: value for key, value in os.environ.items() if key.startswith(_PREFIX)}
    try:
        for key in before:
            del os.environ[key]
        os.environ.update(variables)
        yield
    finally:
        for key in variables:
            os.environ.pop(key, None)
        os.environ.update(before)


MANAGERS = Managers()


# The client


class AibrixClient:
    """Satisfies `StorageClient`. Without a geometry in its identity it knows no pages before it has seen one."""

    def __init__(self, identity: StorageIdentity, variables: Mapping[str, str], managers: Managers = MANAGERS) -> None:
        self.identity = identity
        self._variables = variables
        self._managers = managers
        self._lock = threading.Lock()
        self._taken: dict[KvGeometry, tuple[Key, Any]] = {}
        self._last = identity.geometry
        self._counts = Counts()
        self._gate = Gate("the aibrix store", self._end)

    def exists(self, names: Sequence[str]) -> int:
        with self._gate, self._lock:
            if not names or self._last is None:
                return 0
            return self._leading(self._manager(self._last), list(names), self._last.page_size)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate, self._lock:
            good = self._read(list(names), host, slots) if names else 0
            self._counts.add("read_pages", good)
            self._counts.add("missed_pages", good < len(names))
            return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate, self._lock:
            manager, tokens = self._manager(host.geometry), host.geometry.page_size
            known = self._leading(manager, list(names), tokens) if names else 0
            new = names[known:]
            written = self._write(list(new), host, slots[known:]) if new else 0
            self._counts.add("present_pages", known)
            self._counts.add("written_pages", written)
            self._counts.add("refused_pages", len(new) - written)
            return known + written

    def clear(self) -> None:
        raise StoreFailed("aibrix: the manager cannot forget pages that it is not told: remove its database instead")

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("AIBrix evicts within its own tiers, and tells nobody")

    def close(self) -> None:
        self._gate.close()

    def _manager(self, geometry: KvGeometry) -> Any:
        self._last = geometry
        if geometry not in self._taken:
            self._taken[geometry] = self._managers.take(shape_of(self.identity, geometry), self._variables)
        return self._taken[geometry][1]

    def _leading(self, manager: Any, names: list[str], tokens: int) -> int:
        found = _answer(manager.exists(None, _hashes(names, tokens)), "exists")
        return 0 if found is None else int(found) // tokens

    def _read(self, names: list[str], host: PageMemory, slots: Slots) -> int:
        tokens = host.geometry.page_size
        found = _answer(self._manager(host.geometry).acquire(None, _hashes(names, tokens)), "acquire")
        if found is None:
            return 0
        fetched, handle = found
        try:
            pages = handle.to_tensors()[: int(fetched) // tokens]
            for page, slot in zip(pages, slots.tolist(), strict=False):
                scatter(memoryview(page.contiguous().numpy()), host, slot)
        finally:
            handle.release()
        return len(pages)

    def _write(self, names: list[str], host: PageMemory, slots: Slots) -> int:
        manager, tokens = self._manager(host.geometry), host.geometry.page_size
        handle = _answer(manager.allocate_for(None, _hashes(names, tokens)), "allocate")
        if handle is None:
            return 0
        blocks = handle.to_tensors()
        for block, slot in zip(blocks, slots.tolist(), strict=False):
            memory, at = memoryview(block.numpy()).cast("B"), 0
            for piece in host.page_memory(slot):
                memory[at : at + piece.nbytes] = piece
                at += piece.nbytes
        done = _answer(manager.put(None, _hashes(names[: len(blocks)], tokens), handle), "put")
        return 0 if done is None else int(done) // tokens

    def _end(self) -> None:
        for key, _ in self._taken.values():
            self._managers.give_back(key)


def _hashes(names: list[str], tokens: int) -> Any:
    from aibrix_kvcache import BlockHashes

    return BlockHashes(names, tokens)


def _answer(status: Any, call: str) -> Any:
    """What a status holds; None for nothing there, or no room. StoreFailed: anything else."""
    if status.is_ok():
        return status.value
    if status.is_not_found() or status.is_out_of_memory() or status.is_denied():
        return None
    raise StoreFailed(f"aibrix: {call}: {status}")
