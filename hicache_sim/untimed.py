"""Replay without time: one request after the other, every transfer done at once.

What remains are the decisions: which pages hit where, what is written, loaded and evicted. It is the procedure with
which the golden totals of whole traces were recorded, and the fastest way to a hit rate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hicache_ref.control import lease
from hicache_ref.control.cache import HiCache
from hicache_ref.control.counters import Drop
from hicache_ref.control.keys import ATOM_BYTES
from hicache_ref.control.types import Completion, Op, OpKind, Wait
from workloads.request import Request

from .stores import Store

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
    storage_hit: int = 0
    """Of those, fetched from L3 for this very request."""
    dropped: dict[Drop, int] = field(default_factory=dict)
    """Pages that left the tree."""


class InstantPlane:
    """A data plane that has done everything it is given before it is asked. `store`: its L3, if it has one."""

    def __init__(self, cache: HiCache, store: Store | None = None) -> None:
        self._cache = cache
        self.now_s = 0.0
        self._answers: dict[OpKind, Callable[[Sequence[Any], float], int]] = {}
        if store is not None:
            self._answers = {OpKind.PROBE: store.probe, OpKind.FETCH: store.read, OpKind.STORE: store.write}

    def settle(self) -> None:
        """Execute and report all that has been decided, and what that leads to."""
        cache = self._cache
        while ops := cache.take_ops():
            for op in ops:
                if isinstance(op, Op):
                    answer = self._answers.get(op.kind)
                    cache.on(Completion(op.id, op.pages if answer is None else answer(op.keys, self.now_s)))

    def rest(self) -> None:
        """Execute, act on it, and execute what comes of that, until nothing does: copies ahead, for one."""
        self.settle()
        self._cache.tick(self.now_s)
        while self._cache.has_ops:
            self.settle()
            self._cache.tick(self.now_s)

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


def replay(requests: Iterable[Request], cache: HiCache, store: Store | None = None) -> Totals:
    """Serve `requests` in order, prompts only: match, load back, make room, insert, release.

    With L3, everything the store has of a prompt is in L2 before it is matched: no prefetch policy could do better.
    """
    page = cache.shape.page_tokens
    plane = InstantPlane(cache, store)
    totals = Totals()
    for request in requests:
        pages = min(request.input_tokens, request.content_tokens) // page
        if not pages:
            totals.skipped += 1
            continue
        key = request.content.atoms(page, pages)
        fetched = _prefetch(cache, plane, request, key) if store is not None else 0
        admission = plane.drive(lease.acquire(cache, request.extra_key, key))
        cache.start_loading()
        totals.requests += 1
        totals.input += pages * page
        totals.device_hit += admission.match.device_pages * page
        totals.host_hit += admission.match.host_pages * page
        totals.loaded += admission.loaded * page
        totals.storage_hit += min(fetched, admission.loaded) * page
        if admission.lease is None:
            totals.rejected += 1
        else:
            lease.release(cache, admission.lease, request.priority)
        plane.rest()
    totals.dropped = dict(cache.counters.dropped)
    return totals


def _prefetch(cache: HiCache, plane: InstantPlane, request: Request, key: bytes) -> int:
    """Bring what L3 has of a prompt to L2; the pages that are new there."""
    storage = cache.storage
    assert storage is not None
    plane.now_s = request.arrival_s
    plane.settle()
    cache.tick(plane.now_s)
    match = cache.match(request.extra_key, key)
    missing = key[(match.device_pages + match.host_pages) * ATOM_BYTES :]
    prefetch = storage.prefetch(request.id, match, request.extra_key, missing, plane.now_s)
    plane.settle()
    cache.tick(plane.now_s)
    plane.settle()
    storage.poll(request.id, plane.now_s)
    return prefetch.inserted_pages
