"""The heap of leaves against the obvious: look at all of them, take the smallest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.control.evictable import EvictableLeaves
from hicache_ref.testing import Machine, Setup
from hicache_ref.testing.odd import BackedUpFirst, SmallestFirst, UnbackedFirst


class Leaf:
    """As much of a node as the heap sees."""

    def __init__(self, node_id: int, rank: int) -> None:
        self.id = node_id
        self.rank = rank
        self.is_leaf = True


changes = st.lists(
    st.tuples(st.sampled_from(["add", "change", "hide", "show", "pop"]), st.integers(0, 9), st.integers(-9, 9)),
    max_size=300,
)


@pytest.mark.parametrize("rises_only", [True, False])
@given(changes=changes)
def test_pops_the_smallest_leaf(rises_only, changes):
    """Whatever becomes a leaf, ceases to be one, and is touched: a rank that may fall is offered again when it does."""
    leaves = EvictableLeaves(lambda leaf: leaf.rank, rises_only, lambda leaf: leaf.is_leaf)
    known: list[Leaf] = []
    for what, which, value in changes:
        leaf = known[which % len(known)] if known else None
        if what == "add":
            known.append(Leaf(len(known), value))
            leaves.offer(known[-1])
        elif what == "pop":
            free = [leaf for leaf in known if leaf.is_leaf]
            popped = leaves.pop()
            assert (popped is None) == (not free)
            if popped is not None:
                assert popped.is_leaf
                assert popped.rank == min(leaf.rank for leaf in free)
                popped.is_leaf = False
        elif leaf is not None and what == "change":
            leaf.rank += abs(value) if rises_only else value
            if not rises_only and leaf.is_leaf:
                leaves.offer(leaf)
        elif leaf is not None and what == "hide":
            leaf.is_leaf = False
        elif leaf is not None and not leaf.is_leaf:
            leaf.is_leaf = True
            leaves.offer(leaf)


@given(changes=st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), max_size=100))
def test_no_leaf_is_lost_however_ranks_change(changes):
    """A change nobody was told of may cost order, never a leaf: it could not be evicted any more."""
    leaves = EvictableLeaves(lambda leaf: leaf.rank, False, lambda leaf: leaf.is_leaf)
    known = [Leaf(at, 0) for at in range(6)]
    for leaf in known:
        leaves.offer(leaf)
    for which, value in changes:
        known[which].rank += value
    popped = []
    while (leaf := leaves.pop()) is not None:
        leaf.is_leaf = False
        popped.append(leaf.id)
    assert sorted(popped) == [0, 1, 2, 3, 4, 5]


def test_ties_go_to_the_node_offered_first():
    leaves = EvictableLeaves(lambda leaf: leaf.rank, True, lambda leaf: True)
    for at in (3, 1, 2):
        leaves.offer(Leaf(at, 0))
    assert [leaves.pop().id for _ in range(3)] == [3, 1, 2]


@pytest.mark.parametrize("rises_only", [True, False])
def test_heap_is_bounded_by_the_leaves(rises_only):
    """Entries of nodes that are leaves no more, and of ranks that are theirs no more, do not pile up."""
    leaves = EvictableLeaves(lambda leaf: leaf.rank, rises_only, lambda leaf: leaf.is_leaf)
    few = [Leaf(at, at) for at in range(3)]
    for at in range(1000):
        few[at % 3].rank += 1
        leaves.offer(few[at % 3])
        gone = Leaf(10 + at, -1)
        leaves.offer(gone)
        gone.is_leaf = False
    assert len(leaves.entries()) < 200
    assert leaves.known() >= {0, 1, 2}


# Under a cache: who tells the heap of changes


def test_the_half_of_a_split_that_is_left_over_was_touched_too():
    """mru: a prompt that ends inside a node makes both halves the most recent. The lower one is off the path."""
    machine = Machine(Setup(eviction="mru", write="none", l1_pages=8))
    machine.serve([0, 0, 0])
    machine.serve([1, 1, 1])
    machine.serve([0, 2])  # splits [0, 0, 0]; [0, 0] below it was touched after [1, 1, 1]
    machine.serve([3, 3, 3])  # two pages are missing: [2], the most recent, and then [0, 0]
    assert [node.pages for node in machine.cache.tree.nodes()] == [1, 3, 3]
    machine.drain()


def test_what_a_prefetch_finds_in_the_tree_was_touched_too():
    """mru: pages that arrive a second time make their nodes the most recent, and next to go."""
    machine = Machine(Setup(eviction="mru", prefetch="best_effort", l1_pages=4, l2_pages=8))
    machine.store_has([0, 0])
    first, second = machine.arrive([0, 0]), machine.arrive([0, 0])
    machine.pump()
    for _ in range(2):
        for op_id in machine.in_flight():
            machine.complete(op_id)
        machine.pump()
    machine.poll(first)
    machine.store_has([1, 1])
    other = machine.arrive([1, 1])
    machine.pump()
    for _ in range(2):
        for op_id in machine.in_flight():
            machine.complete(op_id)
        machine.pump()
    machine.poll(other)
    machine.poll(second)  # [0, 0] again: duplicates, freed
    machine.tick()
    assert machine.cache.evict_host(1) == 2
    assert [node.key[0] for node in machine.cache.tree.nodes()] == [1]
    machine.drain()


@pytest.mark.parametrize("policy", [SmallestFirst(), BackedUpFirst(), UnbackedFirst()])
def test_ranks_may_depend_on_size_and_residency(policy):
    """Splits, host copies that come and go: each may let such a rank fall. The machine compares every eviction."""
    machine = Machine(Setup(profile="v0.5.23", eviction=policy, write="write_back", l1_pages=6, l2_pages=6))
    for prompt in ([0] * 6, [1, 1], [0, 0, 2], [1, 1, 1], [0] * 6, [2] * 6, [0, 0, 0], [1], [3] * 5, [0] * 4) * 3:
        machine.serve(prompt)
        machine.settle()
    machine.drain()
