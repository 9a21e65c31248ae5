"""The processes of ranks 1, 2, …, and rank 0's way to them; this process is rank 0.

Rules of this file
- A follower does one task after the other, in a seat of its own, and ends when rank 0 is gone. Rank 0 listens to each
  on a thread, so nothing that happens to one goes unheard.
- The first failure ends the run everywhere: with the name of the rank, and, where a process has died, of the process.
  A death makes others fail; so a failure waits a moment for the death that may be its cause.
- After a failure the processes are killed: they may be in the middle of sums that nobody will finish.
"""

from __future__ import annotations

import multiprocessing
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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..control.log import Fingerprint
from ..control.types import Report
from ..run.clock import WallClock
from ..run.driver import RunFailed, WaitingPlane
from .collectives import Collectives, host_store, join_store, placement
from .planes import FollowingPlane, LeadingPlane
from .seats import Figures, Place, Task

GRACE_S = 1.0
"""How long a failure waits for a death that explains it."""
END_S = 10.0
"""How long a process has to end when it is asked to."""


class Meeting(NamedTuple):
    """How the ranks of one run find each other.

    port: of rank 0's store. device, exact: as the run is configured. threads: each rank computes with on a CPU.
    """

    port: int
    device: str
    exact: bool
    threads: int

    def join(self, store: Any, rank: int, size: int) -> Collectives:
        return Collectives(store, rank, size, placement(self.device, rank, size).backend, self.exact)


class Ranks:
    """Ranks 0 to `size` - 1 of runs, one run after the other. Use as a context: at its end no process is left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.news = threading.Condition()
        """Guards all below; told of every message."""
        self._failures: list[tuple[int, str]] = []
        self._deaths: list[str] = []
        self._here: set[int] = set()
        self._done: set[int] = set()
        self._plane: LeadingPlane | None = None
        self._figures: dict[int, Figures] = {}
        self._ending = False
        self._messages: dict[str, Callable[..., None]] = {
            "here": self._here.add,
            "done": self._done.add,
            "mark": self._on_mark,
            "report": self._on_report,
            "figures": self._figures.__setitem__,
            "failed": self.fail,
        }
        self._peers = [_Peer(rank, size, self._listen) for rank in range(1, size)]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(kill=kind is not None)

    @property
    def pids(self) -> list[int]:
        """Of the followers, by rank from 1."""
        return [peer.pid for peer in self._peers]

    @contextmanager
    def lead(self, task: Task, device: str = "cpu", exact: bool = False) -> Iterator[Leader]:
        """Give the others `task`, and sit down as rank 0. At the end all have done it. RunFailed: not all could.

        ValueError: the task cannot be sent, these processes have ended, or there are not enough devices.
        """
        placement(device, 0, self.size)
        payload, threads = _pickled(task), torch.get_num_threads()
        torch.set_num_threads(max(threads // self.size, 1))
        try:
            store = host_store()
            meeting = Meeting(store.port, device, exact, torch.get_num_threads())
            with self.news:
                self._begin()
            self.send_all("task", meeting, payload)
            self._wait_until(lambda: len(self._here) == self.size - 1)
            collectives = meeting.join(store, 0, self.size)
            try:
                yield Leader(self, meeting, collectives)
                self._wait_until(lambda: len(self._done) == self.size - 1)
            except BaseException:
                self.close(kill=True)
                collectives.abort()
                raise
        finally:
            torch.set_num_threads(threads)

    def close(self, kill: bool = False) -> None:
        """End the processes, and wait for that."""
        with self.news:
            self._ending = True
        for peer in self._peers:
            peer.end(kill)

    # Satisfies planes.Peers

    def send_all(self, name: str, *what: Any) -> None:
        """The listeners notice whoever is not there any more."""
        message = pickle.dumps((name, *what))
        for peer in self._peers:
            peer.send(message)

    def wait_for(self, what: Callable[[], bool], timeout_s: float | None) -> bool:
        so = self.news.wait_for(lambda: self._failed or what(), timeout_s)
        if self._failed:
            self._raise()
        return bool(so)

    def fail(self, rank: int, line: str) -> None:
        self._failures.append((rank, line))

    def led_by(self, plane: LeadingPlane | None) -> None:
        """Reports and marks go there."""
        with self.news:
            self._plane = plane

    def figures(self) -> list[Figures]:
        """Of the followers, when all have handed them in."""
        self._wait_until(lambda: len(self._figures) == self.size - 1)
        return [self._figures[rank] for rank in sorted(self._figures)]

    # What followers say

    def _listen(self, peer: _Peer) -> None:
        """On the thread of one follower."""
        while (message := peer.receive()) is not None:
            name, *what = message
            with self.news:
                self._messages[name](peer.rank, *what)
                self.news.notify_all()
        how = peer.how_it_ended()
        with self.news:
            if not self._ending:
                self._deaths.append(f"rank {peer.rank} (pid {peer.pid}) died: {how}")
                self.news.notify_all()

    def _on_mark(self, rank: int, at_round: int, digest: str) -> None:
        if self._plane is not None:
            self._plane.marked(rank, at_round, digest)

    def _on_report(self, rank: int, report: Report, fatal: str | None) -> None:
        if self._plane is not None:
            self._plane.heard(rank, report, fatal)

    def _wait_until(self, what: Callable[[], bool]) -> None:
        with self.news:
            self.wait_for(what, None)

    @property
    def _failed(self) -> bool:
        return bool(self._failures or self._deaths)

    def _raise(self) -> None:
        """Holding `news`."""
        self.news.wait_for(lambda: self._deaths, GRACE_S)
        if self._deaths:
            raise RunFailed(self._deaths[0])
        rank, line = self._failures[0]
        pid = os.getpid() if rank == 0 else self._peers[rank - 1].pid
        raise RunFailed(f"rank {rank} (pid {pid}): {line}")

    def _begin(self) -> None:
        """A run, which knows nothing of the one before."""
        if self._ending:
            raise ValueError("the processes of these ranks have ended; start new ones")
        self._here.clear()
        self._done.clear()
        self._figures.clear()


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"a run on several ranks is sent to other processes, and this one cannot be: {error}"
        ) from None


class _Peer:
    """One follower: its process, the pipe, and the thread that listens."""

    def __init__(self, rank: int, size: int, listen: Callable[[_Peer], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.rank = rank
        self._pipe, theirs = context.Pipe()
        name = f"hicache rank {rank}"
        self._process = context.Process(target=serve, args=(theirs, rank, size), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid or 0
        self._listener = threading.Thread(target=listen, args=(self,), name=name, daemon=True)
        self._listener.start()

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # it has died, which its listener says better
            self._pipe.send_bytes(message)

    def receive(self) -> tuple[Any, ...] | None:
        """The next message; None: there will be none."""
        try:
            message: tuple[Any, ...] = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return message

    def how_it_ended(self) -> str:
        self._process.join(END_S)
        code = self._process.exitcode
        if code is None:
            return "it has closed its pipe"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def end(self, kill: bool) -> None:
        if kill:
            self._process.kill()
        self.send(pickle.dumps(("end",)))
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._listener.join(END_S)
        self._pipe.close()


class Leader:
    """Rank 0's seat. Satisfies `seats.Seat`."""

    rank = 0

    def __init__(self, ranks: Ranks, meeting: Meeting, collectives: Collectives) -> None:
        self.size = ranks.size
        self.device = placement(meeting.device, 0, self.size).device
        self.all_reduce: Callable[[Tensor], Tensor] = collectives.all_reduce
        self.stops: Callable[[bool], bool] = collectives.stops
        self._ranks = ranks
        self._collectives = collectives

    @contextmanager
    def sit(self, plane: WaitingPlane, real: WallClock, fingerprint: Fingerprint) -> Iterator[Place]:
        leading = LeadingPlane(plane, fingerprint, self._ranks, real)
        self._ranks.led_by(leading)
        try:
            with _seated(leading) as place:
                yield place
        except BaseException:
            # Before the plane is closed, which would wait for sums that will not come.
            self._ranks.close(kill=True)
            self._collectives.abort()
            raise
        finally:
            self._ranks.led_by(None)

    def gather(self, figures: Figures) -> list[Figures]:
        others = self._ranks.figures()
        for each in others:
            if each.operations_sha256 != figures.operations_sha256:
                raise RunFailed(f"rank {each.rank} has decided otherwise than rank 0 (law L9)")
        return [figures, *others]


