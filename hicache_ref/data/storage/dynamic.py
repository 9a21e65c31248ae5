"""Any class with SGLang's `HiCacheStorage` interface, by the names of its module and class.

Rules of this file
- The class is made and called as SGLang's controller does it: `cls(storage_config, {})`, then
  `register_mem_pool_host`, then batches: by addresses where the extra config says `interface_v1`, else by flat pages.
- It makes its own keys of page names, reads the extra config itself, and verifies pages, or does not: what it wrote
  for SGLang it finds here.
- To it, host memory is a pool in page_first order with one token a page. Where a component of a page lies in one piece
  it gets that address; other layouts go through a block of memory in that order.
- Nothing it raises comes further than `StoreFailed`.
- Source: `backend_factory.py`, `cache_controller.py` (`_page_get_zero_copy`, `_generic_page_get`) of 0.5.23.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .flat import gather, scatter
from .gate import Gate
from .keeping import Keeping, unlimited
from .options import Options, flag, text

BATCH_PAGES = 128
"""SGLang's STORAGE_BATCH_SIZE: no class has been asked for more at once."""


def from_options(identity: StorageIdentity, options: Options) -> DynamicClient:
    """The client of the class that an operator's settings name. All other settings are the class's own."""
    name = options.take("backend_name", text, "dynamic")
    module, cls = (options.take(key, text, "") for key in ("module_path", "class_name"))
    zero_copy = options.take("interface_v1", flag, False)
    if not (module and cls):
        raise StorageError("storage backend 'dynamic': give module_path and class_name in the extra config")
    return DynamicClient(identity, name, _load(module, cls), zero_copy, options.given)


