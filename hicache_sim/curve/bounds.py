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


def offline_best(references: References, sizes: Sequence[int]) -> list[int]:
    """Pages that caches of these sizes (whole workload's pages) hit if they throw out what is needed last.

    Of a sample, sizes are scaled by its rate and so are the hits.
    """
    groups = _next_needs(references)
    return [_belady(groups, references, math.floor(size * references.rate)) for size in sizes]


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


def _belady(groups: list[list[tuple[int, int]]], references: References, size: int) -> int:
    lengths: list[int] = np.diff(references.starts).tolist()
    held = [0] * (len(groups) + 1)
    """Pages that the request of this number needs next."""
    last: list[int] = []
    """Those numbers, the last first; entries without pages are passed over."""
    used = hits = 0
    for now, (group, pages) in enumerate(zip(groups, lengths, strict=True)):
        found, held[now] = held[now], 0
        hits += found
        used -= found
        kept = pages if pages <= size else found  # A prompt larger than the cache is not served, and adds nothing.
        while used > size - kept:
            latest = -last[0]
            if not held[latest]:
                heapq.heappop(last)
                continue
            gone = min(held[latest], used - (size - kept))
            held[latest] -= gone
            used -= gone
        used += kept
        for when, count in group:
            taken = min(count, kept)
            kept -= taken
            if taken:
                if not held[when]:
                    heapq.heappush(last, -when)
                held[when] += taken
    return hits


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
