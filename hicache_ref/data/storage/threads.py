"""Threads that may be left behind.

Rules of this file
- Daemons: a call that never returns (a dead network mount) must not keep the process from ending, which the threads
  of `concurrent.futures` would do.
- What a call returns or raises goes into its future. Nothing a call does ends the thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias


class ThreadsEnded(RuntimeError):
    """A call was given to threads that take no more."""


Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]"


class Threads:
    """`count` threads that take calls in turn, until `end`, or until nobody has this object any more."""

    def __init__(self, count: int, name: str) -> None:
        self._calls: Calls = SimpleQueue()
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _dismiss, self._calls, count)
        self._end.atexit = False
        for at in range(count):
            threading.Thread(target=_work, args=(self._calls,), name=f"{name}-{at}", daemon=True).start()

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Have it called. ThreadsEnded: too late for that."""
        return self.submit_all(call, [args])[0]

    def submit_all(self, call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Future[Any]]:
        """One call for each tuple of arguments; all of them, or ThreadsEnded and none."""
        futures: list[Future[Any]] = [Future() for _ in arguments]
        with self._lock:
            if not self._end.alive:
                raise ThreadsEnded
            for future, args in zip(futures, arguments, strict=True):
                self._calls.put((future, call, args))
        return futures

    def end(self) -> None:
        """No more calls. Those given are made, then the threads go; does not wait for that."""
        with self._lock:
            self._end()


def _dismiss(calls: Calls, count: int) -> None:
    for _ in range(count):
        calls.put(None)


def _work(calls: Calls) -> None:
    while (task := calls.get()) is not None:
        future, call, args = task
        try:
            result = call(*args)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        # Neither a result nor an argument outlives its call while the thread waits for the next one.
        del task, future, call, args
        result = None
