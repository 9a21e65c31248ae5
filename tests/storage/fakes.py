"""Host memory and stores that tests have in their hands."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from hicache_ref.config.layouts import KvGeometry
from hicache_ref.data.storage.client import Counts, PageMemory, Slots, StorageIdentity, StoreFailed
from hicache_ref.data.storage.flat import FlatPages
from hicache_ref.data.storage.keeping import Keeping, unlimited

PAGE_BYTES = 768


def name_of(number: int) -> str:
    """A page's name, as long as real ones."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def names_of(numbers: Iterable[int]) -> list[str]:
    return [name_of(number) for number in numbers]


def content(name: str, size_bytes: int = PAGE_BYTES) -> bytes:
    """What the page of this name holds wherever a test wants to tell pages apart."""
    return hashlib.shake_128(name.encode()).digest(size_bytes)


class FakeHost:
    """`PageMemory` of `pages` pages, each in `pieces` pieces that lie apart as those of layer_first do."""

    def __init__(self, pages: int, pieces: int = 3, page_bytes: int = PAGE_BYTES) -> None:
        self.pages = pages
        self.page_bytes = page_bytes
        self.geometry = KvGeometry("mha", 2, 1, 1, 1, page_bytes // 2, 1, (page_bytes // 2,))
        self.memory = np.zeros((pieces, pages, page_bytes // pieces), np.uint8)

    def page_memory(self, page: int) -> list[memoryview]:
        return [memoryview(piece[page]) for piece in self.memory]

    def page_buffers(self, page: int) -> list[tuple[int, int]]:
        return [(ctypes.addressof(ctypes.c_char.from_buffer(m)), m.nbytes) for m in self.page_memory(page)]

    def regions(self) -> list[tuple[int, int]]:
        return [(self.memory.ctypes.data, self.memory.nbytes)]


def read_page(host: PageMemory, page: int) -> bytes:
    return b"".join(host.page_memory(page))


def write_page(host: PageMemory, page: int, data: bytes) -> None:
    at = 0
    for piece in host.page_memory(page):
        piece[:] = data[at : at + piece.nbytes]
        at += piece.nbytes


def fill(host: PageMemory, names: Sequence[str], slots: Slots) -> None:
    """Page `slots[i]` holds what belongs to `names[i]`."""
    for name, slot in zip(names, slots.tolist(), strict=True):
        write_page(host, slot, content(name, host.page_bytes))


def wrong(host: PageMemory, names: Sequence[str], slots: Slots) -> list[int]:
    """The pages that do not hold what belongs to their names."""
    pairs = zip(names, slots.tolist(), strict=True)
    return [at for at, (name, slot) in enumerate(pairs) if read_page(host, slot) != content(name, host.page_bytes)]


class DictClient(FlatPages):
    """A store that is a dictionary, which several clients may share."""

    def __init__(self, identity: StorageIdentity, pages: dict[str, bytes], room: int = 1 << 30) -> None:
        super().__init__(identity)
        self.pages = pages
        self._room = room
        self._closed = False

    def key(self, name: str) -> str:
        who = self.identity
        rank = "all" if who.replicated else who.tp_rank
        return f"{who.tag}/{who.model_name}/{rank}/{who.pp_rank}/{name}"

    def present(self, keys: Sequence[str]) -> Iterable[bool]:
        self._check()
        return [key in self.pages for key in keys]

    def read(self, keys: Sequence[str]) -> Iterable[bytes | None]:
        self._check()
        return map(self.pages.get, keys)

    def write(self, pages: Iterator[tuple[str, bytearray]]) -> Iterable[bool]:
        self._check()
        for key, data in pages:
            if len(self.pages) >= self._room:
                return
            self.pages.setdefault(key, bytes(data))
            yield True

    def clear(self) -> None:
        self._check()
        start = self.key("")
        for key in [key for key in list(self.pages) if key.startswith(start)]:
            del self.pages[key]

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StoreFailed("the dictionary is closed")


class ScriptedClient:
    """A client whose calls do what a test says: `script(call, names)` answers, raises or hangs; None: all is well."""

    def __init__(
        self,
        script: Callable[[str, Sequence[str]], int | None] = lambda call, names: None,
        identity: StorageIdentity | None = None,
    ) -> None:
        self.identity = identity or StorageIdentity("m")
        self.script = script
        self.calls: list[tuple[str, int]] = []
        self.closed = 0
        self._counts = Counts()
        self._lock = threading.Lock()

    def _answer(self, call: str, names: Sequence[str]) -> int:
        with self._lock:
            self.calls.append((call, len(names)))
        answer = self.script(call, names)
        return len(names) if answer is None else answer

    def exists(self, names: Sequence[str]) -> int:
        return self._answer("exists", names)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        good = self._answer("get", names)
        fill(host, names[:good], slots[:good])
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        return self._answer("put", names)

    def clear(self) -> None:
        self._answer("clear", ())

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("a script")

    def close(self) -> None:
        self.closed += 1
        self._answer("close", ())
