"""The way of stores that take one piece of bytes a page: a bounce buffer between it and the scattered host page.

Rules of this file
- Layouts scatter a page; these stores want it in one piece. The copy happens here, and only here.
- The order is that of upstream's flat page, component by component, so what is stored is the same in every layout of
  that order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from .client import Counts, PageMemory, Slots, StorageIdentity
from .keeping import Keeping, unlimited


def gather(host: PageMemory, page: int) -> bytearray:
    """A page in one piece."""
    return bytearray(b"").join(host.page_memory(page))


def scatter(data: bytes | bytearray | memoryview, host: PageMemory, page: int) -> bool:
    """Put a page in its place. False: `data` is not a page's length, and nothing was touched."""
    view = memoryview(data).cast("B")
    if view.nbytes != host.page_bytes:
        return False
    at = 0
    for piece in host.page_memory(page):
        piece[:] = view[at : at + piece.nbytes]
        at += piece.nbytes
    return True


class FlatPages(ABC):
    """A `StorageClient` made of three methods over keys and bytes. Pages come and go one at a time, so that a batch
    needs one bounce buffer, unless the store's methods gather them."""

    def __init__(self, identity: StorageIdentity) -> None:
        self.identity = identity
        self.counts = Counts()

    @abstractmethod
    def key(self, name: str) -> str:
        """What the store calls a page of this identity."""

    @abstractmethod
    def present(self, keys: Sequence[str]) -> Iterable[bool]:
        """For each key whether it is there."""

    @abstractmethod
    def read(self, keys: Sequence[str]) -> Iterable[bytes | bytearray | memoryview | None]:
        """For each key what is stored, None if nothing; may end after the first that is not there."""

    @abstractmethod
    def write(self, pages: Iterator[tuple[str, bytearray]]) -> Iterable[bool]:
        """Store (key, bytes) that are not there yet; for each whether it is stored now. May end after a refusal."""

    def exists(self, names: Sequence[str]) -> int:
        return _leading(self.present([self.key(name) for name in names]))

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        good = 0
        for data, slot in zip(self.read([self.key(name) for name in names]), slots.tolist(), strict=False):
            if data is None:
                self.counts.add("missed_pages")
                break
            if not scatter(data, host, slot):
                self.counts.add("bad_pages")
                break
            good += 1
        self.counts.add("read_pages", good)
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        keys = [self.key(name) for name in names]
        there = list(self.present(keys))
        new = [(key, slot) for key, slot, known in zip(keys, slots.tolist(), there, strict=True) if not known]
        stored = iter(list(self.write((key, gather(host, slot)) for key, slot in new)) if new else ())
        fates = [True if known else next(stored, False) for known in there]
        written = sum(not known and fate for known, fate in zip(there, fates, strict=True))
        self.counts.add("present_pages", sum(there))
        self.counts.add("written_pages", written)
        self.counts.add("refused_pages", len(fates) - sum(fates))
        return _leading(fates)

    @abstractmethod
    def clear(self) -> None: ...

    def stats(self) -> dict[str, float]:
        return self.counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("nobody has said")

    @abstractmethod
    def close(self) -> None: ...


def _leading(fates: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    count = 0
    for fate in fates:
        if not fate:
            break
        count += 1
    return count