class Follower:
    """The seat of any other rank. Satisfies `seats.Seat`."""

    def __init__(self, wire: _Wire, rank: int, size: int, meeting: Meeting, collectives: Collectives) -> None:
        self.rank, self.size = rank, size
        self.device = placement(meeting.device, rank, size).device
        self.all_reduce: Callable[[Tensor], Tensor] = collectives.all_reduce
        self.stops: Callable[[bool], bool] = collectives.stops
        self._wire = wire

    @contextmanager
    def sit(self, plane: WaitingPlane, real: WallClock, fingerprint: Fingerprint) -> Iterator[Place]:
        real.start()
        with _seated(FollowingPlane(plane, fingerprint, self._wire)) as place:
            yield place

    def gather(self, figures: Figures) -> list[Figures]:
        self._wire.send("figures", figures)
        return [figures]


@contextmanager
def _seated(plane: LeadingPlane | FollowingPlane) -> Iterator[Place]:
    try:
        yield Place(plane, plane.clock, plane.start)
    finally:
        plane.stop()


# --- in a follower's process ------------------------------------------------------------------------------------------


class _Wire:
    """Satisfies `planes.Wire`."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._gate = threading.Lock()

    def send(self, name: str, *what: Any) -> None:
        with self._gate, suppress(OSError):  # rank 0 is gone, as whoever reads next will find
            self._pipe.send((name, *what))

    def receive(self) -> tuple[Any, ...]:
        message: tuple[Any, ...] = self._pipe.recv()
        return message

    def round(self, timeout_s: float) -> tuple[float, list[Report]]:
        if not self._pipe.poll(timeout_s):
            raise RunFailed(f"rank 0 has been silent for {timeout_s:g} s")
        _, now_s, reports = self.receive()
        return now_s, reports


def serve(pipe: Connection[Any, Any], rank: int, size: int) -> None:
    """The life of a follower."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal asks everybody; rank 0 decides
    wire = _Wire(pipe)
    orders: dict[str, Callable[..., None]] = {"task": partial(_do, wire, rank, size), "end": sys.exit}
    try:
        while True:
            name, *what = wire.receive()
            orders[name](*what)
    except EOFError:
        os._exit(1)  # rank 0 is gone; threads may hang in sums


def _do(wire: _Wire, rank: int, size: int, meeting: Meeting, pickled: bytes) -> None:
    try:
        torch.set_num_threads(meeting.threads)
        task: Task = pickle.loads(pickled)
        store = join_store(meeting.port)
        wire.send("here")
        task(Follower(wire, rank, size, meeting, meeting.join(store, rank, size)))
        wire.send("done")
    except EOFError:
        raise
    except (RunFailed, ValueError) as error:
        wire.send("failed", str(error))
    except Exception as error:
        traceback.print_exc()
        wire.send("failed", f"{type(error).__name__}: {error}")
