"""When requests of a workload reach the engine: by the clock, after the answer before, after a round, or when there is
room for one more.

Rules of this file
- The stream is read one request ahead, so a million of them cost no memory: only what waits for something is kept, and
  in a closed loop 8 bytes for the end of each, since who follows may be read much later.
- A request is due at the latest of its own time, `think_s` after its parent's end, the end of all earlier waves, and
  the end of enough others if the workload bounds how many run at once.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable

from workloads.request import Request

from .clock import Clock


class Arrivals:
    """Calls `arrive(request)` when each is due; told of ends by `ended`."""

    def __init__(
        self,
        clock: Clock,
        requests: Iterable[Request],
        arrive: Callable[[Request], None],
        linked: bool = False,
        max_parallel: int | None = None,
    ) -> None:
        self._clock = clock
        self._requests = iter(requests)
        self._arrive = arrive
        self._linked = linked
        self._max_parallel = max_parallel
        self._next: Request | None = None
        self._live = 0
        """Requests that have arrived and not ended."""
        self._unended = 0
        """Requests that have been read and not ended."""
        self._queue: deque[Request] = deque()
        """Due, but for the bound on how many run at once."""
        self._children: dict[int, list[Request]] = {}
        """Turns by the parent whose end they wait for."""
        self._ended_s = array("d")
        """Ends of requests, by id; negative until then."""
        self._admitting = False
        self._unfinished: dict[int, int] = {}
        """Requests read and not ended, by wave."""
        self._later: dict[int, list[Request]] = {}
        """Requests that wait for an earlier wave to end, by their own."""

    def start(self) -> None:
        self._read()

    @property
    def finished(self) -> bool:
        """The workload has no more requests, and all have ended."""
        return self._next is None and not self._unended

    @property
    def waiting(self) -> int:
        """Requests that wait for something that has not happened."""
        turns = sum(map(len, self._children.values())) + sum(map(len, self._later.values()))
        return turns + len(self._queue)

    def ended(self, request_id: int, wave: int) -> None:
        """A request has ended, in whatever way."""
        self._live -= 1
        self._unended -= 1
        if self._linked:
            now_s = self._ended_s[request_id] = self._clock.now_s()
            for child in self._children.pop(request_id, ()):
                self._after_parent(child, now_s)
            self._end_wave(wave)
        self._admit()

    # Reading

    def _read(self) -> None:
        """Take requests from the workload until one has only the clock to wait for."""
        for request in self._requests:
            self._unended += 1
            if self._linked:
                self._unfinished[request.wave] = self._unfinished.get(request.wave, 0) + 1
                self._ended_s.extend([-1.0] * (request.id + 1 - len(self._ended_s)))
                if request.parent is not None:
                    ended_s = self._ended_s[request.parent]
                    if ended_s < 0.0:
                        self._children.setdefault(request.parent, []).append(request)
                    else:
                        self._after_parent(request, ended_s)
                    continue
            self._next = request
            self._clock.at(request.arrival_s, self._read_on)
            return
        self._next = None

    def _read_on(self) -> None:
        request = self._next
        assert request is not None
        self._due(request)
        self._read()

    def _after_parent(self, request: Request, ended_s: float) -> None:
        request.arrival_s = max(request.arrival_s, ended_s + request.think_s)
        self._clock.at(request.arrival_s, lambda: self._due(request))

    # Rounds, and how many at once

    def _due(self, request: Request) -> None:
        if self._linked and any(wave < request.wave for wave in self._unfinished):
            self._later.setdefault(request.wave, []).append(request)
            return
        self._queue.append(request)
        self._admit()

    def _end_wave(self, wave: int) -> None:
        self._unfinished[wave] -= 1
        if self._unfinished[wave]:
            return
        del self._unfinished[wave]
        first = min(self._unfinished, default=None)
        if first is not None:
            self._queue.extend(self._later.pop(first, ()))

    def _admit(self) -> None:
        if self._admitting:  # one that ends while it arrives makes room for the next, and the loop goes on
            return
        self._admitting = True
        while self._queue and (self._max_parallel is None or self._live < self._max_parallel):
            request = self._queue.popleft()
            # Its latency counts from when it was really sent.
            request.arrival_s = self._clock.now_s()
            self._live += 1
            self._arrive(request)
        self._admitting = False
