"""The radix tree: structure, residency and the sums, node by node."""

from array import array

import pytest

from hicache_ref.control.slots import Extent, Owner
from hicache_ref.control.tree import HostLock, Match, RadixTree


def key(*atoms: int) -> bytes:
    return array("q", atoms).tobytes()


def slots(*indices: int):
    return Extent(array("q", indices), len(indices), Owner.TREE)


def found(match: Match) -> tuple:
    return match.device_pages, match.host_pages, match.device_node, match.host_node, match.node


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree()


@pytest.fixture
def chain(tree):
    """1 2 on both levels, 3 4 5 below it on the host only."""
    upper = tree.add(tree.root, None, key(1, 2), 0)
    tree.put_on_device(upper, slots(10, 11))
    upper.host = slots(20, 21)
    lower = tree.add(upper, None, key(3, 4, 5), 0)
    lower.host = slots(22, 23, 24)
    lower.names = ["c", "d", "e"]
    return upper, lower


@pytest.mark.usefixtures("chain")
def test_walk_and_peek_agree(tree):
    prompts = [key(), key(9), key(1, 2), key(1, 2, 3, 4, 5), key(1, 2, 3, 4, 5, 6), key(1), key(1, 2, 3), key(1, 2, 9)]
    for prompt in prompts:
        looked = tree.peek(None, prompt)
        match = tree.walk(None, prompt)
        assert looked == (match.device_pages, match.host_pages)


@pytest.mark.usefixtures("chain")
def test_a_peek_changes_nothing(tree):
    before = [(node.id, node.last_access, node.pages) for node in tree.nodes()]
    assert tree.peek(None, key(1, 2, 3)) == (2, 1)
    assert [(node.id, node.last_access, node.pages) for node in tree.nodes()] == before


def test_walk_finds_the_last_node_of_each_level(tree, chain):
    upper, lower = chain
    match = tree.walk(None, key(1, 2, 3, 4, 5, 6))
    assert found(match) == (2, 3, upper, lower, lower)
    assert upper.last_access < lower.last_access


def test_walk_of_nothing_ends_at_the_root(tree):
    assert found(tree.walk(None, key(1))) == (0, 0, tree.root, tree.root, tree.root)
    assert found(tree.walk(None, b"")) == (0, 0, tree.root, tree.root, tree.root)


def test_host_node_is_the_last_with_a_host_copy(tree, chain):
    upper, _ = chain
    deep = tree.add(upper, None, key(7), 0)
    tree.put_on_device(deep, slots(12))
    match = tree.walk(None, key(1, 2, 7))
    assert (match.device_node, match.host_node, match.node) == (deep, upper, deep)


def test_namespaces_do_not_mix(tree, chain):
    assert tree.walk("a", key(1, 2)).device_pages == 0
    other = tree.add(tree.root, "a", key(1, 2), 0)
    tree.put_on_device(other, slots(12, 13))
    assert tree.walk("a", key(1, 2)).device_node is other
    assert tree.walk(None, key(1, 2)).device_node is chain[0]
    assert tree.walk("b", key(1, 2)).device_pages == 0


def test_a_walk_that_ends_inside_a_node_splits_it(tree, chain):
    upper, lower = chain
    match = tree.walk(None, key(1, 2, 3, 9))
    middle = match.node
    assert (match.device_pages, match.host_pages) == (2, 1)
    assert (middle.parent, lower.parent) == (upper, middle)
    assert (middle.key, lower.key) == (key(3), key(4, 5))
    assert (middle.host.indices.tolist(), lower.host.indices.tolist()) == ([22], [23, 24])
    assert (middle.names, lower.names) == (["c"], ["d", "e"])
    assert tree.walk(None, key(1, 2, 3, 4, 5)).node is lower


