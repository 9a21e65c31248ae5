"""Who is inside a client, so that what it holds is let go when nobody is any more.

Rules of this file
- Closing never waits: the last call out lets go, or `close` itself where none is under way.
- After `close` nobody comes in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .client import StoreFailed


class Gate:
    """Enter it (`with gate:`) for each call of a client. StoreFailed: it is closed; `what` says whose gate it is."""

    def __init__(self, what: str, let_go: Callable[[], object]) -> None:
        self._what = what
        self._let_go = let_go
        self._lock = threading.Lock()
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._lock:
            if self._closed:
                raise StoreFailed(f"{self._what} is closed")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            last = self._closed and not self._inside
        if last:
            self._let_go()

    def close(self) -> None:
        """No more calls. What is held is let go once, by whoever is last."""
        with self._lock:
            first, self._closed = not self._closed, True
            empty = first and not self._inside
        if empty:
            self._let_go()
