"""Slots of one level: handed out whole or not at all, owned by exactly one."""

import pytest

from hicache_ref.control.slots import Owner, SlotError, SlotPool


def test_alloc_gives_all_or_nothing():
    pool = SlotPool("L1", 4)
    assert pool.alloc(3, Owner.TREE).pages == 3
    assert pool.alloc(2, Owner.TREE) is None
    assert pool.free == 1
    assert pool.alloc(1, Owner.TREE).pages == 1
    assert pool.free == 0
    assert pool.alloc(0, Owner.TREE).pages == 0


def test_every_slot_is_given_once():
    pool = SlotPool("L1", 5)
    given = [*pool.alloc(2, Owner.TREE).indices, *pool.alloc(3, Owner.REQUEST).indices]
    assert sorted(given) == [0, 1, 2, 3, 4]


def test_same_calls_give_same_slots():
    """Ranks must not part: which slot is next depends on the calls alone."""

    def life():
        pool = SlotPool("L1", 8)
        a, b = pool.alloc(3, Owner.TREE), pool.alloc(4, Owner.TREE)
        a.cut(1)
        pool.give_back(a, Owner.TREE)
        pool.give_back(b.cut(2), Owner.TREE)
        return pool.alloc(4, Owner.REQUEST).indices.tolist()

    assert life() == life()


def test_slots_given_out_do_not_change_afterwards():
    """What an operation was told to copy stays what it was told, whatever the pool does meanwhile."""
    pool = SlotPool("L1", 4)
    held = pool.alloc(2, Owner.TREE)
    told, before = held.indices, held.indices.tolist()
    pool.give_back(pool.alloc(2, Owner.TREE), Owner.TREE)
    pool.give_back(held.cut(1), Owner.TREE)
    pool.give_back(held, Owner.TREE)
    pool.alloc(4, Owner.REQUEST)
    assert told.tolist() == before


def test_a_cut_takes_the_first_slots_out():
    pool = SlotPool("L1", 5)
    rest = pool.alloc(5, Owner.TREE)
    whole = rest.indices.tolist()
    first = rest.cut(2)
    assert (first.indices.tolist(), rest.indices.tolist()) == (whole[:2], whole[2:])
    assert (first.pages, rest.pages, first.owner) == (2, 3, Owner.TREE)


@pytest.mark.parametrize("pages", [-1, 3])
def test_no_more_is_cut_than_there_is(pages):
    with pytest.raises(SlotError, match=f"{pages} slots wanted of 2"):
        SlotPool("L1", 5).alloc(2, Owner.TREE).cut(pages)


def test_what_is_absorbed_is_somewhere_else():
    pool = SlotPool("L1", 5)
    one, other = pool.alloc(2, Owner.REQUEST), pool.alloc(3, Owner.REQUEST)
    both = [*one.indices, *other.indices]
    one.absorb(other)
    assert (one.indices.tolist(), one.pages, other.pages) == (both, 5, 0)
    for extent in (one, other):
        pool.give_back(extent, Owner.REQUEST)
    assert sorted(pool.free_slots()) == [0, 1, 2, 3, 4]


def test_only_slots_of_one_owner_are_put_together():
    pool = SlotPool("L1", 5)
    with pytest.raises(SlotError, match="slots of TREE behind REQUEST's"):
        pool.alloc(2, Owner.REQUEST).absorb(pool.alloc(2, Owner.TREE))


def test_what_is_cut_off_whole_leaves_nothing():
    extent = SlotPool("L1", 5).alloc(2, Owner.TREE)
    first = extent.cut(2)
    assert (first.pages, extent.pages, len(extent.indices)) == (2, 0, 0)


def test_double_free_raises():
    pool = SlotPool("L2", 4)
    slots = pool.alloc(2, Owner.TREE)
    pool.give_back(slots, Owner.TREE)
    with pytest.raises(SlotError, match="L2: slots of FREE treated as TREE's"):
        pool.give_back(slots, Owner.TREE)
    assert pool.free == 4
    assert sorted(pool.free_slots()) == [0, 1, 2, 3]


def test_foreign_free_raises_and_changes_nothing():
    pool = SlotPool("L1", 4)
    slots = pool.alloc(2, Owner.REQUEST)
    with pytest.raises(SlotError, match="REQUEST"):
        pool.give_back(slots, Owner.TREE)
    assert pool.owned()[Owner.REQUEST] == 2
    pool.give_back(slots, Owner.REQUEST)


def test_handing_over_needs_the_owner():
    pool = SlotPool("L1", 4)
    mine, others = pool.alloc(1, Owner.REQUEST), pool.alloc(1, Owner.TREE)
    with pytest.raises(SlotError):
        pool.hand_over(others, Owner.REQUEST, Owner.TREE)
    pool.hand_over(mine, Owner.REQUEST, Owner.TREE)
    assert pool.owned() == {Owner.FREE: 2, Owner.TREE: 2, Owner.REQUEST: 0, Owner.TRANSIT: 0}


def test_negative_amounts_are_refused():
    """Else the pool would hand out slots that others own."""
    pool = SlotPool("L1", 4)
    pool.alloc(2, Owner.TREE)
    with pytest.raises(SlotError, match="-1 slots"):
        pool.alloc(-1, Owner.REQUEST)
    assert pool.free == 2
