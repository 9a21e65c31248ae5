"""Batches on the compute stream: what is computed is fixed when the batch is submitted, the fence decides when.

Rules of this file
- A batch is turned into rows at its submit, on the engine's thread: later the tree and the leases may have changed.
- A prefill is one forward, a decode one for each step. A decode that is cancelled ends after the step under way (on
  CUDA, where launching is a step ahead, after the next); a prefill does not stop.
- Where ranks compute together, the steps of a decode are the same number on all: `stops` says so after each.
- A batch waits for the loads it names, layer by layer, and ends after they have been reported.
- Nothing here samples, or knows what a row means: that is the driver's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..control.types import Op
from .streams import Event, Stream
from .transfers import Arrival, BeforeLayer, Ended, LoadFailed

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """A batch ready to be computed."""

    def step(self, at: int, before_layer: BeforeLayer) -> None:
        """Compute step `at`: 0 of a prefill, 0 to steps - 1 of a decode. Calls `before_layer(i)` before layer i
        touches the pool."""
        ...


class Computer(Protocol):
    """Makes work of batches."""

    def begin(self, op: Op) -> Work:
        """On the engine's thread, at submit. Whatever the work needs of the engine's state is taken now."""
        ...


class BatchRows(Protocol):
    """What a driver makes of a batch: the rows of each step, and what becomes of their logits.

    Both are called on the compute stream's thread, in the order of the steps.
    """

    def rows(self, step: int) -> Sequence[Any]:
        """Rows for `Runner.forward`: new tokens, position of the first, device pages up to the last."""
        ...

    def computed(self, step: int, logits: Tensor) -> None:
        """`logits` [rows, vocab] of each row's last token. May still be under way on the device."""
        ...


class Forward(Protocol):
    """The model: `model.Runner` is one."""

    def forward(self, rows: Sequence[Any], before_layer: BeforeLayer, /) -> Tensor: ...


class ModelWork:
    """A batch computed by a model."""

    def __init__(self, model: Forward, batch: BatchRows) -> None:
        self._model = model
        self._batch = batch

    def step(self, at: int, before_layer: BeforeLayer) -> None:
        logits = self._model.forward(self._batch.rows(at), before_layer)
        self._batch.computed(at, logits)


class ModelComputer:
    """A model, and the driver's way to turn the batch of an operation into rows."""

    def __init__(self, model: Forward, rows_of: Callable[[Op], BatchRows]) -> None:
        self._model = model
        self._rows_of = rows_of

    def begin(self, op: Op) -> ModelWork:
        return ModelWork(self._model, self._rows_of(op))


def as_asked(asked: bool) -> bool:
    """A decode of one rank stops when it is asked to."""
    return asked


class ComputeJob:
    """One COMPUTE on the compute stream."""

    def __init__(self, batches: Batches, op: Op, work: Work, arrivals: Sequence[Arrival]) -> None:
        self._batches = batches
        self._op = op
        self._work: Work | None = work
        self._arrivals = arrivals
        self._start_s: float | None = None
        self._steps_done = 0
        self._cancelled = False
        self.moment = batches.stream.event()
        """Fires when the step under way is over, or the first one, or the batch."""

    def cancel(self) -> None:
        self._cancelled = self._op.batch.may_stop

    def run(self) -> None:
        stream, work = self._batches.stream, self._work
        assert work is not None
        fences = [arrival.fence(stream) for arrival in self._arrivals]

        def before_layer(layer: int) -> None:
            for fence in fences:
                fence(layer)

        self._start_s = self._batches.clock()
        before: Event | None = None
        for at in range(self._op.pages):
            work.step(at, before_layer)
            self._steps_done += 1
            if self._steps_done == self._op.pages or self._stops():
                self.moment.record()
                break
            stepped, self.moment = self.moment, stream.event()
            stepped.record()
            # One step may be launched ahead, not all of them: a cancel would come too late.
            if before is not None:
                stream.pace(before)
            before = stepped

    def _stops(self) -> bool:
        return self._batches.stops(self._cancelled) if self._op.batch.may_stop else False

    def ended(self, error: BaseException | None) -> None:
        self.moment.release()
        error = error or self._loads_failed()
        self._work = None
        steps = self._steps_done if error is None else min(self._steps_done, self._op.pages - 1)
        self._batches.report(Ended(self._op, steps, self._start_s, error))

    def _loads_failed(self) -> LoadFailed | None:
        """Wait for the reports of the loads, whose last layers have arrived."""
        try:
            for arrival in self._arrivals:
                arrival.reported()
        except LoadFailed as error:
            return error
        return None


class Batches:
    """The device, one batch after the other.

    stops(asked): on the stream's thread, after each step of a decode but the last: whether it ends there.
    """

    def __init__(
        self,
        stream: Stream,
        computer: Computer,
        clock: Callable[[], float],
        report: Callable[[Ended], None],
        stops: Callable[[bool], bool] = as_asked,
    ) -> None:
        self.stream = stream
        self.computer = computer
        self.clock = clock
        self.report = report
        self.stops = stops
        self._latest: ComputeJob | None = None
        self._idle = stream.event()
        self._idle.release()

    def start(self, op: Op, arrivals: Sequence[Arrival]) -> Callable[[], None]:
        """Compute `op`, which reads what `arrivals` bring. The answer asks it to stop early."""
        self._latest = job = ComputeJob(self, op, self.computer.begin(op), arrivals)
        self.stream.run(job)
        return job.cancel

    @property
    def moment(self) -> Event:
        """Fires when all that is computed by now is done: the step under way, not those after it."""
        return self._idle if self._latest is None else self._latest.moment
