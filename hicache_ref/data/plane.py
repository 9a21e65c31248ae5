"""The real data plane: bytes move between device, host and store, on streams and threads of their own.

Rules of this file
- It keeps the four rules of `hicache_ref.plane`. An operation is open until its one end, whoever tells it first:
  streams, workers or `close`.
- `submit`, `cancel`, `poll` and `wait` belong to one thread, the engine's. None but `wait` ever blocks, unless pages
  are poisoned, which is for finding bugs.
- What fails is a failed completion, its words in `errors`: an exception of a copy, a forward, a store; an operation
  given after `close`, or one that this plane has no part for.
- Everything held is bounded: jobs by what the control plane has in flight, whose slots are its own until the end;
  errors and slices by numbers.

Who waits for whom, so that no byte is read before it is written or written while it is read. Completions mean that the
device is done, not that it has been told; so whatever the control plane orders by them needs no fence:
- a BACKUP or LOAD after what is being computed at its submit: by event (`Batches.moment`), a prefill or a decode step;
- a COMPUTE after the loads it names: by event, layer by layer. No other batch matches their pages: every later prefill
  names all loads that have not been acknowledged, and those who decode were prefilled after theirs;
- a LOAD of what a BACKUP wrote, a STORE of it, a LOAD of what a FETCH brought: by completion, the tree hands nothing on
  before;
- a COMPUTE or LOAD that overwrites device pages which a BACKUP still reads: cannot be. write_through locks the node and
  all above it until the copy is acknowledged, write_back gives its slots back after the completion of the copy, and
  slots of requests are not backed up before they are the tree's;
- a BACKUP or FETCH that overwrites host pages which a LOAD or STORE still reads: cannot be. A STORE and its node's host
  copy are held together; a node being loaded is on the device, and only what is on the host alone is evicted there.
The last two are laws of the control plane: `tests/plane/test_real_plane_hazards.py` holds its random lives to them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from ..account.meters import Slice
from ..control.types import Completion, Op, OpKind, Progress, Released, Report
from ..plane import Capabilities
from .compute import Batches, Computer, as_asked
from .meters import RealMeters
from .pools import DevicePool, HostPool
from .streams import make_stream
from .transfers import Arrival, Backups, Copies, Ended, LoadFailed, Loads

MOST_ERRORS = 1000
CLOSE_TIMEOUT_S = 30.0


class PlaneClosed(RuntimeError):
    """The operation was given to a closed plane, or had not ended when it was closed."""


class Workers(Protocol):
    """Threads around a store: PROBE, FETCH, STORE and CLEAR. `workers.StorageWorkers` is it."""

    def submit(self, op: Op) -> None:
        """Never blocks; its reports go where the workers were told at their making."""
        ...

    def cancel(self, op_id: int) -> None: ...

    def close(self, timeout_s: float) -> None:
        """Let running stores finish, end everything else, report all."""
        ...


MakeWorkers = Callable[[Callable[[Report], None]], Workers]
"""Given where to report: `lambda report: StorageWorkers(client, host, report)`."""


class Failure(NamedTuple):
    """Why an operation has failed."""

    op_id: int
    kind: OpKind
    what: str


class Flight:
    """An operation in flight."""

    __slots__ = ("cancel", "op", "start_s")

    def __init__(self, op: Op, start_s: float) -> None:
        self.op = op
        self.start_s = start_s
        self.cancel: Callable[[], None] = _nothing


class RealPlane:
    """Satisfies `plane.DataPlane`.

    device, host: the pools; host and copier None where there is no L2. computer: makes work of batches.
    storage: makes the workers around a store, None without L3. ranks: as capabilities state it.
    poison: destinations are filled with NaN at submit, and both pools at the beginning, so that a page read before it
    has arrived shows up in the logits. clock: of the meters. most_slices: kept there. stops: of `compute.Batches`.
    """

    def __init__(
        self,
        device: DevicePool,
        computer: Computer,
        host: HostPool | None = None,
        copier: Copies | None = None,
        storage: MakeWorkers | None = None,
        ranks: int = 1,
        poison: bool = False,
        clock: Callable[[], float] = time.monotonic,
        most_slices: int = 0,
        stops: Callable[[bool], bool] = as_asked,
    ) -> None:
        geometry = device.geometry
        self.capabilities = Capabilities(geometry.page_bytes, geometry.layers, ranks, storage is not None)
        self.errors: deque[Failure] = deque(maxlen=MOST_ERRORS)
        """The latest failures."""
        self._clock = clock
        self._news = threading.Condition()
        self._reports: list[Report] = []
        self._open: dict[int, Flight] = {}
        self._lingering: set[int] = set()
        self._closed = False
        self._device, self._host, self._poisons = device, host, poison
        self._compute = make_stream("compute", device.device)
        self.meters = RealMeters(geometry.page_bytes, storage is not None, lambda: self._compute.waited_s, most_slices)
        self._streams = [self._compute]
        self._batches = Batches(self._compute, computer, clock, self._over, stops)
        self._start: dict[OpKind, Callable[[Flight], None]] = {OpKind.COMPUTE: self._compute_batch}
        self._arrivals: dict[int, Arrival] = {}
        self.workers: Workers | None = None
        if copier is not None:
            self._add_copies(copier, geometry.layers)
        if storage is not None:
            self._add_storage(storage)
        if poison:
            self._poison_all()

    def _add_copies(self, copier: Copies, layers: int) -> None:
        write, load = (make_stream(name, self._device.device) for name in ("write", "load"))
        self._backups = Backups(write, copier, self._clock, self._over)
        self._loads = Loads(load, copier, layers, self._clock, self._over)
        self._arrivals = self._loads.arrivals
        # Loads first: when streams stop, batches that wait for loads are let go by them.
        self._streams = [load, self._compute, write]
        self._start |= {OpKind.LOAD: self._load, OpKind.BACKUP: self._back_up}

    def _add_storage(self, storage: MakeWorkers) -> None:
        self.workers = storage(self._from_workers)
        self._start |= dict.fromkeys((OpKind.PROBE, OpKind.FETCH, OpKind.STORE, OpKind.CLEAR), self._ask_store)

    # The protocol

    def submit(self, op: Op) -> None:
        """Take an operation; what cannot be begun has failed."""
        flight = Flight(op, self._clock())
        with self._news:
            self._open[op.id] = flight
            self.meters.begun(op)
        try:
            self._begin(flight)
        except Exception as error:
            self._over(Ended(op, 0, None, error))

    def cancel(self, op_id: int) -> None:
        """Stop a decode after the step under way, a fetch after the batch of pages under way. Else nothing."""
        flight = self._open.get(op_id)
        if flight is not None:
            flight.cancel()

    def poll(self) -> list[Report]:
        """Everything reported since the last call."""
        with self._news:
            reports, self._reports = self._reports, []
        return reports

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until there is something to poll, or the time is over; whether there is."""
        with self._news:
            return self._news.wait_for(lambda: bool(self._reports), timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End everything: jobs under way finish, stores that were taken are written, the rest has failed.

        What has not ended after `timeout_s` is reported as failed and left to threads that no one waits for. The
        reports can be polled as ever; operations given later fail at once.
        """
        with self._news:
            if self._closed:
                return
            self._closed = True
            flights = list(self._open.values())
        for flight in flights:
            if flight.op.kind is OpKind.COMPUTE:
                flight.cancel()
        self._shut_down(time.monotonic() + timeout_s)
        for flight in flights:
            self._over(Ended(flight.op, 0, None, PlaneClosed(f"not over {timeout_s:g} s after the plane was closed")))

    # Facts for drivers

    @property
    def in_flight(self) -> int:
        """Operations whose end has not been reported."""
        return len(self._open)

    @property
    def slices(self) -> list[Slice]:
        """What was done when, by track."""
        return self.meters.slices

    def fence(self, op_id: int) -> Callable[[int], None]:
        """What a batch calls with i before layer i touches the pool: waits for layer i of load `op_id` only."""
        arrival = self._arrivals.get(op_id)
        return _no_wait if arrival is None else arrival.fence(self._compute)

    # How operations begin

    def _begin(self, flight: Flight) -> None:
        if self._closed:
            raise PlaneClosed("the plane is closed")
        start = self._start.get(flight.op.kind)
        if start is None:
            raise ValueError(f"no {flight.op.kind.name} here: this plane does {', '.join(k.name for k in self._start)}")
        start(flight)

    def _compute_batch(self, flight: Flight) -> None:
        op = flight.op
        # In this order: a load is an arrival until its failure has been noted.
        arrivals = [arrival for load in op.batch.loads if (arrival := self._arrivals.get(load)) is not None]
        self._check_loads(op.batch.loads)
        flight.cancel = self._batches.start(op, arrivals)

    def _check_loads(self, loads: Sequence[int]) -> None:
        with self._news:
            failed = next((failure for failure in self.errors if failure.op_id in loads), None)
        if failed is not None:
            raise LoadFailed(f"LOAD {failed.op_id} has failed: {failed.what}")

    def _load(self, flight: Flight) -> None:
        self._poison(flight.op, self._device)
        self._loads.start(flight.op, self._batches.moment)

    def _back_up(self, flight: Flight) -> None:
        self._poison(flight.op, self._host)
        self._backups.start(flight.op, self._batches.moment)

    def _ask_store(self, flight: Flight) -> None:
        assert self.workers is not None
        workers, op_id = self.workers, flight.op.id
        flight.cancel = lambda: workers.cancel(op_id)
        if flight.op.kind is OpKind.FETCH:
            self._poison(flight.op, self._host)
        workers.submit(flight.op)

    def _poison(self, op: Op, pool: DevicePool | HostPool | None) -> None:
        """At submit and not in the job's turn: a batch that does not wait must not find old bytes either."""
        if self._poisons and pool is not None and op.dst is not None:
            self._compute.at_once(partial(pool.poison, op.dst))

    def _poison_all(self) -> None:
        for pool in (self._device, self._host):
            if pool is not None:
                self._compute.at_once(partial(pool.poison, np.arange(pool.pages)))

    # How they end, on any thread

    def _over(self, ended: Ended) -> None:
        """A stream is done with an operation, or `close` is."""
        op, error = ended.op, ended.error
        with self._news:
            if op.id in self._open:
                what = None if error is None else f"{type(error).__name__}: {error}"
                self._end(op, Completion(op.id, ended.pages_ok, error is not None), ended.start_s, what)

    def _from_workers(self, report: Report) -> None:
        with self._news:
            flight = self._open.get(report.op_id)
            if flight is not None and isinstance(report, Completion):
                op = flight.op
                what = f"the store: {report.pages_ok} of {op.pages} pages; its workers' stats say more"
                self._end(op, report, flight.start_s, what if report.failed else None)
            elif flight is not None and isinstance(report, Progress):
                self._tell(report)
            elif report.op_id in self._lingering and isinstance(report, Released):
                self._lingering.discard(report.op_id)
                self._tell(report)

    def _end(self, op: Op, completion: Completion, start_s: float | None, what: str | None) -> None:
        """The one end of an operation that is open; `what` went wrong. The caller holds `_news`."""
        del self._open[op.id]
        if completion.lingers:
            self._lingering.add(op.id)
        if what is not None:
            self.errors.append(Failure(op.id, op.kind, what))
        self.meters.ended(op, completion.pages_ok, completion.failed, start_s, self._clock())
        self._tell(completion)

    def _tell(self, report: Report) -> None:
        self._reports.append(report)
        self._news.notify_all()

    def _shut_down(self, until_s: float) -> None:
        for stream in self._streams:
            stream.stop()
        if self.workers is not None:
            self.workers.close(max(until_s - time.monotonic(), 0.0))
        for stream in self._streams:
            stream.join(max(until_s - time.monotonic(), 0.0))


def _nothing() -> None:
    pass


def _no_wait(layer: int) -> None:
    pass
