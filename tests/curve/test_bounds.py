"""Offline-best against all there is: exhaustive search, replays of the oracle, and every strategy there is."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.keys import AtomKeys
from hicache_ref.control.rules import rules_for
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.write import WRITE
from hicache_sim.curve.bounds import Links, bandwidth_bound, offline_best
from hicache_sim.curve.lru import LruCurve
from hicache_sim.curve.oracle import Future, NeededLast, WriteWhatIsRead
from hicache_sim.curve.references import References
from hicache_sim.curve.replays import Setting, replayed

from .prompts import PROMPTS, references
from .test_stack import trace

FEW = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=7)


def exhaustive(refs: References, size: int) -> int:
    """The most pages any choice of what to keep can hit: every subset is tried after every request."""
    pages, starts = refs.page.tolist(), refs.starts.tolist()
    prompts = [pages[first:past] for first, past in pairwise(starts)]

    @cache
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(prompts):
            return 0
        prompt = prompts[at]
        found = 0
        while found < len(prompt) and prompt[found] in held:
            found += 1
        others = sorted(held - set(prompt))
        kept = [
            frozenset(some) for n in range(min(len(others), size - len(prompt)) + 1) for some in combinations(others, n)
        ]
        return found + max(best(at + 1, some | set(prompt)) for some in kept)

    return best(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(FEW, st.integers(3, 6))
def test_nothing_is_better(prompts: list[list[int]], size: int) -> None:
    refs = references(prompts)
    assert offline_best(refs, [size]) == [exhaustive(refs, size)]


@settings(max_examples=25)
@given(PROMPTS, st.integers(6, 30))
def test_the_oracle_reaches_it_page_by_page(prompts: list[list[int]], size: int) -> None:
    refs = references(prompts)
    assert replayed(refs, Setting("belady", size, whole_nodes=False)).hits == offline_best(refs, [size])[0]


def test_the_oracle_reaches_it_on_a_trace() -> None:
    refs = trace("conversation", 512, 800)
    for size in np.geomspace(refs.longest, refs.distinct, 4).astype(int).tolist():
        assert replayed(refs, Setting("belady", size, whole_nodes=False)).hits == offline_best(refs, [size])[0]


@settings(max_examples=15, deadline=None)
@given(PROMPTS, st.integers(6, 20), st.integers(0, 20))
def test_no_strategy_exceeds_it(prompts: list[list[int]], l1: int, l2: int) -> None:
    refs = references(prompts)
    alone, both = offline_best(refs, [l1, l1 + l2])
    for eviction in EVICTION:
        for write in ("write_through", "boundary"):
            found = replayed(refs, Setting(eviction, l1, l2, write))
            assert found.l1_hits <= alone
            assert found.hits <= both


@given(PROMPTS)
def test_larger_is_never_worse_and_lru_is_never_better(prompts: list[list[int]]) -> None:
    refs = references(prompts)
    sizes = list(range(refs.longest, refs.distinct + 3))
    best = offline_best(refs, sizes)
    assert best == sorted(best)
    assert (LruCurve.of(refs).hits(sizes) <= best).all()
    assert best[-1] == refs.total - refs.distinct


def test_a_prompt_larger_than_the_cache_keeps_what_it_finds() -> None:
    refs = references([[1], [1, 2, 3], [1]])
    assert offline_best(refs, [1, 2, 3]) == [2, 2, 2]


# Bandwidth


def brute_force(refs: References, links: Links, l1: int, l2: int) -> float:
    """The same sums, request by request."""
    requests = len(refs.starts) - 1
    used, using = (part.tolist() for part in refs.reuse)
    best, stretches = math.inf, 1
    while stretches <= requests:
        edges = sorted({requests * cut // stretches for cut in range(stretches + 1)})
        hits = 0.0
        for first, past in pairwise(edges):
            took_s = refs.arrival_s[past - 1] - refs.arrival_s[max(first - 1, 0)]
            here = [before >= first for before, now in zip(used, using, strict=True) if first <= now < past]
            reach = min(l1 + links.l2_pages_per_s * took_s, l1 + l2 + links.l3_pages_per_s * took_s)
            hits += sum(here) + min(len(here) - sum(here), reach)
        best, stretches = min(best, hits), 2 * stretches
    return best


@given(PROMPTS, st.integers(0, 4), st.integers(0, 4), st.floats(0, 3), st.floats(0, 3))
def test_bandwidth(prompts: list[list[int]], l1: int, l2: int, fast: float, slow: float) -> None:
    refs = references(prompts)
    links = Links(fast, slow)
    if len(prompts) < 2:
        assert bandwidth_bound(refs, links, l1, l2) == math.inf
    else:
        assert bandwidth_bound(refs, links, l1, l2) == pytest.approx(brute_force(refs, links, l1, l2))


@settings(max_examples=20, deadline=None)
@given(PROMPTS, st.integers(6, 12), st.integers(0, 12))
def test_links_without_limit_bind_nothing(prompts: list[list[int]], l1: int, l2: int) -> None:
    refs = references(prompts)
    assert bandwidth_bound(refs, Links(), l1, l2) >= refs.total - refs.distinct
    assert bandwidth_bound(refs, Links(math.inf, 0.0), l1, l2) >= replayed(refs, Setting("lru", l1, l2)).hits


def test_a_slow_link_binds() -> None:
    """Ten prompts of ten pages, each asked for twice, a second apart: with room for one, the link must carry them."""
    prompts = [[number] * 10 for number in range(10)] * 2
    refs = references(prompts)
    assert bandwidth_bound(refs, Links(2.0, math.inf), 10) == pytest.approx(10 + 2.0 * 10)
    assert bandwidth_bound(refs, Links(100.0, math.inf), 10) == 100


# Who reads the future says so (L8)


@pytest.mark.parametrize(("eviction", "write"), [("belady", "write_through"), ("lru", "write_what_is_read")])
def test_an_oracle_runs_only_where_it_is_allowed(eviction: str, write: str) -> None:
    future = Future(references([[1, 2]]))
    evict = NeededLast(future) if eviction == "belady" else EVICTION.make(eviction)
    copy = WriteWhatIsRead(future) if write == "write_what_is_read" else WRITE.make(write)
    shape, rules = CacheShape(16, 8, 8), rules_for("v0.5.7")
    with pytest.raises(ValueError, match="reads the future"):
        HiCache(shape, evict, copy, rules, AtomKeys())
    HiCache(shape, evict, copy, rules, AtomKeys(), oracle=True)


def test_no_registered_policy_is_an_oracle() -> None:
    assert not any(EVICTION.make(name).reads_future for name in EVICTION)
    assert not any(WRITE.make(name).reads_future for name in WRITE)


def test_writing_what_is_read_writes_less_and_reads_as_much() -> None:
    refs = trace("conversation", 512, 800)
    l1 = 2 * refs.longest
    through = replayed(refs, Setting("lru", l1, 4 * l1))
    knowing = replayed(refs, Setting("lru", l1, 4 * l1, "write_what_is_read"))
    assert knowing.written < 0.7 * through.written
    assert knowing.hits >= through.hits
