"""Which page of a file holds which key, and which goes next: what the metadata server keeps for each rank.

Rules of this file
- A page is free, reserved by somebody who writes it, or a key's. Keys are least recently used first.
- Reserving never waits: without a free page the key used longest ago loses its page, at once, before it is overwritten.
- Reservations that nobody confirmed for a while are taken back. Who comes back later is not believed.
- A seal is whatever the writer says of its bytes; it is kept with the key, and goes with it.
- Source: `mini_3fs_metadata_server.py` of 0.5.23, whose decisions these are wherever it does not lose pages: there two
  writers of one key, a writer that dies, and a clear while somebody writes leak pages or give one to two keys.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

PATIENCE_S = 60.0
NO_PAGE = -1


class Place(NamedTuple):
    """Where a key's bytes are. seal: what its writer said of them, "" if nothing."""

    page: int
    seal: str = ""


class PageTable:
    """The keys of a file of `pages` pages. Its calls come from several threads."""

    def __init__(self, pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.pages = pages
        self._clock = clock
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._reserved: OrderedDict[int, float] = OrderedDict()
        """When each was reserved, the longest ago first."""
        self._freed: list[int] = []
        self._untouched = self.pages
        """Pages below this one have never been given away."""

    def exists(self, keys: Iterable[str]) -> list[bool]:
        with self._lock:
            return [key in self._places for key in keys]

    def find(self, keys: Iterable[str]) -> list[Place | None]:
        """Where keys are; they count as used."""
        with self._lock:
            found = [self._places.get(key) for key in keys]
            for key, place in zip(keys, found, strict=True):
                if place is not None:
                    self._places.move_to_end(key)
            return found

    def reserve(self, keys: Sequence[str]) -> list[tuple[bool, int]]:
        """For each key whether it is there, and its page, or one to write it to; NO_PAGE if there is none to give."""
        with self._lock:
            known = [self._places.get(key) for key in keys]
            for key, place in zip(keys, known, strict=True):
                if place is not None:
                    self._places.move_to_end(key)
            return [(True, place.page) if place is not None else (False, self._take()) for place in known]

    def _take(self) -> int:
        if self._freed:
            page = self._freed.pop()
        elif self._untouched:
            page = self._untouched = self._untouched - 1
        elif self._places:
            page = self._places.popitem(last=False)[1].page
        elif self._reserved and self._clock() - next(iter(self._reserved.values())) > PATIENCE_S:
            page = self._reserved.popitem(last=False)[0]
        else:
            return NO_PAGE
        self._reserved[page] = self._clock()
        return page

    def confirm(self, written: Iterable[tuple[str, Place]], released: Iterable[int]) -> None:
        """Keys whose bytes are there now, and pages that were reserved in vain."""
        with self._lock:
            for key, place in written:
                if self._reserved.pop(place.page, None) is None:
                    continue  # taken back, or cleared, meanwhile
                if key in self._places:
                    self._freed.append(place.page)  # somebody else was first
                else:
                    self._places[key] = place
                self._places.move_to_end(key)
            for page in released:
                if self._reserved.pop(page, None) is not None:
                    self._freed.append(page)

    def delete(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                place = self._places.pop(key, None)
                if place is not None:
                    self._freed.append(place.page)

    def clear(self) -> None:
        with self._lock:
            self._reset()

    def state(self) -> dict[str, Any]:
        """What a file keeps of it: upstream's keys, and seals. What is reserved will be free."""
        with self._lock:
            free = [*range(self._untouched), *self._freed, *self._reserved]
            keys = [[key, place.page] for key, place in self._places.items()]
            seals = {key: place.seal for key, place in self._places.items() if place.seal}
        return {"num_pages": self.pages, "free_pages": free, "key_to_index": keys, "seals": seals}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> PageTable:
        table = cls(state["num_pages"])
        seals = state.get("seals", {})
        table._untouched = 0
        table._freed = list(state["free_pages"])
        table._places = OrderedDict((key, Place(page, seals.get(key, ""))) for key, page in state["key_to_index"])
        return table
