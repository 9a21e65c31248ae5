"""Batches: what the device is asked to compute, and what it costs.

Rules of this file
- A batch knows what it is made of, how long a compute model says it takes, whether it may stop early, and what the
  scheduler does when it is done. Nobody asks which kind it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from .active import Active
from .running import Running

if TYPE_CHECKING:
    from .scheduler import Scheduler


class Costs(Protocol):
    """What a compute model answers: times of batches, in seconds."""

    def prefill_s(self, pairs: Iterable[tuple[int, int]]) -> float: ...

    def decode_s(self, batch: int, context_tokens: int, steps: int) -> float: ...

    def decode_steps(self, batch: int, context_tokens: int, seconds: float) -> int: ...


class Prefill:
    """Compute the KV of new tokens: request i has `spans[i]` = (tokens before, new tokens).

    `loads`: LOADs in flight; layer i of this batch computes when layer i of them has arrived.
    """

    may_stop = False

    def __init__(self, requests: list[Active], spans: list[tuple[int, int]], loads: tuple[int, ...]) -> None:
        self.requests = requests
        self.spans = spans
        self.loads = loads
        self.steps = 1

    def parts(self) -> list[tuple[Active, int, int]]:
        """(request, tokens before, new tokens a step)."""
        return [(request, *span) for request, span in zip(self.requests, self.spans, strict=True)]

    def seconds(self, costs: Costs) -> float:
        return costs.prefill_s(self.spans)

    def steps_within(self, costs: Costs, seconds: float) -> int:
        return 0

    def finish(self, scheduler: Scheduler, steps: int, now_s: float) -> None:
        scheduler.prefilled(self, now_s)


class Decode:
    """Decode `steps` tokens for each of `size` requests; `context_tokens`: the sum of their lengths before the first.

    `running` are the requests; `running.kv_tokens(request)` is the length of each. It may stop between any two steps.
    """

    may_stop = True

    def __init__(self, running: Running, size: int, steps: int, context_tokens: int) -> None:
        self.running = running
        self.size = size
        self.steps = steps
        self.context_tokens = context_tokens
        self.loads: tuple[int, ...] = ()

    def parts(self) -> list[tuple[Active, int, int]]:
        """(request, tokens before, new tokens a step)."""
        return [(request, self.running.kv_tokens(request), 1) for request in self.running]

    def seconds(self, costs: Costs) -> float:
        return costs.decode_s(self.size, self.context_tokens, self.steps)

    def steps_within(self, costs: Costs, seconds: float) -> int:
        """Whole steps done after so many seconds."""
        return min(self.steps, costs.decode_steps(self.size, self.context_tokens, seconds))

    def cut(self, steps: int) -> Decode:
        """The same batch, stopped after `steps` steps."""
        return Decode(self.running, self.size, steps, self.context_tokens)

    def finish(self, scheduler: Scheduler, steps: int, now_s: float) -> None:
        scheduler.decoded(self, steps, now_s)
