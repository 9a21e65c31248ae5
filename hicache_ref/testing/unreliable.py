"""A store that fails by chance, in front of a real one: for runs that must survive it.

Rules of this file
- A seed decides, call by call, in the order of the calls of each kind; the store behind is never told.
- What fails fails as stores do: an exception, a short answer, a page that is gone though it was promised, or late.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ..data.storage.client import PageMemory, Slots, StorageClient, StoreFailed
from ..data.storage.keeping import Keeping


@dataclass(frozen=True)
class Habits:
    """Shares of calls, 0 to 1. delay_s: the longest that a call may be late."""

    raises: float = 0.0
    short: float = 0.0
    """Fewer pages are done than were asked for, and no word about it."""
    lies: float = 0.0
    """`exists` claims everything."""
    late: float = 0.0
    delay_s: float = 0.01


class UnreliableClient:
    """Satisfies `StorageClient`. `dead`: while set, every call raises, as of a store that is not there."""

    def __init__(self, client: StorageClient, habits: Habits, seed: int = 0) -> None:
        self.identity = client.identity
        self.habits = habits
        self.dead = False
        self.did: Counter[str] = Counter()
        """How often each habit showed."""
        self._client = client
        self._chance = {call: Random(f"{seed}/{call}") for call in ("exists", "get", "put")}
        self._lock = threading.Lock()

    def exists(self, names: Sequence[str]) -> int:
        if self._draw("exists", "lies", self.habits.lies):
            return len(names)
        return self._answer("exists", len(names), lambda pages: self._client.exists(names[:pages]))

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        return self._answer("get", len(names), lambda pages: self._client.get(names[:pages], host, slots[:pages]))

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        return self._answer("put", len(names), lambda pages: self._client.put(names[:pages], host, slots[:pages]))

    def clear(self) -> None:
        self._client.clear()

    def stats(self) -> dict[str, float]:
        return self._client.stats()

    def keeps(self, page_bytes: int) -> Keeping:
        return self._client.keeps(page_bytes)

    def close(self) -> None:
        self._client.close()

    def _answer(self, call: str, asked: int, do: Callable[[int], int]) -> int:
        if self.dead:
            self.did["dead"] += 1
            raise StoreFailed(f"{call}: the store is not there")
        if self._draw(call, "late", self.habits.late):
            time.sleep(self._chance[call].random() * self.habits.delay_s)
        if self._draw(call, "raises", self.habits.raises):
            raise StoreFailed(f"{call}: by chance")
        pages = asked
        if asked and self._draw(call, "short", self.habits.short):
            pages = self._chance[call].randrange(asked)
        return min(do(pages), pages)

    def _draw(self, call: str, habit: str, share: float) -> bool:
        with self._lock:
            shows = self._chance[call].random() < share
            self.did[habit] += shows
        return shows
