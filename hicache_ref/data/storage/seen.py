"""Names known to be in a store, believed for a while: what saves a look at each probe.

Rules of this file
- Only presence is remembered. A page that was not there is looked for again.
- A name is believed for `ttl_s` from when it was first seen, however often it is seen after that: somebody else may
  have removed it in the meantime. -1: for good.
- Source: `MetadataCache` in `hicache_storage.py` of 0.5.23, here with a limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

FOR_GOOD = -1.0


class Seen(Protocol):
    def add(self, stem: str) -> None: ...
    def remove(self, stem: str) -> None: ...
    def __contains__(self, stem: str) -> bool: ...
    def clear(self) -> None: ...


class NothingSeen:
    """Remembers nothing: every probe looks."""

    def add(self, stem: str) -> None:
        pass

    def remove(self, stem: str) -> None:
        pass

    def __contains__(self, stem: str) -> bool:
        return False

    def clear(self) -> None:
        pass


class SeenFor:
    """Names of the last `ttl_s` seconds, the oldest of more than `limit` forgotten."""

    def __init__(self, ttl_s: float, limit: int = 1 << 20, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s: dict[str, float] = {}
        """In the order of their times, since a name keeps its first."""

    def add(self, stem: str) -> None:
        with self._lock:
            if stem not in self._since_s:
                self._since_s[stem] = self._clock()
                if len(self._since_s) > self._limit:
                    del self._since_s[next(iter(self._since_s))]

    def remove(self, stem: str) -> None:
        with self._lock:
            self._since_s.pop(stem, None)

    def __contains__(self, stem: str) -> bool:
        with self._lock:
            since_s = self._since_s.get(stem)
            if since_s is None or self._ttl_s == FOR_GOOD:
                return since_s is not None
            if self._clock() - since_s <= self._ttl_s:
                return True
            del self._since_s[stem]
            return False

    def clear(self) -> None:
        with self._lock:
            self._since_s.clear()
