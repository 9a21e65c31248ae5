"""The processes of ranks 1, 2, …, and rank 0's way to them; this process is rank 0.

Rules of this file
- Rank 0 listens to each on a thread, so nothing that happens to one goes unheard.
- The first failure ends the run everywhere: with the name of the rank, and, where a process has died, of the process.
  A death makes others fail; so a failure waits a moment for the death that may be its cause.
- After a failure the processes are killed: they may be in the middle of sums that nobody will finish.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from ..control.log import Fingerprint
from ..run.clock import WallClock
from ..run.driver import RunFailed, WaitingPlane
from .collectives import Collectives, Meeting, host_store, placement
from .council import Council
from .follower import serve
from .planes import LeadingPlane
from .seats import Figures, Place, Task

GRACE_S = 1.0
"""How long a failure waits for a death that explains it."""
END_S = 10.0
"""How long a process has to end when it is asked to."""


class Ranks:
    """Ranks 0 to `size` - 1 of runs, one run after the other. Use as a context: at its end no process is left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.news = threading.Condition()
        """Guards the council; told of every message."""
        self.council = self._new_council()
        self._ending = False
        self._peers = [_Peer(rank, size) for rank in range(1, size)]
        for peer in self._peers:
            peer.listen(self._listen)

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

        ValueError: the task cannot be sent, or there are not enough devices.
        """
        placement(device, 0, self.size)
        payload, threads = _pickled(task), torch.get_num_threads()
        torch.set_num_threads(max(threads // self.size, 1))
        store = host_store()
        meeting = Meeting(store.port, device, exact, torch.get_num_threads())
        try:
            self._summon(meeting, payload)
            yield Leader(self, meeting, meeting.join(store, 0, self.size))
            self._wait_until(lambda: len(self.council.done) == self.size - 1)
        except BaseException:
            self.close(kill=True)
            raise
        finally:
            torch.set_num_threads(threads)

    def _summon(self, meeting: Meeting, payload: bytes) -> None:
        """Until everybody is there."""
        with self.news:
            if self._ending:
                raise RunFailed(self.council.failure or "the processes of these ranks have ended; start new ones")
            self.council = self._new_council()
        self.send_all("task", meeting, payload)
        self._wait_until(lambda: len(self.council.here) == self.size - 1)

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

    def wait_for(self, what: Callable[[], bool], timeout_s: float | None = None) -> bool:
        so = self.news.wait_for(lambda: self.council.failure or what(), timeout_s)
        if self.council.failure:
            self.news.wait_for(lambda: self.council.died, GRACE_S)
            raise RunFailed(self.council.failure)
        return bool(so)

    def figures(self) -> list[Figures]:
        """Of the followers, when all have handed them in."""
        found = self.council.figures
        self._wait_until(lambda: len(found) == self.size - 1)
        return [found[rank] for rank in sorted(found)]

    def _wait_until(self, what: Callable[[], bool]) -> None:
        with self.news:
            self.wait_for(what)

    def _listen(self, peer: _Peer) -> None:
        """On the thread of one follower."""
        while (message := peer.receive()) is not None:
            with self.news:
                self.council.hear(peer.rank, *message)
                self.news.notify_all()
        how = peer.how_it_ended()
        with self.news:
            if not self._ending:
                self._ending = True
                self.council.died_of(peer.rank, how)
                self.news.notify_all()

    def _new_council(self) -> Council:
        return Council(self.size, self._name)

    def _name(self, rank: int) -> str:
        return f"rank {rank} (pid {self._peers[rank - 1].pid if rank else os.getpid()})"


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"a run on several ranks is sent to other processes; this one cannot be: {error}") from None


class _Peer:
    """One follower: its process, the pipe, and the thread that listens."""

    def __init__(self, rank: int, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.rank = rank
        self._pipe, theirs = context.Pipe()
        name = f"hicache rank {rank}"
        self._process = context.Process(target=serve, args=(theirs, rank, size), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid or 0
        self._reaping = threading.Lock()
        """A process's end is told to one thread only."""

    def listen(self, listen: Callable[[_Peer], None]) -> None:
        self._listener = threading.Thread(target=listen, args=(self,), name=self._process.name, daemon=True)
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
        code = self._exit_code(END_S)
        if code is None:
            return "it has closed its pipe"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _exit_code(self, timeout_s: float) -> int | None:
        """None: it still runs."""
        with self._reaping:
            self._process.join(timeout_s)
            return self._process.exitcode

    def end(self, kill: bool) -> None:
        if kill:
            self._process.kill()
        self.send(pickle.dumps(("end",)))
        if self._exit_code(END_S) is None:
            self._process.kill()
            self._exit_code(END_S)
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
        try:
            with LeadingPlane(plane, fingerprint, self._ranks, real) as leading:
                yield Place(leading, leading.clock, leading.start)
        except BaseException:
            # Before the plane is closed, which would wait for sums that will not come.
            self._ranks.close(kill=True)
            self._collectives.abort()
            raise

    def gather(self, figures: Figures) -> list[Figures]:
        others = self._ranks.figures()
        for each in others:
            if each.operations_sha256 != figures.operations_sha256:
                raise RunFailed(f"rank {each.rank} has decided otherwise than rank 0 (law L9)")
        return [figures, *others]
