"""A page as objects of a zero-copy store: which bytes of host memory each of them is.

Rules of this file
- Addresses, not bytes: nothing is copied here, whatever the host's layout.
- An object is an equal share of the flat page, component by component. So two objects of a page with keys and values
  are its keys and its values, as in upstream's stores, and one object is upstream's flat page.
- Memory is registered when a host is first seen, and let go after the host has gone.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .client import PageMemory

Buffer: TypeAlias = "tuple[int, int]"
"""(address, bytes)."""


def cut(host: PageMemory, page: int, components: int, objects: int) -> list[list[Buffer]]:
    """The buffers of each of `objects` equal shares of a page.

    components: tensors that the host keeps of a layer, 2 for keys and values. ValueError: the page cannot be cut so.
    """
    # The host lists what lies at the same place of each component side by side; shares take one after the other.
    beside = host.page_buffers(page)
    buffers = beside if len(beside) == components else [b for at in range(components) for b in beside[at::components]]
    each, rest = divmod(host.page_bytes, objects)
    if rest:
        raise ValueError(f"a page of {host.page_bytes} bytes cannot be cut into {objects} objects")
    if [size for _, size in buffers] == [each] * objects:
        return [[buffer] for buffer in buffers]
    return _shares(buffers, each)


def _shares(buffers: Sequence[Buffer], each: int) -> list[list[Buffer]]:
    """`buffers` one after the other, cut after every `each` bytes."""
    shares: list[list[Buffer]] = [[]]
    room = each
    for address, size in buffers:
        while size > room:
            if room:
                shares[-1].append((address, room))
            address, size, room = address + room, size - room, each
            shares.append([])
        shares[-1].append((address, size))
        room -= size
    return shares


def cut_memory(host: PageMemory, page: int, objects: int) -> list[list[memoryview]]:
    """The same, as writable memory, for stores that are not told addresses."""
    each, rest = divmod(host.page_bytes, objects)
    if rest:
        raise ValueError(f"a page of {host.page_bytes} bytes cannot be cut into {objects} objects")
    pieces = host.page_memory(page)
    if [piece.nbytes for piece in pieces] == [each] * objects:
        return [[piece] for piece in pieces]
    shares: list[list[memoryview]] = [[]]
    room = each
    for piece in pieces:
        while piece.nbytes > room:
            if room:
                shares[-1].append(piece[:room])
            piece, room = piece[room:], each
            shares.append([])
        shares[-1].append(piece)
        room -= piece.nbytes
    return shares


class Registrations:
    """Host memory that a store knows. `add(address, bytes)` makes it known, `remove` takes what `add` gave."""

    def __init__(self, add: Callable[[int, int], Any], remove: Callable[[Any], object]) -> None:
        self._add = add
        self._remove = remove
        self._lock = threading.Lock()
        self._known: dict[int, list[Any]] = {}
        """By the id of the host, while it lives."""
        self._gone: deque[int] = deque()
        """Hosts that have gone. They say so at any time and on any thread, so nothing is locked for it."""

    def ensure(self, host: PageMemory) -> None:
        """Make `host` known, if it is not. Raises what `add` raises."""
        if id(host) in self._known and not self._gone:
            return
        with self._lock:
            while self._gone:
                self._forget(self._gone.popleft())
            if id(host) not in self._known:
                self._known[id(host)] = [self._add(address, size) for address, size in host.regions()]
                weakref.finalize(host, self._gone.append, id(host)).atexit = False

    def end(self) -> None:
        with self._lock:
            for host in list(self._known):
                self._forget(host)

    def _forget(self, host: int) -> None:
        for handle in self._known.pop(host, []):
            self._remove(handle)
