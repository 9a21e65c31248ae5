"""The threads around a store: one probes, one fetches, one stores, and none of them can be lost.

Rules of this file
- Every operation gets exactly one completion, whatever the client does: raise, answer nonsense, hang, or die.
- Threads that wait are not threads that call. A lane's thread takes operations in turn and gives each call to a hand,
  another thread, which may hang for ever. Then the lane takes a new hand, as often as `max_stuck` allows; beyond that
  operations fail at once.
- A hanging call may still read or write its pages. Its operation completes as lingering, and once the call returns
  `Released` says that the pages are free.
- A store that failed several times in a row is left alone for a while (`Breaker`).
- `report` may be called by any thread, also within `submit`, `cancel` and `close`, and must not call back.
- Source: `cache_controller.py` of 0.5.7 (batches, hit query, stop at the first short batch); article 2.4, 3.6.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..control.types import Completion, Op, OpKind, Progress, Released, Report
from .storage.breaker import Breaker
from .storage.client import PageMemory, StorageClient, StoreFailed
from .storage.threads import Threads

BATCH_PAGES = 128
"""Pages a store is asked for at a time (upstream's `storage_batch_size`)."""

logger = logging.getLogger(__name__)


class _Refused(Exception):
    """The store was not asked. `args[0]` says why, in a word."""


class _Stuck(Exception):
    """The call of this future has not come back in time."""

    def __init__(self, future: Future[Any]) -> None:
        super().__init__()
        self.future = future


@dataclass
class _Job:
    """An operation from submit to completion."""

    op: Op
    errand: _Errand
    good: int = 0
    """Leading pages that are good by now."""
    running: bool = False
    cancelled: bool = False
    over: bool = False
    lingers: bool = False
    """Over for everybody but a call that still hangs."""


@dataclass
class Facts:
    """What one kind of operation came to. seconds: within the store's calls."""

    ops: int = 0
    calls: int = 0
    pages: int = 0
    seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)


