"""A real machine whose operations are given by hand, one after the other or side by side.

Rules of this file
- What is timed is what the engine sees: from the submit of an operation to its report, thread switches included.
- Batches read and write pages like any other, of a cache that holds nothing: values change no time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..control.types import Completion, Op, OpKind
from ..data.plane import RealPlane
from ..model.rows import Row

Pages = NDArray[np.int64]
TIMEOUT_S = 120.0


class RigFailed(RuntimeError):
    """An operation failed or did not end. One line."""


class Batch:
    """New tokens on top of others, for each of some sequences; `steps` times, a token further each time.

    Stands for the engine's batch and for its rows at once.
    """

    may_stop = False

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        page_tokens: int,
        pool_pages: int,
        steps: int = 1,
        loads: tuple[int, ...] = (),
    ) -> None:
        """spans: (tokens before, new tokens) of each sequence. loads: it waits for their layers."""
        self.spans, self.steps, self.loads = spans, steps, loads
        rng = np.random.default_rng(len(spans))
        self._page = page_tokens
        self._tokens = rng.integers(0, 64, max(new for _, new in spans), dtype=np.int64)
        self._pages = []
        free, taken = rng.permutation(pool_pages), 0
        for before, new in spans:
            count = -(-(before + new + steps) // page_tokens)
            # Where the pool is too small for all, sequences share pages: which ones, no time depends on.
            self._pages.append(np.take(free, np.arange(taken, taken + count), mode="wrap"))
            taken += count

    def rows(self, step: int) -> list[Row]:
        return [
            Row(self._tokens[:new], before + step, pages[: -(-(before + step + new) // self._page)])
            for (before, new), pages in zip(self.spans, self._pages, strict=True)
        ]

    def computed(self, step: int, logits: Any) -> None:
        pass


def batch_of(op: Op) -> Batch:
    """What a machine in a rig is made with: batches are their own rows."""
    batch: Batch = op.batch
    return batch


class Rig:
    """Operations on a plane, and the seconds they take."""

    def __init__(self, plane: RealPlane) -> None:
        self.plane = plane
        self._ids = itertools.count(1)

    def compute(self, batch: Batch) -> Op:
        return Op(next(self._ids), OpKind.COMPUTE, batch.steps, batch=batch)

    def load(self, host: Pages, device: Pages) -> Op:
        return Op(next(self._ids), OpKind.LOAD, len(host), host, device)

    def backup(self, device: Pages, host: Pages) -> Op:
        return Op(next(self._ids), OpKind.BACKUP, len(host), device, host)

    def store(self, host: Pages, names: Sequence[str]) -> Op:
        return Op(next(self._ids), OpKind.STORE, len(host), src=host, keys=names)

    def fetch(self, host: Pages, names: Sequence[str]) -> Op:
        return Op(next(self._ids), OpKind.FETCH, len(host), dst=host, keys=names)

    def probe(self, names: Sequence[str]) -> Op:
        return Op(next(self._ids), OpKind.PROBE, len(names), keys=names)

    def seconds(self, *ops: Op) -> list[float]:
        """Begin all at once; when each had ended. RigFailed: one failed, or fell short."""
        began_s = time.perf_counter()
        for op in ops:
            self.plane.submit(op)
        wanted = {op.id: op for op in ops}
        ended: dict[int, float] = {}
        while len(ended) < len(ops):
            if not self.plane.wait(TIMEOUT_S):
                raise RigFailed(f"an operation has not ended after {TIMEOUT_S:g} s")
            for report in self.plane.poll():
                if isinstance(report, Completion) and report.op_id in wanted:
                    self._check(wanted[report.op_id], report)
                    ended[report.op_id] = time.perf_counter() - began_s
        return [ended[op.id] for op in ops]

    def busy_s(self, op: Op) -> float:
        """Seconds of a batch on the device, without what hands it over: the plane has to keep slices."""
        slices = self.plane.slices
        slices.clear()
        self.seconds(op)
        return slices[-1].end_s - slices[-1].start_s

    def beside(self, op: Op, others: Sequence[Op]) -> float:
        """Seconds of `op` while one of `others` after the other is under way; these end in their own time."""
        waiting = list(others)
        self.plane.submit(waiting.pop())
        began_s = time.perf_counter()
        self.plane.submit(op)
        left, taken_s = 2, None
        while left:
            if not self.plane.wait(TIMEOUT_S):
                raise RigFailed(f"an operation has not ended after {TIMEOUT_S:g} s")
            for report in self.plane.poll():
                if not isinstance(report, Completion):
                    continue
                left -= 1
                if report.op_id == op.id:
                    self._check(op, report)
                    taken_s = time.perf_counter() - began_s
                elif taken_s is None and waiting:
                    self.plane.submit(waiting.pop())
                    left += 1
        assert taken_s is not None
        return taken_s

    def _check(self, op: Op, report: Completion) -> None:
        if report.failed or (report.pages_ok < op.pages and op.kind is not OpKind.PROBE):
            why = next((failure.what for failure in self.plane.errors if failure.op_id == op.id), "it fell short")
            raise RigFailed(f"{op.kind.name} of {op.pages} failed: {why}")
