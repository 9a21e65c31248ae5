"""Replay without time: one request after the other, every transfer done at once.

What remains are the decisions: which pages hit where, what is written, loaded and evicted. It is the procedure with
which the golden totals of whole traces were recorded, and the fastest way to a hit rate.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hicache_ref.control import lease
from hicache_ref.control.cache import HiCache
from hicache_ref.control.types import Completion, Op, Wait
from workloads.request import Request

T = TypeVar("T")


@dataclass(slots=True)
class Totals:
    """Sums over a replay, in tokens unless the name says otherwise. `input` counts whole pages only."""

    requests: int = 0
    skipped: int = 0
    """Prompts of less than a page."""
    rejected: int = 0
    """Prompts that do not fit in L1 beside what is in use."""
    input: int = 0
    device_hit: int = 0
    host_hit: int = 0
    """Matched on the host, beyond the device."""
    loaded: int = 0
    """Of those, loaded back."""


class InstantPlane:
    """A data plane that has done everything it is given before it is asked."""

    def __init__(self, cache: HiCache) -> None:
        self._cache = cache

    def settle(self) -> None:
        """Execute and report all that has been decided, and what that leads to."""
        cache = self._cache
        while ops := cache.take_ops():
            for op in ops:
                if op.__class__ is Op:
                    cache.on(Completion(op.id, op.pages))

    def drive(self, steps: Generator[Wait, None, T]) -> T:
        """Run a call that may wait."""
        try:
            next(steps)
            while True:
                self.settle()
                steps.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result


def replay(requests: Iterable[Request], cache: HiCache) -> Totals:
    """Serve `requests` in order, prompts only: match, load back, make room, insert, release."""
    page = cache.shape.page_tokens
    plane = InstantPlane(cache)
    totals = Totals()
    for request in requests:
        pages = min(request.input_tokens, request.content_tokens) // page
        if not pages:
            totals.skipped += 1
            continue
        key = request.content.atoms(page, pages)
        admission = plane.drive(lease.acquire(cache, request.extra_key, key))
        cache.start_loading()
        totals.requests += 1
        totals.input += pages * page
        totals.device_hit += admission.match.device_pages * page
        totals.host_hit += admission.match.host_pages * page
        totals.loaded += admission.loaded * page
        if admission.lease is None:
            totals.rejected += 1
        else:
            lease.release(cache, admission.lease, request.priority)
        plane.settle()
        cache.tick(request.arrival_s)
    return totals
