"""Streams of jobs in order and events between them, the same on the CPU as on CUDA.

Rules of this file
- A stream does its jobs one after the other, on a thread of its own, so that streams overlap on the CPU too. On CUDA
  that thread only launches, and a second one waits for the device: launching runs ahead of it.
- Every job ends once: when the device is done with it, when it has raised, or when the stream is stopped before its
  turn. What a job raises is handed to its `ended`; the thread goes on.
- An event orders and does not judge: it fires when what was before it is over, well or badly. So nobody waits for
  ever for something that failed; whether it did is told elsewhere.
- A wait for an event that is yet to be recorded blocks the waiting stream until it is. CUDA by itself lets such a
  wait pass at once, which is how a fence gets lost.
- The stream holds a job until it has ended, and with it all tensors the device may still read.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import torch

_CUDA: Any = torch.cuda  # whose streams and events have no types


class StreamStopped(RuntimeError):
    """The job was not begun: its stream was stopped before its turn."""


class Job(Protocol):
    """Work for a stream."""

    def run(self) -> None:
        """On the stream's thread, in its turn. What it launches belongs to the stream."""
        ...

    def ended(self, error: BaseException | None) -> None:
        """Called once when the job touches nothing any more; None: all went well. Must not raise, nor wait long."""
        ...


class Event:
    """A moment in the work of a stream. Fires once. Alone it is the CPU's, where what has returned is done."""

    def __init__(self) -> None:
        self._recorded = threading.Event()

    def record(self) -> None:
        """By a job: fires when all the job's stream was given so far is done."""
        self._recorded.set()

    def release(self) -> None:
        """By anybody: nobody will record it any more; whoever waits may go on."""
        self._recorded.set()

    @property
    def fired(self) -> bool:
        """Never blocks."""
        return self._recorded.is_set()

    def synchronize(self) -> None:
        """The calling thread waits."""
        self._recorded.wait()

    def order(self, stream: Any) -> None:
        """What `stream` is given from now on comes after this event."""
        self._recorded.wait()


class Stream:
    """The CPU's stream, and what all streams have in common. Its thread is a daemon: a job that hangs ends nothing."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.device = device
        self._waited_s = 0.0
        self._jobs: SimpleQueue[tuple[Job, Event] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._stopped = False
        self._threads = self._start()

    def event(self) -> Event:
        """A new one, that a job of this stream may record."""
        return Event()

    def run(self, job: Job) -> Event:
        """Do `job` after all earlier ones. Never blocks. The event fires when it is over."""
        over = self.event()
        with self._gate:
            stopped = self._stopped
            if not stopped:
                self._jobs.put((job, over))
        if stopped:
            self._give_up(job, over)
        return over

    def wait(self, event: Event) -> None:
        """By a job of this stream: what it does from now on comes after `event`."""
        if not event.fired:
            before_s = time.perf_counter()
            event.order(None)
            self._waited_s += time.perf_counter() - before_s

    @property
    def waited_s(self) -> float:
        """Seconds its jobs have spent in `wait`, those of jobs under way included as far as they are known."""
        return self._waited_s

    def pace(self, event: Event) -> None:
        """By a job that launches much: go on launching when `event`, recorded by itself, has fired."""
        event.synchronize()

    def at_once(self, work: Callable[[], None]) -> None:
        """Do `work` here and now, on the calling thread, and wait until the device has done it."""
        work()

    def stop(self) -> None:
        """Give up every job whose turn has not come, and all that are given later."""
        with self._gate:
            self._stopped = True
            waiting = _drain(self._jobs)
            self._jobs.put(None)
        for job, over in waiting:
            self._give_up(job, over)

    def join(self, timeout_s: float) -> bool:
        """Wait for the job under way, after `stop`; whether it has ended."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until_s - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    # Its thread

    def _start(self) -> list[threading.Thread]:
        return [_daemon(self.name, self._loop)]

    def _loop(self) -> None:
        with self._current():
            while (item := self._jobs.get()) is not None:
                job, over = item
                self._launched(job, over, _attempt(job.run))
                del item, job, over  # an idle stream holds nothing

    def _current(self) -> AbstractContextManager[Any]:
        """In which the jobs run."""
        return contextlib.nullcontext()

    def _launched(self, job: Job, over: Event, error: BaseException | None) -> None:
        over.record()
        job.ended(error)

    def _give_up(self, job: Job, over: Event) -> None:
        over.release()
        job.ended(StreamStopped(f"the {self.name} stream was stopped before its turn"))


class CudaEvent(Event):
    """One of CUDA's. Waiting for it does not spin."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._event = _CUDA.Event(blocking=True)

    def record(self) -> None:
        self._event.record(_CUDA.current_stream(self._device))
        super().record()

    @property
    def fired(self) -> bool:
        return super().fired and bool(self._event.query())

    def synchronize(self) -> None:
        super().synchronize()
        self._event.synchronize()

    def order(self, stream: Any) -> None:
        super().order(stream)
        stream.wait_event(self._event)


class CudaStream(Stream):
    """A CUDA stream with the thread that launches on it and the thread that waits for it."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._stream = _CUDA.Stream(device)
        self._launches: SimpleQueue[tuple[Job, Event, BaseException | None, list[Any]] | None] = SimpleQueue()
        self._waits: list[Any] = []
        super().__init__(name, device)

    def event(self) -> Event:
        return CudaEvent(self.device)

    def wait(self, event: Event) -> None:
        if event.fired:
            return
        before = _CUDA.Event(enable_timing=True)
        after = _CUDA.Event(enable_timing=True)
        before.record(self._stream)
        event.order(self._stream)
        after.record(self._stream)
        self._waits.append((before, after))

    def at_once(self, work: Callable[[], None]) -> None:
        work()
        _CUDA.current_stream(self.device).synchronize()

    def _start(self) -> list[threading.Thread]:
        return [_daemon(self.name, self._loop), _daemon(f"{self.name} done", self._finish)]

    def _loop(self) -> None:
        super()._loop()
        self._launches.put(None)

    def _current(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = _CUDA.stream(self._stream)
        return context

    def _launched(self, job: Job, over: Event, error: BaseException | None) -> None:
        # Also after an error: what was launched before it still runs, and the job has not ended before that has.
        failed = _attempt(over.record)
        if failed is not None:
            over.release()
        waits, self._waits = self._waits, []
        self._launches.put((job, over, error or failed, waits))

    def _finish(self) -> None:
        while (item := self._launches.get()) is not None:
            job, over, error, waits = item
            failed = _attempt(over.synchronize)
            if failed is None:
                self._waited_s += sum(before.elapsed_time(after) for before, after in waits) / 1000
            job.ended(error or failed)
            del item, job, over, waits


STREAMS: dict[str, Callable[[str, torch.device], Stream]] = {"cpu": Stream, "cuda": CudaStream}
"""By the type of device they work for."""


def make_stream(name: str, device: torch.device | str) -> Stream:
    """A stream for `device`. ValueError for a kind of device nobody has written streams for."""
    device = torch.device(device)
    if device.type not in STREAMS:
        raise ValueError(f"no streams for device {device.type!r}; known: {', '.join(STREAMS)}")
    return STREAMS[device.type](name, device)


def _attempt(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except BaseException as error:  # also SystemExit: a job must not take its thread with it
        return error
    return None


def _daemon(name: str, loop: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=loop, name=f"hicache {name}", daemon=True)
    thread.start()
    return thread


def _drain(queue: SimpleQueue[Any]) -> list[Any]:
    taken = []
    with contextlib.suppress(Empty):
        while True:
            taken.append(queue.get_nowait())
    return [item for item in taken if item is not None]
