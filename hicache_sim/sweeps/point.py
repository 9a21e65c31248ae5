"""One replay of a sweep, in whichever process it lands.

Rules of this file
- Whatever goes wrong becomes the outcome's one line: a point that cannot run must not stop the others.
- A process keeps the requests it has read, for its next points most likely replay the same trace. What is kept has a
  bound; a longer trace is read again every time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

from workloads import Schedule, Workload
from workloads.request import Request

from ..api import Options, replay
from .ask import Ask
from .fingerprint import trace_version
from .journal import Outcome
from .metrics import figures

MOST_KEPT_BYTES = 256 << 20
"""Of one process."""
_REQUEST_BYTES = 500


@dataclass(frozen=True)
class Job:
    """A point to run. `trace`: the version of its trace, since another machine may hold another."""

    key: str
    ask: Ask
    trace: str


def run_point(job: Job) -> Outcome:
    """Replay it. Never raises, unless it is interrupted."""
    try:
        return _run(job)
    except ValueError as error:
        return Outcome(error=_line(str(error)))
    except (OSError, MemoryError) as error:
        return Outcome(error=_line(f"{type(error).__name__}: {error}"), passing=True)
    except Exception as error:
        return Outcome(error=_line(f"{type(error).__name__}: {error}"))


def _run(job: Job) -> Outcome:
    ask = job.ask
    workload, schedule = _requests.of(job)
    result = replay(workload, schedule, Options(limit=ask.limit, sequential=ask.sequential, keep=False), ask.config())
    outcome = Outcome(figures(result), changes=tuple(result.summary["changes"]))
    del result
    gc.collect()  # a simulation is one large cycle, and the next one is as large
    return outcome


def _line(text: str) -> str:
    return " ".join(text.split()) or "failed without a word"


class Kept(Workload):
    """A workload under one schedule whose requests are remembered once they have all been read."""

    def __init__(self, workload: Workload, schedule: Schedule | None, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self.name = workload.name
        self.format = workload.format
        self.verdict = workload.verdict
        self.block_tokens = workload.block_tokens
        self.linked = workload.linked
        self.schedule = schedule or workload.schedule
        self.max_parallel = workload.max_parallel
        self._workload = workload
        self._most_bytes = most_bytes
        self._requests: list[Request] | None = None

    def requests(self, schedule: Schedule | None = None) -> Iterator[Request]:
        """Copies, for who drives requests moves their times. A schedule other than its own is passed on."""
        if schedule is not None and schedule != self.schedule:
            return self._workload.requests(schedule)
        if self._requests is not None:
            return map(copy, self._requests)
        return self._remembering(self._workload.requests(self.schedule))

    def _remembering(self, requests: Iterator[Request]) -> Iterator[Request]:
        read: list[Request] = []
        room_bytes = self._most_bytes
        for request in requests:
            if room_bytes > 0:
                room_bytes -= _REQUEST_BYTES + 8 * request.content_tokens // max(self.block_tokens, 1)
                read.append(copy(request))
                if room_bytes <= 0:
                    read.clear()
            yield request
        if room_bytes > 0:
            self._requests = read


class _Requests:
    """The workload read last."""

    def __init__(self) -> None:
        self._key: Any = None
        self._kept: Kept | None = None

    def of(self, job: Job) -> tuple[Workload, Schedule]:
        """The job's workload and its schedule. ValueError: it cannot be read, or is not the one asked for."""
        key = (job.trace, job.ask.trace, job.ask.reading())
        if self._kept is None or self._key != key:
            self._key = self._kept = None
            if trace_version(job.ask.trace) != job.trace:
                raise ValueError(f"{job.ask.trace}: not the trace that the sweep began with; start it again")
            self._kept = Kept(*job.ask.workload())
            self._key = key
        return self._kept, self._kept.schedule


_requests = _Requests()
