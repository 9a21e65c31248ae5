"""What a run measures: a row a request, samples of the levels over time, and the reasons of misses.

Rules of this file
- Columns of numbers, appended to; nothing is computed here that can be computed afterwards.
- Samples are taken when a step happens to pass their time, and thinned out when there are too many: no events, bounded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..control.active import Active, Stage
from ..control.engine import Engine
from .meters import Meters
from .misses import Miss, MissReasons

REQUEST_COLUMNS: dict[str, str] = {
    "status": "b",
    "id": "q",
    "arrival_s": "d",
    "admitted_s": "d",
    "first_token_s": "d",
    "ended_s": "d",
    "input_tokens": "q",
    "output_tokens": "q",
    "device_hit_tokens": "q",
    "host_hit_tokens": "q",
    "loaded_tokens": "q",
    "storage_hit_tokens": "q",
    "computed_tokens": "q",
    "chunks": "i",
    "retractions": "i",
}
"""Columns of `requests.parquet` taken from the request, and their types. Negative times: never happened."""
STATUS = {Stage.DONE: 0, Stage.ABORTED: 1, Stage.REJECTED: 2}
STATUS_NAMES = ("done", "aborted", "rejected")

TIMELINE_COLUMNS = (
    "time_s",
    "waiting",
    "running",
    "l1_used_tokens",
    "l1_locked_tokens",
    "l2_used_tokens",
    "l3_pages",
    "prefetching_tokens",
    "prompt_tokens",
    "device_hit_tokens",
    "loaded_tokens",
    "storage_hit_tokens",
    "compute_busy_s",
)
"""Columns of `timeline.parquet` before those of the links (`*_bytes`, sums since the start)."""

_MOST_SAMPLES = 4000


class Columns:
    """Rows of numbers, and what they are as columns. `types`: of each, as numpy names them."""

    def __init__(self, types: dict[str, str]) -> None:
        self._types = types
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """By name: [rows] of its type."""
        columns = zip(*self._rows, strict=True) if self._rows else repeat(())
        types = zip(self._types.items(), columns, strict=False)
        return {name: np.array(column, code) for (name, code), column in types}

    def add(self, row: tuple[Any, ...]) -> None:
        """A value for each column, in their order."""
        self._rows.append(row)

    def thin_out(self) -> None:
        """Forget every other row."""
        del self._rows[1::2]

    def clear(self) -> None:
        self._rows.clear()


class Recorder:
    """Observes a run. `spill(rows)` is called whenever `spill_rows` rows are there, and clears them."""

    def __init__(
        self,
        engine: Engine,
        meters: Meters,
        reasons: MissReasons,
        spill: Callable[[Columns], None] | None = None,
        spill_rows: int = 2_000,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self._engine = engine
        self._meters = meters
        self._reasons = reasons
        self._spill = spill
        self._spill_rows = spill_rows
        self._progress = progress
        self.rows = Columns(REQUEST_COLUMNS | {f"miss_{miss.name.lower()}_tokens": "q" for miss in Miss})
        self.misses = [0] * len(Miss)
        """Tokens, by `Miss`."""
        self.status = [0, 0, 0]
        self.prompt_tokens = self.device_hit_tokens = self.host_hit_tokens = 0
        self.loaded_tokens = self.storage_hit_tokens = self.output_tokens = self.recomputed_tokens = 0
        self.admitted_requests = 0
        self.summed_hit_rates = 0.0
        self.ttft_s, self.tpot_s, self.e2e_s = array("d"), array("d"), array("d")
        self.queued_s = 0.0
        links = [f"{link.name}_bytes" for link in meters.links]
        self.samples = Columns(dict.fromkeys((*TIMELINE_COLUMNS, *links), "d"))
        self._sample_every_s = 1.0
        self._next_sample_s = 0.0
        self._explained: dict[int, list[int]] = {}
        self._of_request = attrgetter(*(name for name in REQUEST_COLUMNS if name != "status"))
        self._no_misses = [0] * len(Miss)

    # Requests

    def admitted(self, request: Active) -> None:
        """First admission: what it found, and why the rest missed."""
        reasons = self._reasons.explain(request)
        self._explained[request.id] = reasons
        misses = self.misses
        for reason, tokens in enumerate(reasons):
            misses[reason] += tokens
        self.admitted_requests += 1
        self.prompt_tokens += request.input_tokens
        self.device_hit_tokens += request.device_hit_tokens
        self.host_hit_tokens += request.host_hit_tokens
        self.loaded_tokens += request.loaded_tokens
        self.storage_hit_tokens += request.storage_hit_tokens
        self.summed_hit_rates += (request.device_hit_tokens + request.loaded_tokens) / request.input_tokens

    def ended(self, request: Active) -> None:
        status = STATUS[request.stage]
        self.status[status] += 1
        reasons = self._explained.pop(request.id, self._no_misses)
        self.rows.add((status, *self._of_request(request), *reasons))
        if request.first_token_s >= 0.0:
            self._note_times(request)
        self.output_tokens += request.produced
        self.recomputed_tokens += request.computed_tokens
        if self._spill is not None and len(self.rows) >= self._spill_rows:
            self._spill(self.rows)
            self.rows.clear()
        if self._progress is not None:
            self._progress(sum(self.status), request.ended_s)

    def _note_times(self, request: Active) -> None:
        self.ttft_s.append(request.first_token_s - request.arrival_s)
        self.queued_s += request.admitted_s - request.arrival_s
        if request.stage is Stage.DONE:
            self.e2e_s.append(request.ended_s - request.arrival_s)
            if request.produced > 1:
                self.tpot_s.append((request.ended_s - request.first_token_s) / (request.produced - 1))

    # Time

    def stepped(self, now_s: float) -> None:
        if now_s < self._next_sample_s:
            return
        self._next_sample_s = now_s + self._sample_every_s
        self._sample(now_s)
        if len(self.samples) > _MOST_SAMPLES:
            self.samples.thin_out()
            self._sample_every_s *= 2.0

    def _sample(self, now_s: float) -> None:
        cache, scheduler = self._engine.cache, self._engine.scheduler
        page = cache.shape.page_tokens
        store = self._meters.store
        row = (
            now_s,
            len(scheduler.waiting),
            len(scheduler.running) + len(scheduler.prefilling),
            (cache.l1.pages - cache.l1.free) * page,
            cache.tree.protected * page,
            (cache.l2.pages - cache.l2.free) * page,
            store.held_pages if store is not None else 0,
            cache.ledger.prefetch_pages * page,
            self.prompt_tokens,
            self.device_hit_tokens,
            self.loaded_tokens,
            self.storage_hit_tokens,
            self._meters.busy_s,
            *(link.moved_bytes for link in self._meters.links),
        )
        self.samples.add(row)

    def finish(self, now_s: float) -> None:
        """The last sample, and the last rows."""
        self._sample(now_s)
        if self._spill is not None and len(self.rows):
            self._spill(self.rows)
            self.rows.clear()
