"""The running batch: requests that decode together, a token each a step.

Rules of this file
- All advance alike, so one clock of steps stands for all: sums are kept as they were at clock 0, and what a request
  has produced is the difference. A thousand steps of a hundred requests cost one addition.
- Requests are sorted into classes by when they next need a page: only those that do are looked at.
- `Active.produced` and `Active.kv_tokens` are those of when the request joined, until `leave` or `sync`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .active import Active


class Running:
    """Decoding requests, and how long until one ends or needs a page."""

    def __init__(self, page_tokens: int, clip_tokens: int) -> None:
        self._page = page_tokens
        self._clip = clip_tokens
        self._members: dict[int, tuple[Active, int]] = {}
        """Request and the clock at which it joined, by id."""
        self._clock = 0
        self._context = 0
        self._left = 0
        """Tokens still to come at clock 0, of requests whose estimate is not clipped."""
        self._long: dict[int, Active] = {}
        """Requests whose estimate may be clipped."""
        self._ends: list[tuple[int, int]] = []
        self._classes: dict[int, dict[int, Active]] = {}
        """Requests by the clock, modulo the page size, before whose step they need a page."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Active]:
        return (request for request, _ in self._members.values())

    # Joining and leaving

    def join(self, request: Active) -> None:
        """`request` decodes from the next step on."""
        clock = self._clock
        self._members[request.id] = (request, clock)
        self._context += request.kv_tokens - clock
        if request.max_new_tokens > self._clip:
            self._long[request.id] = request
        else:
            self._left += request.max_new_tokens - request.produced + clock
        heapq.heappush(self._ends, (clock + request.output_tokens - request.produced, request.id))
        self._classes.setdefault((clock - request.kv_tokens) % self._page, {})[request.id] = request

    def leave(self, request: Active) -> None:
        """`request` no longer decodes; its fields are up to date again."""
        clock = self._clock
        self._context -= self.kv_tokens(request) - clock
        if self._long.pop(request.id, None) is None:
            self._left -= request.max_new_tokens - self.produced(request) + clock
        at = (clock - self.kv_tokens(request)) % self._page
        del self._classes[at][request.id]
        if not self._classes[at]:
            del self._classes[at]
        self.sync(request)
        del self._members[request.id]

    def arrange(self, order: list[Active]) -> None:
        """From now on they stand in this order."""
        self._members = {request.id: self._members[request.id] for request in order}

    def sync(self, request: Active) -> None:
        """Bring the fields of `request` up to date."""
        _, joined = self._members[request.id]
        request.produced += self._clock - joined
        request.kv_tokens += self._clock - joined
        self._members[request.id] = (request, self._clock)

    def advance(self, steps: int) -> None:
        """All have decoded `steps` tokens."""
        self._clock += steps

    def ended(self) -> list[Active]:
        """Those that have produced all their tokens by this step, in the order in which they joined."""
        over: dict[int, Active] = {}
        while self._ends and self._ends[0][0] <= self._clock:
            _, request_id = heapq.heappop(self._ends)
            # One that left and came back has two ends on the heap, which may be the same.
            if request_id in self._members and self._steps_left(request_id) <= 0:
                over[request_id] = self._members[request_id][0]
        return list(over.values()) if len(over) < 2 else [request for request in self if request.id in over]

    # Sums

    def produced(self, request: Active) -> int:
        return request.produced + self._clock - self._members[request.id][1]

    def kv_tokens(self, request: Active) -> int:
        return request.kv_tokens + self._clock - self._members[request.id][1]

    @property
    def context_tokens(self) -> int:
        """Sum of the lengths."""
        return self._context + len(self._members) * self._clock

    def estimated_tokens(self) -> int:
        """Tokens still to come, each request's clipped (upstream's `_get_running_request_total_token_offset`)."""
        short = self._left - (len(self._members) - len(self._long)) * self._clock
        return short + sum(min(r.max_new_tokens - self.produced(r), self._clip) for r in self._long.values())

    def steps_to_end(self) -> int:
        """Steps until the first request ends."""
        while True:
            end, request_id = self._ends[0]
            left = self._steps_left(request_id) if request_id in self._members else -1
            if left == end - self._clock:
                return left
            heapq.heappop(self._ends)

    def _steps_left(self, request_id: int) -> int:
        request, _ = self._members[request_id]
        return request.output_tokens - self.produced(request)

    # Pages

    def pages_for(self, steps: int) -> int:
        """New pages that `steps` steps of all need."""
        page, clock = self._page, self._clock
        rounds, rest = divmod(steps, page)
        needed = rounds * len(self._members)
        if rest:
            for at, members in self._classes.items():
                if (at - clock) % page < rest:
                    needed += len(members)
        return needed

    def steps_for(self, pages: int, most: int) -> int:
        """The most steps, up to `most`, that need at most `pages` new pages."""
        if self.pages_for(most) <= pages:
            return most
        page, clock = self._page, self._clock
        rounds = min(pages // len(self._members), most // page)
        pages -= rounds * len(self._members)
        rest = most - rounds * page
        for offset, needed in sorted(((at - clock) % page, len(members)) for at, members in self._classes.items()):
            if needed > pages:
                return rounds * page + min(offset, rest)
            pages -= needed
        return rounds * page + min(rest, page)

    def needing(self, first: int, last: int) -> list[tuple[Active, int]]:
        """Requests that need pages before steps `first` … `last` - 1 from now, and how many."""
        page, clock, span = self._page, self._clock + first, last - first
        found = []
        for at, members in self._classes.items():
            offset = (at - clock) % page
            if offset < span:
                times = (span - offset - 1) // page + 1
                found += [(request, times) for request in members.values()]
        return found
