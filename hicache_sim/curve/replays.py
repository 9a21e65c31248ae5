"""Points of the curves that have no closed form: other strategies, replayed without time on all prompts or a sample.

Rules of this file
- A sample is replayed in levels scaled by its rate (a miniature simulation: Waldspurger et al., ATC '17), and its hits
  are scaled back as those of the LRU curve are.
- Two strategies are compared on the same sample: most of its noise is common to both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.keys import ATOM_BYTES, AtomKeys
from hicache_ref.control.policies import EvictionPolicy, Leaves, WritePolicy
from hicache_ref.control.rules import rules_for
from hicache_ref.control.tree import Node
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.write import WRITE
from workloads.request import Request

from ..untimed import replay
from .bounds import hits_left
from .oracle import Future, NeededLast, WriteWhatIsRead
from .references import References


@dataclass(frozen=True)
class Setting:
    """What is replayed. Sizes are pages of the whole workload; `l2_pages` 0: no L2, and nothing is written.

    eviction, write: names, of a registry or of `ORACLES` and `WRITE_ORACLES`. whole_nodes: evict as HiCache does;
    False: only the pages that are needed, which is what the curves and bounds speak of. rules: single knobs changed.
    """

    eviction: str
    l1_pages: int
    l2_pages: int = 0
    write: str = "write_through"
    profile: str = "v0.5.7"
    whole_nodes: bool = True
    rules: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Pages of the whole workload. hits: on both levels. written, read: to and from L2."""

    hits: float
    l1_hits: float
    written: float
    read: float
    rejected: int


ORACLES: dict[str, Callable[[Future], EvictionPolicy]] = {NeededLast.name: NeededLast}
WRITE_ORACLES: dict[str, Callable[[Future], WritePolicy]] = {WriteWhatIsRead.name: WriteWhatIsRead}


def replayed(references: References, setting: Setting) -> Outcome:
    """One replay. ValueError: an unknown policy, with the known ones."""
    cache, requests = _prepared(references, setting)
    totals = replay(requests, cache)
    page, scale = references.page_tokens, 1 / references.rate
    l1_hits = hits_left(references, totals.device_hit // page)
    read = totals.loaded // page * scale
    return Outcome(l1_hits + read, l1_hits, cache.counters.backed_up * scale, read, totals.rejected)


def _prepared(references: References, setting: Setting) -> tuple[HiCache, Iterable[Request]]:
    """The cache and the requests; with a look into the future where an oracle was asked for, and only there."""
    requests: Iterable[Request] = prompts(references)
    write = setting.write if setting.l2_pages else "none"
    oracle = setting.eviction in ORACLES or write in WRITE_ORACLES
    if oracle:
        future = Future(references)
        requests = future.served(requests)
    eviction = ORACLES[setting.eviction](future) if setting.eviction in ORACLES else EVICTION.make(setting.eviction)
    writing = WRITE_ORACLES[write](future) if write in WRITE_ORACLES else WRITE.make(write)
    rate, page = references.rate, references.page_tokens
    shape = CacheShape(
        page, max(1, math.floor(setting.l1_pages * rate)), math.floor(setting.l2_pages * rate), math.ceil(10 * rate)
    )
    cache = HiCache(
        shape, eviction, writing, rules_for(setting.profile, **dict(setting.rules)), AtomKeys(), oracle=oracle
    )
    if not setting.whole_nodes:
        cache.device_leaves = SinglePages(cache.device_leaves, cache)
        cache.host_leaves = SinglePages(cache.host_leaves, cache)
    return cache, requests


def prompts(references: References) -> Iterator[Request]:
    """The (sampled) prompts as requests again, those left without a page too."""
    key, page = references.atoms.tobytes(), references.page_tokens
    starts, space = references.starts.tolist(), references.space.tolist()
    for at, arrival_s in enumerate(references.arrival_s.tolist()):
        first, past = starts[at], starts[at + 1]
        tokens = (past - first) * page
        content = Atoms(key[first * ATOM_BYTES : past * ATOM_BYTES])
        yield Request(at, arrival_s, content, tokens, 1, tokens, extra_key=references.spaces[space[at]])


class Atoms:
    """Content given by the atoms of its pages, at one page size."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def atoms(self, page_tokens: int, pages: int) -> bytes:
        return self._key[: pages * ATOM_BYTES]

    def page_ids(self, page_tokens: int, pages: int) -> bytes:
        return self.atoms(page_tokens, pages)


class SinglePages:
    """The leaves of a level, one page at a time: a victim is the last page of the leaf, and the rest stays."""

    def __init__(self, leaves: Leaves, cache: HiCache) -> None:
        self._leaves, self._tree = leaves, cache.tree
        self.offer, self.known = leaves.offer, leaves.known

    def pop(self) -> Node | None:
        node = self._leaves.pop()
        if node is not None and node.pages > 1:
            upper = self._tree.split(node, node.pages - 1)
            upper.last_access, upper.created = node.last_access, node.created
        return node
