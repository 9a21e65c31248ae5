"""The engine step: take reports, act on them, form the next batch. One loop body for both worlds.

Rules of this file
- Sans-IO: a driver brings arrivals and reports with `now_s`, runs `step`, and gives the operations of `take_ops` to
  a plane. Everything the engine does is a function of those calls, in order: that is the event log.
- One COMPUTE is in flight at a time. It is asked to stop early when a waiting request could be admitted.
- Acknowledgements are collected at every step, not only when a request waits: upstream's v0.5.7 forgets them while
  it only decodes, and runs out of memory (PR #20049).
"""

from __future__ import annotations

from collections.abc import Generator

from .active import Active
from .batches import Decode, Prefill
from .cache import HiCache
from .scheduler import Scheduler
from .types import Cancel, Completion, Op, OpKind, Progress, Report, Wait


class Engine:
    """Scheduler and cache, driven step by step."""

    def __init__(self, cache: HiCache, scheduler: Scheduler) -> None:
        self.cache = cache
        self.scheduler = scheduler
        self.steps = 0
        self._batch: Prefill | Decode | None = None
        self._compute_op = -1
        self._done: Completion | Progress | None = None
        self._stopping = False
        self._news = False
        """Something has happened since the last attempt to admit that could make it succeed."""

    # What the driver brings

    def arrive(self, request: Active, now_s: float) -> None:
        """A new request. A batch that may stop for it is asked to."""
        self.scheduler.enqueue(request, now_s)
        self._news = True
        self._look_up(now_s)

    def abort(self, request_id: int, now_s: float) -> None:
        """The client has gone."""
        self.scheduler.abort(request_id, now_s)
        self._news = True
        self._look_up(now_s)

    def clear_storage(self) -> None:
        """Empty L3, as the HTTP call of the same name does. ValueError without L3."""
        storage = self.cache.storage
        if storage is None:
            raise ValueError("there is no L3 to clear: the engine was built without a storage backend")
        storage.clear()

    def on(self, event: Report) -> None:
        """A plane's report."""
        self.cache.on(event)
        self._news = True

    def step(self, now_s: float) -> Generator[Wait, None, None]:
        """Act on everything brought since the last step, and start the next batch if the device is free."""
        self.steps += 1
        self.cache.tick(now_s)
        if self._done is not None:
            self._finish_batch(now_s)
        if self._batch is None:
            yield from self._start_batch(now_s)
            self._news = False

    def tick(self, now_s: float) -> None:
        """Collect acknowledgements while a batch is computed, and stop it if that lets somebody in."""
        self.cache.tick(now_s)
        self._news = True
        self._look_up(now_s)

    def take_ops(self) -> list[Op | Cancel]:
        """Operations for the plane, in order."""
        return self.cache.take_ops()

    # What the driver asks

    @property
    def idle(self) -> bool:
        """No request in the engine; transfers may still be in flight."""
        return self.scheduler.idle and self._batch is None

    @property
    def wants_tick(self) -> bool:
        """Whether a tick would do more than free what finished stores held."""
        return self.cache.acks_due or bool(self.scheduler.waiting)

    @property
    def batch(self) -> Prefill | Decode | None:
        """What is being computed."""
        return self._batch

    def computes(self, op_id: int) -> bool:
        """Whether `op_id` is the batch in flight."""
        return op_id == self._compute_op

    def next_deadline_s(self) -> float | None:
        """A time at which to step even if nothing is reported: a prefetch that a request waits for times out."""
        return self.scheduler.next_deadline_s()

    # Batches

    def _start_batch(self, now_s: float) -> Generator[Wait, None, None]:
        batch = yield from self._form_batch(now_s)
        while batch is None and self._nothing_will_help() and self.scheduler.give_up_one(now_s):
            batch = yield from self._form_batch(now_s)
        if batch is not None:
            self._compute(batch)

    def _form_batch(self, now_s: float) -> Generator[Wait, None, Prefill | Decode | None]:
        """Prefill first, as upstream does."""
        batch: Prefill | Decode | None = yield from self.scheduler.form_prefill(now_s)
        if batch is None and self.scheduler.running:
            batch = yield from self.scheduler.form_decode(now_s)
        return batch

    def _nothing_will_help(self) -> bool:
        """No transfer is in flight whose end could let a request go on, and nothing waits for the next tick."""
        return self.cache.ledger.at_rest and not self.cache.ledger.open

    def _compute(self, batch: Prefill | Decode) -> None:
        op_id = self.cache.ledger.new_op()
        self._batch, self._compute_op, self._stopping = batch, op_id, False
        self.cache.ledger.computing.add(op_id)
        self.cache.ledger.open[op_id] = self._computed
        self.cache.submit(Op(op_id, OpKind.COMPUTE, batch.steps, batch=batch))

    def _computed(self, event: Completion | Progress) -> None:
        del self.cache.ledger.open[event.op_id]
        self.cache.ledger.computing.discard(event.op_id)
        self._done = event

    def _finish_batch(self, now_s: float) -> None:
        batch, done = self._batch, self._done
        assert batch is not None
        assert done is not None
        self._batch = self._done = None
        self._compute_op = -1
        batch.finish(self.scheduler, done.pages_ok, now_s)

    def _look_up(self, now_s: float) -> None:
        """Stop the batch if it is worth an attempt to admit."""
        batch = self._batch
        if batch is None or self._stopping or not batch.may_stop or not self._news:
            return
        self._news = False
        if self.scheduler.wants_a_turn(now_s):
            self._stopping = True
            self.cache.cancel(self._compute_op)
