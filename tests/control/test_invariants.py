"""Each law can be broken, and is missed when it is: a check that never fails proves nothing."""

from array import array

import pytest

from hicache_ref.control import invariants
from hicache_ref.control.cache import HiCache
from hicache_ref.control.invariants import LawBroken
from hicache_ref.control.slots import Owner
from hicache_ref.control.tree import HostLock
from hicache_ref.testing import Setup


def key(*atoms: int) -> bytes:
    return array("q", atoms).tobytes()


@pytest.fixture
def cache() -> HiCache:
    """1 2 on both levels, 3 below it on the device only, 4 below that on the host only."""
    cache = Setup(
        profile="v0.5.23", write="write_back", prefetch="wait_complete", l1_pages=8, l2_pages=8, keyspace="atoms"
    ).cache()
    cache.insert(None, key(1, 2), 0, cache.l1.alloc(2, Owner.REQUEST))
    cache.insert(None, key(1, 2, 3), 2, cache.l1.alloc(1, Owner.REQUEST))
    upper, middle = cache.tree.nodes()
    cache.tree.put_on_host(upper, cache.l2.alloc(2, Owner.TREE))
    cache._enlist_duplicate(upper)
    lower = cache.tree.add(middle, None, key(4), 0)
    cache.tree.put_on_host(lower, cache.l2.alloc(1, Owner.TREE))
    lower.names = [4]
    cache.host_leaves.offer(lower)
    invariants.check_at_rest(cache)
    return cache


def nodes(cache):
    """Root side first."""
    return list(cache.tree.nodes())


def lose_a_slot(cache):
    cache.l2.alloc(1, Owner.TREE)


def own_a_slot_twice(cache):
    upper, middle, _ = nodes(cache)
    middle.device.indices = upper.device.indices[:1]


def list_a_free_slot_twice(cache):
    cache.l2._stack[0] = cache.l2._stack[1]


def keep_slots_in_transit(cache):
    cache.l2.alloc(1, Owner.TRANSIT)


def own_a_slot_that_is_free(cache):
    middle = nodes(cache)[1]
    middle.device.indices = cache.l1.free_slots()[:1]


def have_slots_of_a_request(cache):
    nodes(cache)[1].device.owner = Owner.REQUEST


def be_on_the_device_below_one_that_is_not(cache):
    cache.l1.give_back(cache.tree.take_off_device(nodes(cache)[0]), Owner.TREE)


def be_nowhere(cache):
    _, _, lower = nodes(cache)
    cache.l2.give_back(lower.host, Owner.TREE)
    lower.host = None


def lose_the_target_of_a_write(cache):
    nodes(cache)[1].write = object()  # and has no host slots


def lose_the_target_of_a_load(cache):
    nodes(cache)[2].load = object()  # and has no device slots


def be_locked_below_one_that_is_not(cache):
    cache.tree.lock(nodes(cache)[0])
    nodes(cache)[2].lock = 1


def move_the_sums(cache):
    cache.tree.evictable -= 1
    cache.tree.protected += 1


def forget_leaves(leaves):
    leaves._line.clear()
    leaves._heap.clear()


def forget_a_leaf_of_l1(cache):
    forget_leaves(cache.device_leaves)


def forget_a_leaf_of_l2(cache):
    forget_leaves(cache.host_leaves)


def forget_a_duplicate(cache):
    cache._duplicates.clear()


def miscount_children(cache):
    nodes(cache)[1].device_children = 1


def hang_under_a_wrong_name(cache):
    _, middle, lower = nodes(cache)
    middle.children = {b"another": lower}


def have_names_for_other_pages(cache):
    nodes(cache)[2].names = ["2", "3"]


def have_slots_for_other_pages(cache):
    upper, middle, _ = nodes(cache)
    upper.device, middle.device = middle.device, upper.device


def hold_without_being_known(cache):
    HostLock(nodes(cache)[2])


def hold_without_knowing(cache):
    hold = HostLock(nodes(cache)[2])
    hold.nodes.clear()


def leave_and_be_held_by_nobody(cache):
    lower = nodes(cache)[2]
    cache.tree.remove(lower)
    cache.l2.hand_over(lower.host, Owner.TREE, Owner.TRANSIT)
    cache.ledger.detached[lower.id] = lower


def expect_a_completion_for_nothing(cache):
    cache.ledger.open[99] = lambda event: None


def wait_for_a_completion_nobody_expects(cache):
    prefetch(cache)
    cache.ledger.open.clear()


def prefetch(cache):
    cache.storage.prefetch(0, cache.match(None, key(9)), None, key(9), 0.0)


@pytest.mark.parametrize(
    ("crime", "law"),
    [
        (lose_a_slot, "L1: L2 has . tree slots"),
        (own_a_slot_twice, "L1: a slot of L1 belongs to two nodes"),
        (list_a_free_slot_twice, "L1: L2 lists a free slot twice"),
        (own_a_slot_that_is_free, "L1: a slot of L1 is free, and belongs to a node"),
        (have_slots_of_a_request, "L1: a node has slots of L1 that are REQUEST's"),
        (keep_slots_in_transit, "L1: 1 L2 slots in transit, not 0"),
        (be_on_the_device_below_one_that_is_not, "L2: node . is on the device below"),
        (be_nowhere, "L2: node . is nowhere"),
        (lose_the_target_of_a_write, "L3: node . lost the target of its write"),
        (lose_the_target_of_a_load, "L3: node . lost the target of its load"),
        (be_locked_below_one_that_is_not, "L3: node . is locked below"),
        (move_the_sums, "L11"),
        (forget_a_leaf_of_l1, "L5: leaf . of L1"),
        (forget_a_leaf_of_l2, "L5: leaf . of L2"),
        (forget_a_duplicate, "L5: duplicate"),
        (miscount_children, "miscounts its children"),
        (hang_under_a_wrong_name, "hangs under a wrong name"),
        (have_names_for_other_pages, "has not a name for each page"),
        (have_slots_for_other_pages, "an extent has not its length"),
        (hold_without_being_known, "L4: node . is held by nobody"),
        (leave_and_be_held_by_nobody, "L4: node . has left the tree, and is held by nobody"),
        (hold_without_knowing, "L3: node . has a host lock that does not know it"),
        (expect_a_completion_for_nothing, r"L4: operations \{99\} are in no table"),
        (wait_for_a_completion_nobody_expects, "L4: an operation waits for a completion nobody expects"),
    ],
)
def test_law_is_missed_when_broken(cache, crime, law):
    crime(cache)
    with pytest.raises(LawBroken, match=law):
        invariants.check(cache)


def keep_a_lock(cache):
    cache.tree.lock(nodes(cache)[0])


def keep_request_slots(cache):
    cache.l1.alloc(1, Owner.REQUEST)


@pytest.mark.parametrize(
    ("crime", "law"),
    [
        (keep_a_lock, "L4: node . is held at rest"),
        (prefetch, "L4: tables are not empty at rest"),
        (keep_request_slots, "L4: L1 slots belong to requests at rest"),
    ],
)
def test_rest_is_not_rest(cache, crime, law):
    """What is lawful while something runs, and not when nothing does."""
    crime(cache)
    invariants.check(cache)
    with pytest.raises(LawBroken, match=law):
        invariants.check_at_rest(cache)
