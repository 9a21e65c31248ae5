"""Where replays run: in this process, on the cores of this machine, or on a Ray cluster.

Rules of this file
- An engine gives back what becomes of every job, in the order they end. Only as many jobs are handed out as can run, so
  a long list costs nothing, and it is known which ones a dying worker had.
- A job whose worker dies (killed, out of memory) is lost: it has the result that `lost` makes of the reason, and the
  rest goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from .errors import SweepError, look_up

J = TypeVar("J")
R = TypeVar("R")

IDLE_S = 600
"""A worker without work ends after this."""


class Engine(ABC):
    """`workers`: jobs at once."""

    workers: int

    @abstractmethod
    def run(self, work: Callable[[J], R], jobs: Iterable[J], lost: Callable[[str], R]) -> Iterator[tuple[J, R]]:
        """Every job with its result, as they end. `work` is found by name on the other side, and does not raise."""

    def close(self) -> None:  # noqa: B027
        """Stop what runs."""


class Here(Engine):
    """One after the other, in this process."""

    workers = 1

    def run(self, work: Callable[[J], R], jobs: Iterable[J], lost: Callable[[str], R]) -> Iterator[tuple[J, R]]:
        for job in jobs:
            yield job, work(job)


class Cores(Engine):
    """Processes of this machine, by joblib's loky."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: Any = None

    def run(self, work: Callable[[J], R], jobs: Iterable[J], lost: Callable[[str], R]) -> Iterator[tuple[J, R]]:
        waiting = deque(jobs)
        while waiting:
            for suspect in (yield from self._spread(work, waiting, self.workers)):
                # One of those broke the pool: alone, it does so again, and the others do not.
                for job in (yield from self._spread(work, deque([suspect]), 1)):
                    yield job, lost("the worker died (killed, or out of memory)")

    def _spread(self, work: Callable[[J], R], waiting: deque[J], width: int) -> Generator[tuple[J, R], None, list[J]]:
        """Run until nothing waits, or the pool breaks: then what was under way is returned."""
        flying: dict[Future[R], J] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < width:
                    flying[self._executor().submit(work, waiting[0])] = waiting[0]
                    waiting.popleft()
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    yield flying.pop(future), result
        except BrokenProcessPool:
            self.close()
            return list(flying.values())
        return []

    def _executor(self) -> Any:
        if self._pool is None:
            from joblib.externals.loky import ProcessPoolExecutor

            self._pool = ProcessPoolExecutor(
                self.workers, timeout=IDLE_S, initializer=end_with, initargs=(os.getpid(),)
            )
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None


def end_with(parent: int) -> None:
    """In a worker: end when the process that started it is gone, even if it was killed outright."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class RayCluster(Engine):
    """A Ray cluster: the one that RAY_ADDRESS names or this machine has joined, else one of its own while it is needed.

    Every machine needs this package, and traces under the same paths.
    """

    def __init__(self, workers: int | None) -> None:
        try:
            import ray
        except ImportError:
            raise SweepError("--cluster ray: Ray is not installed", "pip install 'hicache[cluster]'") from None
        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            _join(ray, workers)
        self.workers = workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)

    def run(self, work: Callable[[J], R], jobs: Iterable[J], lost: Callable[[str], R]) -> Iterator[tuple[J, R]]:
        ray = self._ray
        remote = ray.remote(num_cpus=1, max_retries=1)(work)
        waiting = deque(jobs)
        flying: dict[Any, J] = {}
        while waiting or flying:
            while waiting and len(flying) < self.workers:
                flying[remote.remote(waiting[0])] = waiting[0]
                waiting.popleft()
            for ended in ray.wait(list(flying), num_returns=1)[0]:
                job = flying.pop(ended)
                try:
                    yield job, ray.get(ended)
                except ray.exceptions.RayError as error:
                    yield job, lost(f"Ray: {str(error).strip().splitlines()[0]}")

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


def _join(ray: Any, workers: int | None) -> None:
    """The cluster that is named or runs here, or else a new one. SweepError: the named one does not answer."""
    named = os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=named or "auto", **quiet)
    except ConnectionError:
        if named:
            raise SweepError(f"RAY_ADDRESS {named}: no Ray cluster answers", "start it, or unset RAY_ADDRESS") from None
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)


def _local(jobs: int | None) -> Engine:
    from joblib import cpu_count

    workers = jobs or cpu_count()
    return Here() if workers == 1 else Cores(workers)


ENGINES: dict[str, Callable[[int | None], Engine]] = {"local": _local, "ray": RayCluster}
"""By name; each takes how many jobs to run at once, None: as many as there are cores."""


def make_engine(name: str, jobs: int | None = None) -> Engine:
    """SweepError: unknown, or not installed."""
    return look_up(ENGINES, "cluster", name)(jobs)
