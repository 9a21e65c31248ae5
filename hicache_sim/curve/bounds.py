"""What no policy can exceed: offline-best on one level, and on the hierarchy.

One level. When room is needed, the page needed last goes (Belady, 1966). A page is needed no later than the pages
behind it, so the page needed last can always be a leaf: the best flat cache is closed under prefixes by itself, and
bounds every cache of pages, leaf-first or not, whole nodes or not. Requests are served one after the other, as in an
untimed replay: all pages of the prompt are in L1 while it is served.

Hierarchy. Levels that may hold different pages, whose copies cost nothing, hold together what one level of all their
pages holds: Belady's choices for a smaller cache are among those for a larger one, so each level keeps what the levels
above it have let go, and brings it back just before it is needed. Only what will be read from a level is written to
it, so the pages written are the pages read.

With bandwidth. Data is there when the request arrives. In any stretch of time, pages that were used before it can be
hit only if they were in L1 (in L1 or L2) when it began, or came over the link during it. That bounds the hits of each
stretch; the stretches are cut in 1, 2, 4, … equal numbers of requests, and the tightest sum counts.

Rules of this file
- Which page goes does not matter, only when it is needed: a cache is a count of pages for each time of next need.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .references import Ints, References


@dataclass(frozen=True)
class Links:
    """What feeds a level, in pages a second: L2 feeds L1, L3 feeds L2. inf: no limit."""

    l2_pages_per_s: float = math.inf
    l3_pages_per_s: float = math.inf


def offline_best(
    references: References, sizes: Sequence[int], since: int = 0, serves_in_cache: bool = True
) -> list[int]:
    """Pages that caches of these sizes (whole workload's pages) hit if they throw out what is needed last.

    since: number of the first request that counts. serves_in_cache: the prompt being served takes room, as in HiCache;
    False: it may pass the cache by, as it may in simulators of caches beside the memory that computes.
    Of a sample, sizes are scaled by its rate; the hits are the sample's (`hits_left` scales them).
    """
    groups = _next_needs(references)
    lengths: list[int] = np.diff(references.starts).tolist()
    caches = [_Needs(len(groups), math.floor(size * references.rate)) for size in sizes]
    return [cache.serve(groups, lengths, since, serves_in_cache) for cache in caches]


def hits_left(references: References, hits: float) -> float:
    """Hits of the whole workload, from those counted in a sample; the same correction as for LRU's curve."""
    missing = references.total * references.rate - len(references)
    return min(max((hits + missing) / references.rate, 0.0), float(references.total)) if references.rate < 1 else hits


def _next_needs(references: References) -> list[list[tuple[int, int]]]:
    """For each request: (next request that needs them, number of pages), root first; the number of requests: never."""
    requests = len(references.starts) - 1
    request, previous = references.request, references.previous
    again = np.flatnonzero(previous >= 0)
    needed = np.full(len(references), requests, np.int64)
    needed[previous[again]] = request[again]
    cut = np.ones(len(references), bool)
    cut[1:] = (needed[1:] != needed[:-1]) | (request[1:] != request[:-1])
    first = np.flatnonzero(cut)
    counts = np.diff(np.append(first, len(references)))
    groups: list[list[tuple[int, int]]] = [[] for _ in range(requests)]
    for owner, when, pages in zip(request[first].tolist(), needed[first].tolist(), counts.tolist(), strict=True):
        groups[owner].append((when, pages))
    return groups


class _Needs:
    """What a cache of `size` pages holds, by the request that needs it next."""

    def __init__(self, requests: int, size: int) -> None:
        self._size = size
        self._held = [0] * (requests + 1)
        self._last: list[int] = []
        """Requests that need something held, negative, so that the last comes first; some that no longer do."""
        self._used = 0

    def serve(self, groups: list[list[tuple[int, int]]], lengths: list[int], since: int, in_cache: bool) -> int:
        """All requests; the pages that those from `since` on hit."""
        hits = 0
        for now, (group, pages) in enumerate(zip(groups, lengths, strict=True)):
            found, self._held[now] = self._held[now], 0
            self._used -= found
            if now >= since:
                hits += found
            # A prompt larger than the cache is not served, and leaves what it has found.
            kept = pages if pages <= self._size or not in_cache else found
            if in_cache:
                self._shrink(self._size - kept)
            self._keep(group, kept)
            self._shrink(self._size)
        return hits

    def _keep(self, group: list[tuple[int, int]], kept: int) -> None:
        """The first `kept` pages of a prompt are held now."""
        self._used += kept
        for when, count in group:
            taken = min(count, kept)
            kept -= taken
            if taken:
                if not self._held[when]:
                    heapq.heappush(self._last, -when)
                self._held[when] += taken

    def _shrink(self, pages: int) -> None:
        """Throw out what is needed last, until no more than `pages` are held."""
        while self._used > pages:
            latest = -self._last[0]
            gone = min(self._held[latest], self._used - pages)
            self._held[latest] -= gone
            self._used -= gone
            if not self._held[latest]:
                heapq.heappop(self._last)


def bandwidth_bound(references: References, links: Links, l1_pages: int, l2_pages: int = 0) -> float:
    """Pages hit, at most, where links carry only so much. `l3_pages_per_s` 0: there is no L3; else it has everything.

    Of a sample, in pages of the whole workload. inf where arrivals leave no time at all: then nothing is known.
    """
    requests = len(references.starts) - 1
    if not requests or references.arrival_s[-1] <= references.arrival_s[0]:
        return math.inf
    used, using = references.reuse
    best = math.inf
    stretches = 1
    while stretches <= requests:
        edges = np.unique(np.linspace(0, requests, stretches + 1).astype(np.int64))
        best = min(best, _stretched(references, links, l1_pages, l2_pages, edges, used, using))
        stretches *= 2
    return best


def _stretched(
    references: References, links: Links, l1_pages: int, l2_pages: int, edges: Ints, used: Ints, using: Ints
) -> float:
    """The bound for one way to cut time. A stretch begins when the last request before it arrives."""
    arrival_s = references.arrival_s
    began_s = arrival_s[np.maximum(edges[:-1] - 1, 0)]
    took_s = arrival_s[edges[1:] - 1] - began_s
    where = np.searchsorted(edges, using, side="right") - 1
    inside = used >= edges[where]
    fresh = np.bincount(where[~inside], minlength=len(edges) - 1) / references.rate
    carried = np.minimum(
        _over(links.l2_pages_per_s, took_s, l1_pages), _over(links.l3_pages_per_s, took_s, l1_pages + l2_pages)
    )
    return hits_left(references, float(inside.sum() + np.minimum(fresh, carried).sum() * references.rate))


def _over(pages_per_s: float, took_s: np.ndarray, already: int) -> np.ndarray:
    return already + pages_per_s * took_s if math.isfinite(pages_per_s) else np.full(len(took_s), math.inf)
