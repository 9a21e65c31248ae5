"""Stack distances against the definition, and the proof in `stack` against replays of the real control plane."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.testing import fuzz
from hicache_sim.curve.lru import LruCurve
from hicache_sim.curve.references import References, gather
from hicache_sim.curve.replays import Setting, replayed
from hicache_sim.curve.stack import distances, later_before
from workloads import open_workload

from .prompts import PROMPTS, references

PURE = (("split_refreshes_lower", False),)


@given(st.permutations(range(40)).map(lambda values: values[:33]))
def test_later_values_before_each(values: list[int]) -> None:
    ranks = np.argsort(np.argsort(values)).astype(np.int64)
    expected = [sum(earlier > value for earlier in values[:at]) for at, value in enumerate(values)]
    assert later_before(ranks).tolist() == expected


def test_later_before_nothing() -> None:
    assert later_before(np.empty(0, np.int64)).tolist() == []


def flat_hits(refs: References, size: int) -> int:
    """LRU over single pages, as a cache without a tree has it."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for page in refs.page.tolist():
        hits += page in held
        held[page] = None
        held.move_to_end(page)
        if len(held) > size:
            held.popitem(last=False)
    return hits


def tree_hits(refs: References, size: int) -> int:
    """Leaf-first LRU over pages: prompts are looked up whole, and of the leaves the one used longest ago goes."""
    pages, starts = refs.page.tolist(), refs.starts.tolist()
    used: dict[int, int] = {}
    parent: dict[int, int | None] = {}
    hits = 0
    for now, (first, past) in enumerate(itertools.pairwise(starts)):
        prompt = pages[first:past]
        found = 0
        while found < len(prompt) and prompt[found] in used:
            found += 1
        assert not any(page in used for page in prompt[found:]), "what is held is closed under prefixes"
        hits += found
        for depth, page in enumerate(prompt):
            used[page], parent[page] = now, prompt[depth - 1] if depth else None
        while len(used) > size:
            inner = {parent[page] for page in used}
            del used[min((page for page in used if page not in inner), key=used.__getitem__)]
    return hits


@given(PROMPTS)
def test_distances_are_those_of_their_definition(prompts: list[list[int]]) -> None:
    refs = references(prompts)
    tree, flat = LruCurve.of(refs), LruCurve.of(refs, leaf_first=False)
    for size in range(refs.longest, refs.distinct + 2):
        assert tree.hits(size) == tree_hits(refs, size)
    for size in range(1, refs.distinct + 2):
        assert flat.hits(size) == flat_hits(refs, size)


@given(PROMPTS)
def test_a_page_is_never_further_than_the_pages_behind_it(prompts: list[list[int]]) -> None:
    """So what LRU of any size holds is closed under prefixes, and hits of a prompt are its first pages."""
    refs = references(prompts)
    found = np.where(distances(refs) > 0, distances(refs), np.iinfo(np.int64).max)
    inside = refs.request[1:] == refs.request[:-1]
    assert (found[1:] >= found[:-1])[inside].all()


def trace(name: str, page: int, limit: int) -> References:
    requests = (request for _, request in zip(range(limit), open_workload(name).requests(None), strict=False))
    return gather(requests, page)


EIGHT = 8


@pytest.mark.parametrize(
    ("name", "page", "limit"), [("conversation", 512, 800), ("agents", 64, 200), ("speed", 512, 600)]
)
def test_curve_and_replay_agree_at_eight_sizes(name: str, page: int, limit: int) -> None:
    """To the page where pages are evicted one by one; within a node of it where nodes are."""
    refs = trace(name, page, limit)
    curve = LruCurve.of(refs)
    sizes = np.geomspace(refs.longest, refs.distinct, EIGHT).astype(int).tolist()
    for size in sizes:
        by_page = replayed(refs, Setting("lru", size, whole_nodes=False, rules=PURE))
        by_node = replayed(refs, Setting("lru", size, rules=PURE))
        assert by_page.hits == curve.hits(size)
        assert curve.hits(size - refs.longest + 1) <= by_node.hits <= curve.hits(size)
        assert replayed(refs, Setting("lru", size)).hits == pytest.approx(curve.hits(size), abs=0.08 * refs.total)


def test_both_levels_agree_with_a_replay() -> None:
    """Inclusive: write_through holds in both levels what the larger one holds. Exclusive: nearly the sum."""
    refs = trace("conversation", 512, 600)
    curve = LruCurve.of(refs)
    for l1 in np.geomspace(2 * refs.longest, refs.distinct / 3, 3).astype(int).tolist():
        through = replayed(refs, Setting("lru", l1, 2 * l1, profile="v0.5.23", whole_nodes=False, rules=PURE))
        assert through.hits == curve.hits(2 * l1)
        assert through.l1_hits == curve.hits(l1)
        assert curve.inclusive(l1, 2 * l1) == curve.rates(2 * l1) and curve.exclusive(l1, 2 * l1) == curve.rates(3 * l1)
        boundary = replayed(refs, Setting("lru", l1, 2 * l1, "boundary", "v0.5.23", whole_nodes=False, rules=PURE))
        assert through.hits <= boundary.hits <= curve.hits(3 * l1)


@settings(max_examples=25)
@given(PROMPTS, st.integers(6, 30))
def test_any_small_replay_agrees(prompts: list[list[int]], size: int) -> None:
    refs = references(prompts)
    by_page = replayed(refs, Setting("lru", size, whole_nodes=False, rules=PURE))
    assert by_page.hits == LruCurve.of(refs).hits(size)


def test_the_rule_keeps_the_laws() -> None:
    for seed in range(12):
        fuzz(seed, changes=dict(PURE))


def test_namespaces_do_not_share_pages() -> None:
    from dataclasses import replace

    from .prompts import workload

    one, two, three = workload([[1, 2], [1, 2], [1, 2]])
    refs = gather([one, replace(two, extra_key="lora"), three], 16)
    assert refs.distinct == 4
    assert LruCurve.of(refs).hits(100) == 2


def test_prompts_of_less_than_a_page_are_left_out() -> None:
    refs = references([[1], [1]])
    assert (len(refs), refs.total) == (2, 2)
    from .prompts import workload

    assert len(gather(workload([[1], [1]]), 17)) == 0