def test_split_keeps_what_both_halves_share(tree, chain):
    upper, lower = chain
    lower.hits, lower.priority = 3, 5
    tree.put_on_device(lower, slots(12, 13, 14))
    tree.lock(lower)
    hold = HostLock(lower)
    middle = tree.split(lower, 1)
    assert (middle.hits, middle.priority, middle.lock) == (3, 5, 1)
    assert (middle.device.indices.tolist(), lower.device.indices.tolist()) == ([12], [13, 14])
    assert (upper.device_children, middle.device_children, lower.device_children) == (1, 1, 0)
    assert hold.nodes == [lower, middle]
    assert hold.release() == [lower, middle]
    assert middle.host_locks == lower.host_locks == ()


def test_releasing_a_hold_in_two_halves_leaves_other_holds(tree, chain):
    _, lower = chain
    first, second = HostLock(lower), HostLock(lower)
    middle = tree.split(lower, 1)
    first.release()
    assert middle.host_locks == lower.host_locks == (second,)


@pytest.mark.parametrize("keeps", [False, True])
def test_creation_of_the_upper_half_is_a_rule(keeps):
    tree = RadixTree(split_keeps_creation=keeps)
    node = tree.add(tree.root, None, key(1, 2), 0)
    node.host = slots(0, 1)
    upper = tree.split(node, 1)
    assert (upper.created == node.created) is keeps


def test_split_is_told_of(tree):
    told = []
    tree = RadixTree(on_split=lambda upper, lower: told.append((upper, lower)))
    node = tree.add(tree.root, None, key(1, 2, 3), 0)
    node.host = slots(0, 1, 2)
    upper = tree.split(node, 2)
    assert told == [(upper, node)]


def test_locks_move_pages_between_the_sums(tree, chain):
    upper, lower = chain
    assert (tree.evictable, tree.protected) == (2, 0)
    assert tree.lock(lower) == 2  # the host part is held too, but is in neither sum
    assert (tree.evictable, tree.protected) == (0, 2)
    assert tree.lock(upper) == 0
    assert tree.unlock(lower) == 0
    assert (tree.evictable, tree.protected) == (0, 2)
    assert tree.unlock(upper) == 2
    assert (tree.evictable, tree.protected) == (2, 0)


def test_pages_put_on_a_locked_node_are_protected(tree, chain):
    upper, lower = chain
    tree.lock(lower)
    tree.put_on_device(lower, slots(12, 13, 14))
    assert (tree.evictable, tree.protected, upper.device_children) == (0, 5, 1)
    tree.unlock(lower)
    assert tree.take_off_device(lower).indices.tolist() == [12, 13, 14]
    assert (tree.evictable, tree.protected, upper.device_children) == (2, 0, 0)


def test_unlocking_more_than_was_locked_raises(tree, chain):
    with pytest.raises(AssertionError, match="unlocked more often"):
        tree.unlock(chain[0])


def test_leaves_of_each_level(tree, chain):
    upper, lower = chain
    assert upper.is_device_leaf()
    assert not upper.is_host_leaf()
    assert lower.is_host_leaf()
    assert not lower.is_device_leaf()
    for leaf, hold, let_go in (
        (upper.is_device_leaf, lambda: tree.lock(upper), lambda: tree.unlock(upper)),
        (lower.is_host_leaf, lambda: tree.lock(lower), lambda: tree.unlock(lower)),
    ):
        hold()
        assert not leaf()
        let_go()
        assert leaf()
    held = HostLock(lower)
    assert not lower.is_host_leaf()
    held.release()
    lower.write = object()
    assert not lower.is_host_leaf(), "a copy that is under way is no copy yet"


def test_the_root_is_resident_everywhere_and_never_a_leaf(tree):
    assert not tree.root.is_device_leaf()
    assert not tree.root.is_host_leaf()
    assert list(tree.nodes()) == []


def test_nodes_come_depth_first_in_order_of_insertion(tree):
    a = tree.add(tree.root, None, key(1), 0)
    b = tree.add(tree.root, None, key(2), 0)
    below = tree.add(a, None, key(3), 0)
    assert list(tree.nodes()) == [a, below, b]
    tree.remove(below)
    tree.remove(a)
    assert list(tree.nodes()) == [b]
