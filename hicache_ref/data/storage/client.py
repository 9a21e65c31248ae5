"""What a store is to the workers: a few calls, of which none knows more of host memory than where a page lies.

Rules of this file
- Nouns only: the protocols, who asks (`StorageIdentity`), what is counted, and how a store says that it failed.
- Names are page hashes in hex. A client makes its own keys of them, as upstream's class for that store does, so that
  what SGLang wrote is read here and the other way round.
- A page that is not there, or not whole, is a short count. An exception means that the store itself is unwell.
- Source: article 5.5; `hicache_storage.py` of 0.5.7 and 0.5.23.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from ...config.layouts import KvGeometry
from .keeping import Keeping

Slots = NDArray[Any]
"""[pages] int64: pages of the host pool."""


class StorageError(ValueError):
    """A store that cannot be set up as asked. One line: what, where, what to do."""


class StoreFailed(RuntimeError):
    """The store could not answer. `pages_ok` leading pages of the call were good before it failed."""

    def __init__(self, what: str, pages_ok: int = 0) -> None:
        super().__init__(what)
        self.pages_ok = pages_ok


class PageMemory(Protocol):
    """Host memory as clients see it; the host pools have it."""

    @property
    def page_bytes(self) -> int:
        """One page, all components and layers."""
        ...

    @property
    def geometry(self) -> KvGeometry:
        """What a page is made of."""
        ...

    def page_memory(self, page: int) -> list[memoryview]:
        """Writable bytes of the page, in the order of upstream's flat page: component by component."""
        ...

    def page_buffers(self, page: int) -> list[tuple[int, int]]:
        """(address, bytes) of each object that a zero-copy store makes of the page (`get_page_buffer_meta`)."""
        ...

    def regions(self) -> list[tuple[int, int]]:
        """(address, bytes) of all the memory that pages lie in: what a zero-copy store registers, once."""
        ...


@dataclass(frozen=True)
class StorageIdentity:
    """Whose pages these are. Two identities never see each other's pages, unless they are replicas of one another."""

    model_name: str = ""
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    replicated: bool = False
    """Every TP rank has the same rows (MLA): they share their pages, and rank 0 alone writes them."""
    tag: str = ""
    """A namespace of its own within the store."""
    layout: str = "page_first"
    """The host pool's (--hicache-mem-layout), where a store's keys or objects depend on it, as upstream's do."""
    geometry: KvGeometry | None = None
    """What a page is made of, for stores that must know before they see one."""

    def __post_init__(self) -> None:
        for what, rank, size in (("TP", self.tp_rank, self.tp_size), ("PP", self.pp_rank, self.pp_size)):
            if not 0 <= rank < size:
                raise StorageError(f"storage identity: {what} rank {rank} of {size}; ranks are 0 to {what} size - 1")

    @property
    def writes(self) -> bool:
        """Whether this rank stores pages, or leaves that to rank 0."""
        return not self.replicated or self.tp_rank == 0


class StorageClient(Protocol):
    """One rank's way to a store. Calls block, may come from several threads at once, and take empty batches.

    A batch is at most a few hundred pages; `slots[i]` is the host page of `names[i]`.
    """

    identity: StorageIdentity

    def exists(self, names: Sequence[str]) -> int:
        """How many leading pages are there. A promise as good as the store's: `get` may still find less."""
        ...

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        """Read pages into host memory; how many leading ones are good. What lies behind them is garbage."""
        ...

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        """Store pages; how many leading ones are in the store now. Those that were there already are not rewritten,
        but where to ask for each costs more than to write (AIBrix, behind the first that was missing)."""
        ...

    def clear(self) -> None:
        """Forget this identity's pages."""
        ...

    def stats(self) -> dict[str, float]:
        """What happened so far. All clients count at least the pages of `Counts.COMMON`."""
        ...

    def keeps(self, page_bytes: int) -> Keeping:
        """How much the store keeps, in pages of this size, and what goes when it is full. May take seconds."""
        ...

    def close(self) -> None:
        """Let go of what the client holds. Calls under way end well or raise; later ones raise `StoreFailed`."""
        ...


class Counts:
    """Counters that threads share. Those of COMMON mean the same in every client."""

    COMMON = ("read_pages", "missed_pages", "bad_pages", "written_pages", "present_pages", "refused_pages")
    """Pages read whole; asked for and not there; there but not whole; written; not written because they were there
    already; not written because the store had no room."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(self.COMMON, 0))

    def add(self, what: str, count: int = 1) -> None:
        with self._lock:
            self._counts[what] += count

    def snapshot(self) -> dict[str, float]:
        with self._lock:
            return dict(self._counts)
