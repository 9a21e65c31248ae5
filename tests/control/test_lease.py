"""What a request holds: taken whole or not at all, and nothing is left of it."""

import pytest

from hicache_ref.control import lease
from hicache_ref.control.slots import SlotError
from hicache_ref.testing import Machine, Setup


def at_work(machine: Machine, symbols: list[int], pages: int | None = None) -> int:
    rid = machine.arrive(symbols)
    assert machine.admit(rid, pages)
    return rid


def state(machine: Machine):
    cache = machine.cache
    return cache.l1.free, cache.l2.free, cache.tree.evictable, cache.tree.protected


def test_a_lease_that_cannot_be_had_leaves_no_trace():
    machine = Machine(Setup(l1_pages=4))
    at_work(machine, [0, 0, 0])
    before = state(machine)
    rid = machine.arrive([1, 1])
    assert not machine.admit(rid)
    assert state(machine) == before
    machine.drain()


def test_an_attempt_in_vain_may_still_have_evicted():
    """Upstream evicts before it allocates, and so do we: that much is left of it."""
    machine = Machine(Setup(l1_pages=4, write="none"))
    machine.serve([2])
    at_work(machine, [0, 0, 0])
    rid = machine.arrive([1, 1])
    assert not machine.admit(rid)
    assert state(machine)[0] == 1


def test_commit_holds_what_it_gave_away():
    machine = Machine(Setup(l1_pages=4))
    rid = at_work(machine, [0, 0, 0])
    machine.prefill(rid)
    held = machine.session.leases[rid]
    assert (held.held, len(held.slots), held.node.lock > 0) == (3, 0, True)
    other = machine.arrive([1, 1])
    assert not machine.admit(other), "its pages cannot be evicted"
    machine.discard(rid)
    machine.settle()
    assert machine.admit(other)
    machine.drain()


def test_commit_says_how_much_was_there_before():
    machine = Machine(Setup())
    first, second = at_work(machine, [0, 0, 0]), at_work(machine, [0, 0, 1, 1])
    cache, leases = machine.cache, machine.session.leases
    machine.memory.l1[:] = 0
    assert lease.commit(cache, leases[first]) == 0
    assert lease.commit(cache, leases[second]) == 2
    assert lease.commit(cache, leases[second]) == 4


def test_slots_behind_the_key_stay_the_requests_own():
    """A partial page, or pages decoded ahead: given back when the lease ends, never given to the tree."""
    machine = Machine(Setup(l1_pages=8))
    rid = at_work(machine, [0, 0, 0, 0])
    held = machine.session.leases[rid]
    held.key = held.key[: 2 * 8]
    cache = machine.cache
    lease.commit(cache, held)
    assert (held.held, len(held.slots)) == (2, 2)
    lease.release(cache, machine.session.leases.pop(rid))
    assert cache.l1.free == 6
    assert cache.tree.peek(None, machine.key([0, 0, 0, 0])) == (2, 0)


def test_discard_gives_back_what_was_not_committed():
    machine = Machine(Setup(l1_pages=8))
    rid = at_work(machine, [0, 0, 1, 1], pages=2)
    machine.prefill(rid, chunked=True)
    machine.grow(rid, 2)
    machine.discard(rid)
    assert machine.cache.l1.free == 6
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1, 1])) == (2, 0)
    machine.drain()


def test_a_lease_ends_once():
    machine = Machine(Setup())
    rid = at_work(machine, [0, 0])
    held = machine.session.leases[rid]
    machine.discard(rid)
    with pytest.raises(SlotError):
        lease.discard(machine.cache, held)


def test_extend_is_all_or_nothing():
    machine = Machine(Setup(l1_pages=4))
    rid = at_work(machine, [0, 0])
    held = machine.session.leases[rid]
    assert machine.grow(rid, 2, [1, 1])
    assert not machine.grow(rid, 1, [1])
    assert (len(held.key) // 8, len(held.slots)) == (4, 4)
    machine.drain()


def test_a_lease_does_not_shrink_by_extending():
    machine = Machine(Setup())
    rid = at_work(machine, [0, 0, 0])
    with pytest.raises(SlotError, match="-1 slots"):
        machine.grow(rid, -1)


def test_a_prompt_of_less_than_a_page_holds_nothing():
    machine = Machine(Setup(page_tokens=4))
    before = state(machine)
    rid = at_work(machine, [])
    machine.prefill(rid)
    machine.finish(rid)
    assert state(machine) == before
    machine.drain()


def test_a_refused_load_holds_the_device_part_only():
    machine = Machine(Setup(l1_pages=4, l2_pages=16, load_back_threshold_tokens=9))
    machine.serve([0, 0])
    machine.settle()
    machine.serve([1] * 4)
    machine.settle()
    rid = at_work(machine, [0, 0, 2])
    held = machine.session.leases[rid]
    assert held.node is machine.cache.tree.root
    assert (held.held, len(held.slots)) == (0, 3)
    machine.drain()
