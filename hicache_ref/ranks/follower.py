"""A process of rank 1, 2, …: it does one task after the other, in a seat of its own, and ends when rank 0 is gone.

Rules of this file
- The main thread reads what rank 0 sends: tasks, and within a task its rounds. Whoever has something to say sends it.
- What a task raises is told to rank 0 in one line, which ends the run; a bug prints its traceback here as well.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ..control.log import Fingerprint
from ..control.types import Report
from ..run.clock import WallClock
from ..run.driver import RunFailed, WaitingPlane
from .collectives import Collectives, Meeting, join_store, placement
from .planes import FollowingPlane
from .seats import Figures, Place, Task


class Wire:
    """Satisfies `planes.Wire`."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._gate = threading.Lock()

    def send(self, name: str, *what: Any) -> None:
        with self._gate, suppress(OSError):  # rank 0 is gone, as whoever reads next will find
            self._pipe.send((name, *what))

    def receive(self) -> tuple[Any, ...]:
        """The next message."""
        try:
            message: tuple[Any, ...] = self._pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # rank 0 is gone, and threads may hang in sums
        return message

    def round(self, timeout_s: float) -> tuple[float, list[Report]]:
        if not self._pipe.poll(timeout_s):
            raise RunFailed(f"rank 0 has been silent for {timeout_s:g} s")
        _, now_s, reports = self.receive()
        return now_s, reports


class Follower:
    """Its seat. Satisfies `seats.Seat`."""

    def __init__(self, wire: Wire, rank: int, size: int, meeting: Meeting, collectives: Collectives) -> None:
        self.rank, self.size = rank, size
        self.device = placement(meeting.device, rank, size).device
        self.all_reduce: Callable[[Tensor], Tensor] = collectives.all_reduce
        self.stops: Callable[[bool], bool] = collectives.stops
        self._wire = wire

    @contextmanager
    def sit(self, plane: WaitingPlane, real: WallClock, fingerprint: Fingerprint) -> Iterator[Place]:
        real.start()
        try:
            with FollowingPlane(plane, fingerprint, self._wire) as following:
                yield Place(following, following.clock, following.start)
        except Exception as error:
            # Before the plane is closed, which would wait for sums that will not come.
            _tell(self._wire, error)
            raise

    def gather(self, figures: Figures) -> list[Figures]:
        self._wire.send("figures", figures)
        return [figures]


def serve(pipe: Connection[Any, Any], rank: int, size: int) -> None:
    """The life of a follower."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal asks everybody; rank 0 decides
    wire = Wire(pipe)
    orders: dict[str, Callable[..., None]] = {"task": partial(_do, wire, rank, size), "end": sys.exit}
    while True:
        name, *what = wire.receive()
        orders[name](*what)


def _do(wire: Wire, rank: int, size: int, meeting: Meeting, pickled: bytes) -> None:
    torch.set_num_threads(meeting.threads)
    try:
        task: Task = pickle.loads(pickled)
        store = join_store(meeting.port)
        wire.send("here")
        task(Follower(wire, rank, size, meeting, meeting.join(store, rank, size)))
        wire.send("done")
    except Exception as error:
        _tell(wire, error)


def _tell(wire: Wire, error: Exception) -> None:
    """Rank 0 of what went wrong here."""
    if isinstance(error, RunFailed | ValueError):
        wire.send("failed", str(error))
    else:
        traceback.print_exception(error)
        wire.send("failed", f"{type(error).__name__}: {error}")
