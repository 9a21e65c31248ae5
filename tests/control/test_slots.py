"""Slots of one level: handed out whole or not at all, owned by exactly one."""

import numpy as np
import pytest

from hicache_ref.control.slots import Owner, SlotError, SlotPool


def test_alloc_gives_all_or_nothing():
    pool = SlotPool("L1", 4)
    assert len(pool.alloc(3, Owner.TREE)) == 3
    assert pool.alloc(2, Owner.TREE) is None
    assert pool.free == 1
    assert len(pool.alloc(1, Owner.TREE)) == 1
    assert pool.free == 0
    assert len(pool.alloc(0, Owner.TREE)) == 0


def test_every_slot_is_given_once():
    pool = SlotPool("L1", 5)
    given = np.concatenate([pool.alloc(2, Owner.TREE), pool.alloc(3, Owner.REQUEST)])
    assert sorted(given) == [0, 1, 2, 3, 4]


def test_same_calls_give_same_slots():
    """Ranks must not part: which slot is next depends on the calls alone."""

    def life():
        pool = SlotPool("L1", 8)
        a, b = pool.alloc(3, Owner.TREE), pool.alloc(4, Owner.TREE)
        pool.give_back(a[1:], Owner.TREE)
        pool.give_back(b[::2], Owner.TREE)
        return pool.alloc(4, Owner.REQUEST).tolist()

    assert life() == life()


def test_slots_given_out_do_not_change_afterwards():
    """What an operation was told to copy stays what it was told, whatever the pool does meanwhile."""
    pool = SlotPool("L1", 4)
    held = pool.alloc(2, Owner.TREE)
    before = held.tolist()
    pool.give_back(pool.alloc(2, Owner.TREE), Owner.TREE)
    pool.give_back(held, Owner.TREE)
    pool.alloc(4, Owner.REQUEST)
    assert held.tolist() == before


def test_double_free_raises():
    pool = SlotPool("L2", 4)
    slots = pool.alloc(2, Owner.TREE)
    pool.give_back(slots, Owner.TREE)
    with pytest.raises(SlotError, match="L2: slots of FREE treated as TREE's"):
        pool.give_back(slots, Owner.TREE)
    assert pool.free == 4
    assert pool.duplicates_free()


def test_foreign_free_raises_and_changes_nothing():
    pool = SlotPool("L1", 4)
    slots = pool.alloc(2, Owner.REQUEST)
    with pytest.raises(SlotError, match="REQUEST"):
        pool.give_back(slots, Owner.TREE)
    assert pool.owned()[Owner.REQUEST] == 2
    pool.give_back(slots, Owner.REQUEST)


def test_handing_over_needs_the_owner_of_all():
    pool = SlotPool("L1", 4)
    mine, others = pool.alloc(1, Owner.REQUEST), pool.alloc(1, Owner.TREE)
    with pytest.raises(SlotError):
        pool.hand_over(np.concatenate([mine, others]), Owner.REQUEST, Owner.TREE)
    pool.hand_over(mine, Owner.REQUEST, Owner.TREE)
    assert pool.owned() == {Owner.FREE: 2, Owner.TREE: 2, Owner.REQUEST: 0, Owner.TRANSIT: 0}


def test_a_slot_named_twice_in_one_call_is_seen_by_the_laws():
    pool = SlotPool("L1", 4)
    slots = pool.alloc(3, Owner.TREE)
    pool.give_back(slots[[0, 0]], Owner.TREE)
    assert not pool.duplicates_free()


def test_more_slots_than_there_are_cannot_come_back():
    pool = SlotPool("L1", 2)
    slots = pool.alloc(1, Owner.TREE)
    with pytest.raises(SlotError, match="twice in one call"):
        pool.give_back(slots[[0, 0]], Owner.TREE)


def test_negative_amounts_are_refused():
    """Else the pool would hand out slots that others own."""
    pool = SlotPool("L1", 4)
    pool.alloc(2, Owner.TREE)
    with pytest.raises(SlotError, match="-1 slots"):
        pool.alloc(-1, Owner.REQUEST)
    assert pool.free == 2
