"""A store's client that notes every call: when it began and ended, and what came of it.

Rules of this file
- It changes nothing: what the client answers or raises goes on to who asked.
- A call that has not come back is known as well: it has no end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from hicache_ref.data.storage.client import PageMemory, Slots, StorageClient


@dataclass
class Call:
    """One call. Seconds are those of time.monotonic."""

    what: str
    """exists, get or put."""
    asked: int
    began_s: float
    ended_s: float = inf
    good: int = 0
    error: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error)

    @property
    def hit(self) -> bool:
        """Pages came from the store."""
        return self.what == "get" and self.good > 0


class Watched:
    """Satisfies `StorageClient`. `calls`: in the order they began."""

    def __init__(self, client: StorageClient) -> None:
        self.identity = client.identity
        self.calls: list[Call] = []
        self._client = client
        self._lock = threading.Lock()
        self.clear, self.stats, self.close = client.clear, client.stats, client.close

    def exists(self, names: Sequence[str]) -> int:
        return self._note("exists", len(names), lambda: self._client.exists(names))

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        return self._note("get", len(names), lambda: self._client.get(names, host, slots))

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        return self._note("put", len(names), lambda: self._client.put(names, host, slots))

    def between(self, from_s: float, to_s: float = inf) -> list[Call]:
        """Calls that began then and have come back."""
        with self._lock:
            return [call for call in self.calls if from_s <= call.began_s < to_s and call.ended_s < inf]

    def since(self, from_s: float) -> list[Call]:
        """Calls that began later, those under way too."""
        with self._lock:
            return [call for call in self.calls if from_s <= call.began_s]

    @property
    def hanging(self) -> int:
        """Calls that have not come back."""
        with self._lock:
            return sum(call.ended_s == inf for call in self.calls)

    def _note(self, what: str, asked: int, ask: Callable[[], int]) -> int:
        call = Call(what, asked, time.monotonic())
        with self._lock:
            self.calls.append(call)
        try:
            call.good = ask()
            return call.good
        except BaseException as error:
            call.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            call.ended_s = time.monotonic()