class _Lane:
    """A bounded queue and the thread that serves it. `hand`: the thread that calls, once there is one."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.hand: Threads | None = None
        self._limit = limit
        self._jobs: deque[_Job] = deque()
        self._ended = False
        self._change = threading.Condition()

    def put(self, job: _Job) -> bool:
        """False: it is full."""
        with self._change:
            if len(self._jobs) >= self._limit:
                return False
            self._jobs.append(job)
            self._change.notify()
            return True

    def remove(self, job: _Job) -> None:
        """If it still waits; it may have been taken a moment ago."""
        with self._change, suppress(ValueError):
            self._jobs.remove(job)

    def take(self) -> _Job | None:
        """The next job, when there is one; None at the end."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self._ended)
            return self._jobs.popleft() if self._jobs else None

    def end(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify()

    def __len__(self) -> int:
        return len(self._jobs)


@dataclass(frozen=True)
class _Errand:
    """How one kind of operation is done. `ask(op, first, last)` calls the store for those pages."""

    lane: _Lane
    ask: Callable[[Op, int, int], int]
    moves_pages: bool = True
    """It reads or writes host pages, and fewer of them than asked is a failure."""
    tells_progress: bool = False
    outlives_close: bool = False
    """Closing waits for it; else it ends after its present batch."""
    for_writers: bool = False
    """A rank that leaves writing to another has nothing to do, and is done."""


class StorageWorkers:
    """Executes PROBE, FETCH, STORE and CLEAR of `hicache_ref.control.types` on one rank's client.

    queue_ops: operations that may wait in each lane. call_timeout_s: the longest a call may take. max_stuck: calls that
    may hang at a time.
    """

    def __init__(
        self,
        client: StorageClient,
        host: PageMemory,
        report: Callable[[Report], None],
        *,
        batch_pages: int = BATCH_PAGES,
        queue_ops: int = 1024,
        call_timeout_s: float = 30.0,
        max_stuck: int = 4,
        breaker: Breaker | None = None,
    ) -> None:
        self.client = client
        self.breaker = breaker or Breaker()
        self._host = host
        self._report = report
        self._batch_pages = batch_pages
        self._call_timeout_s = call_timeout_s
        self._max_stuck = max_stuck
        self._stuck = 0
        self._closed = False
        self._jobs: dict[int, _Job] = {}
        self._change = threading.Condition()
        """Guards jobs and counts, and is held while reporting, so that reports keep their order; told of each end."""
        self._facts = {kind: Facts() for kind in (OpKind.PROBE, OpKind.FETCH, OpKind.STORE, OpKind.CLEAR)}
        probes, fetches, stores = (_Lane(name, queue_ops) for name in ("probe", "fetch", "store"))
        self._lanes = (probes, fetches, stores)
        self._errands = {
            OpKind.PROBE: _Errand(probes, self._probe, moves_pages=False),
            OpKind.FETCH: _Errand(fetches, self._fetch, tells_progress=True),
            OpKind.STORE: _Errand(stores, self._store, outlives_close=True, for_writers=True),
            OpKind.CLEAR: _Errand(stores, self._clear, moves_pages=False, outlives_close=True, for_writers=True),
        }
        for lane in self._lanes:
            threading.Thread(target=self._serve, args=(lane,), name=f"storage {lane.name}", daemon=True).start()

    # What the plane calls

    def submit(self, op: Op) -> None:
        """Take an operation. Never blocks; a full queue is a failed completion."""
        job = _Job(op, self._errands[op.kind])
        with self._change:
            self._facts[op.kind].ops += 1
            self._jobs[op.id] = job
            if self._closed:
                self._end(job, "closed")
            elif job.errand.for_writers and not self.client.identity.writes:
                job.good = op.pages
                self._end(job)
            elif not job.errand.lane.put(job):
                self._end(job, "queue full")

    def cancel(self, op_id: int) -> None:
        """End an operation early: at once if it waits, else after its present batch."""
        with self._change:
            job = self._jobs.get(op_id)
            if job is None:
                return
            job.cancelled = True
            if not job.running:
                job.errand.lane.remove(job)
                self._end(job)

    def close(self, timeout_s: float = 10.0) -> None:
        """End all operations: running stores whole, running probes and fetches after their batch, the rest at once.

        What has not come back after `timeout_s` is left behind, its operation failed.
        """
        until_s = time.monotonic() + timeout_s
        with self._change:
            if self._closed:
                return
            self._closed = True
            for job in list(self._jobs.values()):
                if not job.running:
                    job.errand.lane.remove(job)
                    self._end(job, "closed")
                elif not job.errand.outlives_close:
                    job.cancelled = True
            self._change.wait_for(lambda: not self._jobs, timeout_s)
            left_behind = list(self._jobs.values())
            for job in left_behind:
                self._end(job, "closed", lingers=True)
            still_called = bool(left_behind or self._stuck)
        for lane in self._lanes:
            lane.end()
        # Freeing what a hanging call uses could end the process: that client is left as it is.
        if not still_called:
            self._close_client(max(until_s - time.monotonic(), 0.1))

    def stats(self) -> dict[str, Any]:
        """What happened so far, for reports: numbers by kind, the breaker, the client's own counts."""
        with self._change:
            kinds = {
                kind.name.lower(): {
                    "ops": facts.ops,
                    "calls": facts.calls,
                    "pages": facts.pages,
                    "bytes": facts.pages * self._host.page_bytes if self._errands[kind].moves_pages else 0,
                    "seconds": facts.seconds,
                    "failures": dict(facts.failures),
                }
                for kind, facts in self._facts.items()
            }
            waiting = {lane.name: len(lane) for lane in self._lanes}
            stuck = self._stuck
        breaker = {
            "state": self.breaker.state,
            "opened": self.breaker.times_opened,
            "tried": self.breaker.times_tried,
            "closed": self.breaker.times_closed,
        }
        return {"kinds": kinds, "waiting": waiting, "stuck": stuck, "breaker": breaker, "client": self.client.stats()}

    # The lanes' threads

    def _serve(self, lane: _Lane) -> None:
        while (job := lane.take()) is not None:
            with self._change:
                if job.over:
                    continue
                job.running = True
            try:
                self._run(job)
            except Exception:
                logger.exception("storage %s: operation %d", lane.name, job.op.id)
                self._end(job, "error")
        if lane.hand is not None:
            lane.hand.end()

    def _run(self, job: _Job) -> None:
        """Batch after batch, to the first that is not whole."""
        op = job.op
        while True:
            asked = min(self._batch_pages, op.pages - job.good)
            try:
                good = self._call(job, job.good + asked)
            except _Refused as refusal:
                return self._end(job, refusal.args[0])
            except _Stuck as stuck:
                return self._leave_behind(job, stuck.future)
            except StoreFailed as failure:
                job.good += _clamp(failure.pages_ok, asked)
                return self._end(job, "StoreFailed")
            except BaseException as error:
                return self._end(job, type(error).__name__)
            job.good += good
            if good < asked:
                return self._end(job, "short" if job.errand.moves_pages else None)
            if job.good == op.pages or not self._goes_on(job):
                return self._end(job)

    def _goes_on(self, job: _Job) -> bool:
        """Whether the next batch is wanted; tells how far it is."""
        with self._change:
            if job.over or job.cancelled:
                return False
            if job.errand.tells_progress:
                self._report(Progress(job.op.id, job.good))
            return True

    def _call(self, job: _Job, last: int) -> int:
        """Ask the store for the pages up to `last`; how many of them are good. Raises what the call raises."""
        op, lane = job.op, job.errand.lane
        hand = self._hand(lane)
        if not self.breaker.admits():
            raise _Refused("breaker")
        began_s = time.monotonic()
        future = hand.submit(_ask, job.errand, op, job.good, last)
        try:
            error = future.exception(self._call_timeout_s)
        except TooLate:
            self.breaker.failed()
            raise _Stuck(future) from None
        finally:
            self._count(op.kind, time.monotonic() - began_s)
        if error is not None:
            self.breaker.failed()
            raise error
        self.breaker.succeeded()
        return int(future.result())

    def _hand(self, lane: _Lane) -> Threads:
        """The thread that calls for this lane; a new one after one was left behind."""
        if lane.hand is None:
            with self._change:
                if self._stuck >= self._max_stuck:
                    raise _Refused("stuck")
            lane.hand = Threads(1, f"storage {lane.name} call")
        return lane.hand

    def _leave_behind(self, job: _Job, future: Future[Any]) -> None:
        """The call hangs: its thread ends when it returns, and until then nobody waits for it."""
        lane = job.errand.lane
        assert lane.hand is not None
        lane.hand.end()
        lane.hand = None
        with self._change:
            self._stuck += 1
        self._end(job, "timeout", lingers=True)
        future.add_done_callback(lambda _: self._came_back(job))

    def _came_back(self, job: _Job) -> None:
        with self._change:
            self._stuck -= 1
            self._release(job)

    # The end of an operation

    def _end(self, job: _Job, failure: str | None = None, lingers: bool = False) -> None:
        """Report the one completion, or, where closing has done so already, that the pages are free now."""
        with self._change:
            if job.over:
                if not lingers:
                    self._release(job)
                return
            job.over = True
            job.lingers = lingers and job.errand.moves_pages
            del self._jobs[job.op.id]
            facts = self._facts[job.op.kind]
            facts.pages += job.good
            if failure is not None:
                facts.failures[failure] += 1
            lacks = job.good < job.op.pages or not job.errand.moves_pages
            self._report(Completion(job.op.id, job.good, failure is not None and lacks, job.lingers))
            self._change.notify_all()

    def _release(self, job: _Job) -> None:
        if job.lingers:
            job.lingers = False
            self._report(Released(job.op.id))

    def _count(self, kind: OpKind, seconds: float) -> None:
        with self._change:
            self._facts[kind].calls += 1
            self._facts[kind].seconds += seconds

    def _close_client(self, timeout_s: float) -> None:
        closer = Threads(1, "storage close")
        try:
            closer.submit(self.client.close).result(timeout_s)
        except Exception:
            logger.exception("storage: closing the client")
        closer.end()

    # Errands

    def _probe(self, op: Op, first: int, last: int) -> int:
        return self.client.exists(op.keys[first:last])

    def _fetch(self, op: Op, first: int, last: int) -> int:
        assert op.dst is not None
        return self.client.get(op.keys[first:last], self._host, op.dst[first:last])

    def _store(self, op: Op, first: int, last: int) -> int:
        assert op.src is not None
        return self.client.put(op.keys[first:last], self._host, op.src[first:last])

    def _clear(self, op: Op, first: int, last: int) -> int:
        self.client.clear()
        return 0


def _ask(errand: _Errand, op: Op, first: int, last: int) -> int:
    """The call itself, on a hand's thread. An answer that means nothing raises here, like any other failure."""
    return _clamp(errand.ask(op, first, last), last - first)


def _clamp(pages: int, asked: int) -> int:
    """What a client says, within what it can mean."""
    return max(0, min(int(pages), asked))