def _load(module: str, name: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise StorageError(f"storage backend 'dynamic': cannot import {module}: {error}") from None
    except AttributeError:
        raise StorageError(f"storage backend 'dynamic': {module} has no class {name}; correct class_name") from None
    return found


@dataclass(frozen=True)
class StorageConfig:
    """What a class learns of its rank: the fields of upstream's `HiCacheStorageConfig`, with their meaning."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    is_mla_model: bool
    is_page_first_layout: bool
    model_name: str
    extra_config: dict[str, Any]
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    enable_storage_metrics: bool = False
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None

    @property
    def is_storage_writer(self) -> bool:
        return not self.is_mla_model or self.tp_rank == self.dcp_rank


def storage_config(identity: StorageIdentity, extra_config: Mapping[str, Any]) -> StorageConfig:
    return StorageConfig(
        tp_rank=identity.tp_rank,
        tp_size=identity.tp_size,
        pp_rank=identity.pp_rank,
        pp_size=identity.pp_size,
        is_mla_model=identity.replicated,
        is_page_first_layout=True,
        model_name=identity.model_name,
        extra_config=dict(extra_config),
    )


class DynamicClient:
    """Satisfies `StorageClient` by way of an object of `cls`. Host memory it has seen is kept until it is closed."""

    def __init__(
        self,
        identity: StorageIdentity,
        name: str,
        cls: Callable[..., Any],
        zero_copy: bool,
        extra_config: Mapping[str, Any],
    ) -> None:
        self.identity = identity
        self._name = name
        self._counts = Counts()
        try:
            self._store = cls(storage_config(identity, extra_config), {})
        except Exception as error:
            raise StorageError(f"storage backend {name!r} cannot be set up: {error}") from error
        self._path: _Path = (_ByAddress if zero_copy else _ByValue)(self._store)
        self._pools = _Pools(self._store, 1 if identity.replicated else 2)
        self._gate = Gate(f"the store {name!r}", getattr(self._store, "close", lambda: None))

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        with self._asking():
            return self._exists(names)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        good = 0
        with self._asking(), self._pools.use(host) as pool:
            for first in range(0, len(names), BATCH_PAGES):
                batch = list(names[first : first + BATCH_PAGES])
                arrived = self._path.get(batch, pool, slots[first : first + len(batch)])
                good += arrived
                if arrived < len(batch):
                    self._counts.add("missed_pages")
                    break
        self._counts.add("read_pages", good)
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._asking(), self._pools.use(host) as pool:
            # Mostly none is there, which one question tells: some classes take an eighth of a write to answer for all.
            there = stored = self._exists(names) if self._exists(names[:1]) else 0
            while stored < len(names):
                batch = list(names[stored : stored + BATCH_PAGES])
                more = self._path.put(batch, pool, slots[stored : stored + len(batch)])
                stored += more
                if more < len(batch):
                    break
        self._counts.add("present_pages", there)
        self._counts.add("written_pages", stored - there)
        self._counts.add("refused_pages", len(names) - stored)
        return stored

    def clear(self) -> None:
        with self._asking():
            self._store.clear()

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("the interface has no question for it")

    def close(self) -> None:
        self._gate.close()

    def _exists(self, names: Sequence[str]) -> int:
        return int(self._store.batch_exists(list(names))) if names else 0

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._gate:
            try:
                yield
            except Exception as error:
                raise StoreFailed(f"store {self._name!r}: {error!r}") from error


# Ways to hand over a batch


class _Path(Protocol):
    """How pages go to the class and come from it. Both answer how many leading ones did."""

    def get(self, names: list[str], pool: _Pool, slots: Slots) -> int: ...
    def put(self, names: list[str], pool: _Pool, slots: Slots) -> int: ...


class _ByAddress:
    """interface_v1: the class asks the pool where pages lie."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, names: list[str], pool: _Pool, slots: Slots) -> int:
        with pool.lent(slots) as indices:
            good = _leading(self._store.batch_get_v1(names, indices))
            pool.deliver(slots[:good])
        return good

    def put(self, names: list[str], pool: _Pool, slots: Slots) -> int:
        with pool.lent(slots) as indices:
            pool.fill(slots)
            return _leading(self._store.batch_set_v1(names, indices))


class _ByValue:
    """The generic interface: tensors of whole pages, which are copied on their way."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, names: list[str], pool: _Pool, slots: Slots) -> int:
        answer = self._store.batch_get(names, [pool.get_dummy_flat_data_page() for _ in names]) or ()
        good = 0
        for page, slot in zip(answer, slots.tolist(), strict=False):
            if page is None or not scatter(_bytes(page), pool.host, slot):
                break
            good += 1
        return good

    def put(self, names: list[str], pool: _Pool, slots: Slots) -> int:
        pages = [torch.frombuffer(gather(pool.host, slot), dtype=torch.uint8) for slot in slots.tolist()]
        self._store.batch_set(names, pages)
        # Its own answer is all or nothing, and in some classes a list that is always true.
        return int(self._store.batch_exists(names))


def _bytes(page: Tensor) -> memoryview:
    return page.contiguous().view(torch.uint8).numpy().data


def _leading(fates: Iterable[bool]) -> int:
    return [*map(bool, fates), False].index(False)


# Host memory as the class sees it


class _Pool:
    """A host pool of upstream's, in page_first order, where pages lie. Indices are pages."""

    layout = "page_first"
    page_size = 1
    dtype = torch.uint8

    def __init__(self, host: PageMemory, components: int) -> None:
        self.host = host
        self._components = components
        self.kv_buffer = _tensor(*host.regions()[0])
        self.size = self.kv_buffer.numel() // host.page_bytes

    # What upstream's classes call

    def get_page_buffer_meta(self, indices: Tensor) -> tuple[list[int], list[int]]:
        """Addresses and bytes, a component each, page by page."""
        buffers = [buffer for page in indices.tolist() for buffer in self._buffers(page)]
        return [address for address, _ in buffers], [size for _, size in buffers]

    def get_data_page(self, index: Any, flat: bool = True) -> Tensor:
        parts = [_tensor(*buffer) for buffer in self._buffers(int(index))]
        return torch.cat(parts) if flat else torch.stack(parts)

    def get_dummy_flat_data_page(self) -> Tensor:
        return torch.empty(self.host.page_bytes, dtype=torch.uint8)

    def set_from_flat_data_page(self, index: Any, page: Tensor) -> None:
        parts = [_tensor(*buffer) for buffer in self._buffers(int(index))]
        for part, data in zip(parts, page.view(torch.uint8).view(len(parts), -1), strict=True):
            part.copy_(data)

    def get_size_per_token(self) -> int:
        return self.host.page_bytes

    def get_ksize_per_token(self) -> int:
        return self.host.page_bytes // self._components

    # What the client does around its calls

    @contextmanager
    def lent(self, slots: Slots) -> Iterator[Tensor]:
        """The indices of pages to hand over."""
        yield torch.from_numpy(slots)

    def fill(self, slots: Slots) -> None:
        """Pages are where they are looked for."""

    def deliver(self, slots: Slots) -> None:
        """Pages are where they belong."""

    def _buffers(self, page: int) -> list[tuple[int, int]]:
        return self.host.page_buffers(page)


class _StagedPool(_Pool):
    """For host memory that cuts components into pieces: a block of a batch's pages, one batch at a time."""

    def __init__(self, host: PageMemory, components: int) -> None:
        super().__init__(host, components)
        self._block = bytearray(BATCH_PAGES * host.page_bytes)
        self._lock = threading.Lock()
        self.kv_buffer = torch.frombuffer(self._block, dtype=torch.uint8)
        self.size = BATCH_PAGES

    @contextmanager
    def lent(self, slots: Slots) -> Iterator[Tensor]:
        with self._lock:
            yield torch.arange(len(slots))

    def fill(self, slots: Slots) -> None:
        for at, slot in enumerate(slots.tolist()):
            self._page(at)[:] = gather(self.host, slot)

    def deliver(self, slots: Slots) -> None:
        for at, slot in enumerate(slots.tolist()):
            scatter(self._page(at), self.host, slot)

    def _page(self, at: int) -> memoryview:
        return memoryview(self._block)[at * self.host.page_bytes :][: self.host.page_bytes]

    def _buffers(self, page: int) -> list[tuple[int, int]]:
        each = self.get_ksize_per_token()
        start = self.kv_buffer.data_ptr() + page * self.host.page_bytes
        return [(start + at * each, each) for at in range(self._components)]


class _Pools:
    """Host memory that the class has been told of. It knows one at a time: the last."""

    def __init__(self, store: Any, components: int) -> None:
        self._store = store
        self._components = components
        self._idle = threading.Condition()
        self._users = 0
        self._current: _Pool | None = None
        self._known: dict[int, _Pool] = {}
        """By the id of the host, which the pool keeps alive."""

    @contextmanager
    def use(self, host: PageMemory) -> Iterator[_Pool]:
        """The pool of `host`, which the class knows to be its pool for so long. Who wants another one waits."""
        with self._idle:
            pool = self._known.setdefault(id(host), self._known.get(id(host)) or self._make(host))
            while self._users and self._current is not pool:
                self._idle.wait()
            if self._current is not pool:
                self._register(pool)
            self._users += 1
        try:
            yield pool
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def _make(self, host: PageMemory) -> _Pool:
        whole = len(host.page_buffers(0)) == self._components and len(host.regions()) == 1
        return (_Pool if whole else _StagedPool)(host, self._components)

    def _register(self, pool: _Pool) -> None:
        first, self._current = self._current is None, None
        self._store.register_mem_pool_host(pool)
        if first:
            getattr(self._store, "on_host_pools_registered", lambda: None)()
        self._current = pool


def _tensor(address: int, size: int) -> Tensor:
    """Memory that somebody else keeps alive, as bytes."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
