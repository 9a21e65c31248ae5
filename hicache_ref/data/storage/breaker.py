"""When to stop asking a store that does not answer, and when to ask again.

Rules of this file
- Closed: ask. After so many failures in a row open: do not ask. After a wait half-open: one call may try, and its
  outcome closes the breaker, or opens it for twice as long.
- Any success closes it: a store that answers is alive, whoever asked.
- Time comes from `clock`; nothing here sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Breaker:
    """One for each store. `failures` in a row open it, first for `first_wait_s`, at most for `longest_wait_s`."""

    def __init__(
        self,
        failures: int = 3,
        first_wait_s: float = 1.0,
        longest_wait_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed_failures = failures
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._wait_s = first_wait_s
        self._asks_again_s: float | None = None
        """When the next trial is due; None while closed."""
        self._trying = False
        self.times_opened = 0
        self.times_tried = 0
        self.times_closed = 0

    @property
    def state(self) -> str:
        with self._lock:
            if self._asks_again_s is None:
                return "closed"
            return "half-open" if self._trying or self._clock() >= self._asks_again_s else "open"

    def admits(self) -> bool:
        """Whether to call the store now. Who is admitted reports how it went."""
        with self._lock:
            if self._asks_again_s is None:
                return True
            if self._trying or self._clock() < self._asks_again_s:
                return False
            self._trying = True
            self.times_tried += 1
            return True

    def succeeded(self) -> None:
        with self._lock:
            self.times_closed += self._asks_again_s is not None
            self._failures = 0
            self._wait_s = self._first_wait_s
            self._asks_again_s = None
            self._trying = False

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._trying:
                self._open(min(2 * self._wait_s, self._longest_wait_s))
            elif self._asks_again_s is None and self._failures >= self._allowed_failures:
                self._open(self._first_wait_s)
            # Else it is open already: a call from before that has failed late tells nothing new.

    def _open(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._asks_again_s = self._clock() + wait_s
        self._trying = False
        self.times_opened += 1
