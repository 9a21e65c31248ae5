"""As much of `torch.cuda` as streams need, with CUDA's own rules: work is queued and done later, in order, by the
device; a wait for an event that has not been recorded passes at once; a query never blocks.

A fake kernel is `launch(work)`: queued on the current stream of the calling thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from hicache_ref.data import streams

_current = threading.local()


class FakeStream:
    """Does its work on a thread, until `end`."""

    made: list[FakeStream] = []  # noqa: RUF012

    def __init__(self, device: Any = None) -> None:
        self.queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()
        FakeStream.made.append(self)

    def _work(self) -> None:
        while (work := self.queue.get()) is not None:
            work()

    def wait_event(self, event: FakeEvent) -> None:
        moment = event.moment
        if moment is not None:
            self.queue.put(lambda: moment.wait() and None)

    def synchronize(self) -> None:
        done = threading.Event()
        self.queue.put(done.set)
        done.wait()


class FakeEvent:
    """`moment`: that of its latest recording."""

    def __init__(self, blocking: bool = False, enable_timing: bool = False) -> None:
        self.moment: threading.Event | None = None
        self.time_s = 0.0

    def record(self, stream: FakeStream) -> None:
        self.moment = moment = threading.Event()

        def pass_by() -> None:
            self.time_s = time.perf_counter()
            moment.set()

        stream.queue.put(pass_by)

    def query(self) -> bool:
        return self.moment is None or self.moment.is_set()

    def synchronize(self) -> None:
        if self.moment is not None:
            self.moment.wait()

    def elapsed_time(self, later: FakeEvent) -> float:
        return (later.time_s - self.time_s) * 1000


class FakeCuda:
    """Stands in for the module."""

    Stream = FakeStream
    Event = FakeEvent

    @staticmethod
    def current_stream(device: Any = None) -> FakeStream:
        if not hasattr(_current, "stream"):
            _current.stream = FakeStream()  # a thread's default stream
        return _current.stream

    @staticmethod
    @contextmanager
    def stream(stream: FakeStream) -> Iterator[None]:
        _current.stream = stream
        yield

    @staticmethod
    def put_under(monkeypatch: Any) -> None:
        """From now on streams for the CPU are CUDA's, on this device."""
        monkeypatch.setattr(streams, "_CUDA", FakeCuda)
        monkeypatch.setitem(streams.STREAMS, "cpu", streams.CudaStream)


def launch(work: Callable[[], None]) -> None:
    """A kernel: returns at once, done in its turn."""
    FakeCuda.current_stream().queue.put(work)


def end_all() -> None:
    """End the threads of all streams made so far."""
    if hasattr(_current, "stream"):
        del _current.stream
    made, FakeStream.made = FakeStream.made, []
    for stream in made:
        stream.queue.put(None)
    for stream in made:
        stream.thread.join(10)
