"""Decisions on L1 and L2, one by one: what the golden files do not hold, because upstream dies there or never fails."""

import pytest

from hicache_ref.control.cache import ProtocolError
from hicache_ref.control.counters import Drop
from hicache_ref.control.invariants import LawBroken
from hicache_ref.control.slots import Owner, SlotError
from hicache_ref.control.types import Completion, OpKind, Progress
from hicache_ref.testing import Machine, Setup
from hicache_ref.testing.plane import ManualPlane


def node_of(machine: Machine, *symbols: int, namespace: str | None = None):
    """The last node of a prompt that is in the tree as far as it goes."""
    return machine.cache.tree.walk(namespace, machine.key(symbols)).node


def end_copies(machine: Machine, *good: int | None):
    """The next copies that evictions wait for end with so many good pages, the n-th with the n-th."""
    left = list(good)

    def serve(op_ids):
        for op_id in op_ids:
            machine.session.on(machine.plane.complete(op_id, left.pop(0) if left else None))

    machine.on_wait = serve


# What a plane may not do


def test_a_report_on_an_unknown_operation_is_refused():
    machine = Machine(Setup())
    with pytest.raises(ProtocolError, match="operation 7, which is not in flight"):
        machine.cache.on(Completion(7, 1))


def test_a_second_completion_is_refused():
    """One completion each (law L4): a second would free, or unlock, what belongs to somebody else by now."""
    machine = Machine(Setup())
    machine.serve([0, 1])
    (backup,) = machine.in_flight(OpKind.BACKUP)
    machine.complete(backup)
    with pytest.raises(ProtocolError, match="not in flight"):
        machine.cache.on(Completion(backup, 2))


@pytest.mark.parametrize("kind", [OpKind.BACKUP, OpKind.PROBE])
def test_progress_of_anything_but_a_fetch_is_refused(kind):
    """It would pass for the end."""
    machine = Machine(Setup(prefetch="wait_complete"))
    machine.serve([0, 1])
    machine.arrive([5, 5])
    machine.pump()
    (op_id,) = machine.in_flight(kind)
    with pytest.raises(ProtocolError, match="no FETCH"):
        machine.cache.on(Progress(op_id, 1))


def test_a_load_that_falls_short_stops_everything():
    """Requests compute on its pages already. Served on, they would be wrong answers."""
    machine = Machine(Setup(l1_pages=4))
    machine.serve([0, 0, 0])
    machine.settle()
    machine.serve([1, 1, 1])
    machine.settle()
    rid = machine.arrive([0, 0, 0, 2])
    machine.admit(rid)
    machine.start_loading()
    machine.pump()
    (load,) = machine.in_flight(OpKind.LOAD)
    with pytest.raises(ProtocolError, match=r"LOAD .* came back with 2 of 3 pages"):
        machine.complete(load, 2)


def test_resuming_too_early_is_refused():
    machine = Machine(Setup(write="write_back", l1_pages=2))
    machine.serve([0, 0])
    rid = machine.arrive([1, 1])
    machine.on_wait = lambda op_ids: None
    with pytest.raises(ProtocolError, match=r"before write .* had completed"):
        machine.admit(rid)


# Eviction under write_back


def test_failed_copy_drops_its_victim_and_frees_both_levels():
    machine = Machine(Setup(write="write_back", l1_pages=2, l2_pages=4))
    machine.serve([0, 0])
    end_copies(machine, 1)
    machine.serve([1, 1])
    assert machine.cache.counters.dropped[Drop.WRITE_FAILED] == 2
    assert machine.cache.l2.free == 4
    machine.drain()


@pytest.mark.parametrize("per_victim", [False, True])
def test_full_l2_drops_the_victim_once_copies_under_way_have_ended(per_victim):
    """v0.5.7 dies. The parent of a victim whose copy fills L2 finds it full, and must not take that copy's slots along
    while the plane still writes to them."""
    changes = {"write_back_waits_per_victim": per_victim}
    machine = Machine(Setup(write="write_back", l1_pages=4, l2_pages=2, changes=changes))
    machine.serve([0, 0])
    machine.serve([0, 0, 1, 1])
    machine.serve([2, 2, 2, 2])
    counters = machine.cache.counters
    assert (counters.demoted, counters.dropped[Drop.L2_EVICTED], counters.dropped[Drop.L2_FULL]) == (4, 2, 0)
    machine.drain()


def test_parent_demoted_before_its_childs_copy_failed_can_still_be_evicted_from_l2():
    """It becomes a host leaf when the child is dropped, not when it is demoted. Forgotten, it fills L2 for ever."""
    machine = Machine(Setup(write="write_back", l1_pages=4, l2_pages=4))
    machine.serve([0, 0])
    machine.serve([1, 1, 1, 1])  # [0, 0] is copied
    machine.serve([0, 0, 1, 1])  # and loaded back; now it is on both levels, its child on the device only
    end_copies(machine, 0)
    machine.serve([2, 2, 2, 2])
    assert machine.cache.counters.dropped[Drop.WRITE_FAILED] == 2
    machine.drain()


def chain_above_a_hold(machine: Machine) -> None:
    """0 above 1 on the device only, above 2 on the host only and held by its own store."""
    machine.serve([0])
    machine.serve([0, 1])
    machine.serve([0, 1, 2])
    rid = machine.arrive([3])
    machine.admit(rid)
    machine.discard(rid)
    machine.pump()
    assert machine.in_flight(OpKind.STORE)
    held = node_of(machine, 0, 1, 2)
    assert held.device is None
    assert held.host_locks


def test_victim_above_a_held_copy_goes_if_its_own_copy_fails():
    """The held copy below it leaves the tree with it and keeps its slots until it is let go: a store that hangs must
    not keep L1 full."""
    machine = Machine(Setup(profile="article", write="write_back", prefetch="best_effort", l1_pages=3, l2_pages=8))
    chain_above_a_hold(machine)
    end_copies(machine, 0)
    rid = machine.arrive([4, 4, 4])
    assert machine.admit(rid)
    assert machine.cache.ledger.detached
    machine.settle()
    assert not machine.cache.ledger.detached
    machine.drain()


def test_stores_of_an_eviction_do_not_hold_what_its_failed_copies_must_drop():
    machine = Machine(Setup(profile="article", write="write_back", prefetch="best_effort", l1_pages=3, l2_pages=8))
    machine.serve([0])
    machine.serve([0, 1])
    machine.serve([0, 1, 2])
    end_copies(machine, None, 0, None)
    machine.serve([4, 4, 4])
    assert machine.cache.tree.peek(None, machine.key([0, 1, 2])) == (0, 1)
    assert machine.cache.counters.dropped[Drop.L1_ORPHANED] == 1
    machine.drain()


def test_host_copies_below_a_dropped_node_go_with_it():
    """0.5.7 loses their slots for good (`Orphan` of the golden files)."""
    machine = Machine(Setup(write="write_through", l1_pages=4, l2_pages=2))
    machine.serve([0, 0, 0])  # too long for L2
    machine.serve([0, 0, 0, 1])  # its last page is backed up
    machine.settle()
    machine.serve([2, 2, 2, 2])
    assert machine.cache.counters.dropped[Drop.L1_ORPHANED] == 1
    assert machine.cache.l2.free == 2
    machine.drain()


# Writing


def test_write_in_flight_covers_both_halves_of_a_split():
    machine = Machine(Setup(write="write_through", l1_pages=8))
    machine.serve([0, 0, 0, 0])
    machine.serve([0, 0, 1])
    upper, lower = node_of(machine, 0, 0), node_of(machine, 0, 0, 0, 0)
    assert upper.write is lower.write is not None
    (first, _second) = machine.in_flight(OpKind.BACKUP)
    machine.complete(first)
    machine.tick()
    assert upper.write is lower.write is None
    assert not lower.lock
    machine.drain()


@pytest.mark.parametrize("good", [0, 1, 3])
def test_write_that_fails_leaves_no_host_copy(good):
    """Not even of its good pages, nor of the half that was split off meanwhile."""
    machine = Machine(Setup(write="write_through", l1_pages=8))
    machine.serve([0, 0, 0, 0])
    machine.serve([0, 0, 1])
    (first, _second) = machine.in_flight(OpKind.BACKUP)
    machine.complete(first, good)
    machine.tick()
    for prompt in ((0, 0), (0, 0, 0, 0)):
        node = node_of(machine, *prompt)
        assert node.host is None
        assert node.write is None
    machine.drain()


def test_writes_are_acknowledged_in_order():
    """A later copy that ends first waits: ranks agree on a count, as upstream's do."""
    machine = Machine(Setup(write="write_through"))
    machine.serve([0])
    machine.serve([1])
    first, second = machine.in_flight(OpKind.BACKUP)
    machine.complete(second)
    machine.tick()
    assert list(machine.cache.ledger.writing) == [first, second]
    machine.complete(first)
    machine.tick()
    assert not machine.cache.ledger.writing


@pytest.mark.parametrize(("policy", "inserts"), [("write_through", 1), ("write_through_selective", 2)])
def test_backup_starts_with_the_hit_the_policy_names(policy, inserts):
    machine = Machine(Setup(write=policy))
    for served in range(1, inserts + 1):
        machine.serve([0, 0])
        assert bool(machine.in_flight(OpKind.BACKUP)) == (served == inserts)


@pytest.mark.parametrize(("knob", "counts"), [(False, 1), (True, 2)])
def test_chunks_count_no_hits_in_0_5_7(knob, counts):
    machine = Machine(Setup(write="none", changes={"count_chunked_hits": knob}))
    rid = machine.arrive([0, 0, 1, 1])
    machine.admit(rid, 2)
    machine.prefill(rid, chunked=True)
    machine.grow(rid, 2)
    machine.finish(rid)
    assert node_of(machine, 0, 0).hits == 1, "once a request, whatever the knob"
    assert node_of(machine, 0, 0, 1, 1).hits == 1
    machine.serve([0, 0])
    assert node_of(machine, 0, 0).hits == 2


@pytest.mark.parametrize(("ancestors", "backed_up"), [(False, True), (True, False)])
def test_backup_of_ancestors_is_a_rule(ancestors, backed_up):
    """0.5.23 writes what is above first, and nothing if that finds no room; so backed-up nodes form a prefix."""
    machine = Machine(Setup(write="write_through", l2_pages=2, changes={"backup_ancestors": ancestors}))
    machine.serve([0, 0, 0])
    machine.serve([0, 0, 0, 1])
    assert node_of(machine, 0, 0, 0).host is None
    assert (node_of(machine, 0, 0, 0, 1).host is not None) is backed_up
    machine.drain()


@pytest.mark.parametrize(("knob", "evicted"), [(False, 4), (True, 2)])
def test_a_backup_evicts_what_it_needs_or_what_is_missing(knob, evicted):
    """Of 6 pages 2 are free and 4 are needed."""
    machine = Machine(Setup(l1_pages=4, l2_pages=6, changes={"evict_shortfall_only": knob}))
    for prompt in ([0, 0], [1, 1], [2] * 4):
        machine.serve(prompt)
        machine.settle()
    assert machine.cache.counters.evicted_l2 == evicted
    machine.drain()


def test_l2_of_nothing_is_a_plain_radix_cache():
    machine = Machine(Setup(write="write_through", l1_pages=4, l2_pages=0))
    for prompt in ([0, 0], [0, 1], [2, 2, 2], [0, 0]):
        machine.serve(prompt)
    assert not machine.in_flight()
    machine.drain()


# Loading


@pytest.mark.parametrize(("threshold", "loaded"), [(2, 2), (3, 0)])
def test_short_chains_are_not_loaded(threshold, loaded):
    machine = Machine(Setup(l1_pages=4, load_back_threshold_tokens=threshold))
    machine.serve([0, 0])
    machine.settle()
    machine.serve([1, 1, 1, 1])
    machine.settle()
    admission = machine.serve([0, 0])
    assert (admission.match.host_pages, admission.loaded) == (2, loaded)
    machine.drain()


def test_loads_of_a_batch_are_one_operation():
    machine = Machine(Setup(l1_pages=8, l2_pages=16))
    for prompt in ([0, 0], [1, 1]):
        machine.serve(prompt)
        machine.settle()
    machine.serve([2] * 8)
    machine.settle()
    first, second = machine.arrive([0, 0]), machine.arrive([1, 1])
    assert machine.admit(first)
    assert machine.admit(second)
    machine.start_loading()
    machine.start_loading()  # nothing more to load
    machine.pump()
    (load,) = machine.in_flight(OpKind.LOAD)
    assert machine.plane.in_flight[load].op.pages == 4
    assert not machine.may_compute(first)
    machine.complete(load)
    assert machine.may_compute(first)
    assert machine.may_compute(second)
    machine.drain()


def test_a_load_without_room_is_refused_whole():
    machine = Machine(Setup(l1_pages=4, l2_pages=16))
    machine.serve([0, 0, 0])
    machine.settle()
    machine.serve([1, 1, 1])
    machine.settle()
    running = machine.arrive([1, 1, 1])
    machine.admit(running)
    rid = machine.arrive([0, 0, 0])
    assert not machine.admit(rid)
    assert machine.admission.loaded == 0
    assert machine.cache.counters.loads_refused_room == 1
    assert not node_of(machine, 0, 0, 0).host_locks
    machine.drain()


def test_nodes_loading_can_be_split_and_matched():
    """The halves stay locked, and neither counts as loaded, until the load has been acknowledged."""
    machine = Machine(Setup(l1_pages=8, l2_pages=16))
    machine.serve([0, 0, 0, 0])
    machine.settle()
    machine.serve([1] * 8)
    machine.settle()
    first = machine.arrive([0, 0, 0, 0])
    machine.admit(first)
    machine.start_loading()
    second = machine.arrive([0, 0, 2])
    machine.admit(second)
    upper, lower = node_of(machine, 0, 0), node_of(machine, 0, 0, 0, 0)
    assert upper.load is lower.load is not None
    assert not machine.may_compute(second)
    machine.pump()
    machine.complete(*machine.in_flight(OpKind.LOAD))
    machine.tick()
    assert upper.load is lower.load is None
    machine.drain()


# Inserting


def test_two_requests_that_compute_the_same_pages_keep_one_copy():
    machine = Machine(Setup(l1_pages=8))
    first, second = machine.arrive([0, 0, 0]), machine.arrive([0, 0, 1])
    machine.admit(first)
    machine.admit(second)
    machine.finish(first)
    machine.finish(second)
    assert machine.cache.l1.free == 8 - 4
    machine.drain()


@pytest.mark.parametrize(("knob", "hits"), [(False, 1), (True, 2)])
def test_computing_evicted_pages_again_puts_them_back_on_the_device(knob, hits):
    """An insert finds its pages on the host only: they take the request's slots, and keep their host copy. Whether that
    is a hit is a rule."""
    changes = {"refill_counts_hit": knob}
    machine = Machine(Setup(l1_pages=4, l2_pages=16, load_back_threshold_tokens=100, changes=changes))
    machine.serve([0, 0])
    machine.settle()
    machine.serve([1] * 4)
    machine.settle()
    admission = machine.serve([0, 0])
    assert (admission.match.host_pages, admission.loaded) == (2, 0)
    node = node_of(machine, 0, 0)
    assert node.device is not None
    assert node.host is not None
    assert node.hits == hits
    machine.drain()


def test_priority_is_the_highest_on_a_path():
    machine = Machine(Setup(eviction="priority", write="none"))
    machine.serve([0, 0], priority=1)
    machine.serve([0, 0, 1], priority=3)
    machine.serve([0, 0, 1], priority=2)
    assert [node.priority for node in machine.cache.tree.nodes()] == [3, 3]


@pytest.mark.parametrize(("knob", "lower"), [(True, 3), (False, 1)])
def test_a_split_raises_the_priority_of_both_halves_in_0_5_7(knob, lower):
    machine = Machine(Setup(eviction="priority", write="none", changes={"split_raises_lower": knob}))
    machine.serve([0, 0, 0], priority=1)
    slots = machine.cache.l1.alloc(2, Owner.REQUEST)
    machine.cache.insert(None, machine.key([0, 0]), 0, slots, priority=3)
    assert [node.priority for node in machine.cache.tree.nodes()] == [3, lower]


def test_an_insert_of_foreign_slots_is_refused():
    machine = Machine(Setup())
    with pytest.raises(SlotError):
        machine.cache.insert(None, machine.key([0, 1]), 0, machine.cache.l1.alloc(2, Owner.TREE))


# The machine itself must be able to see


def test_the_machine_sees_a_copy_from_a_slot_that_changed_hands():
    machine = Machine(Setup(l1_pages=4))
    machine.reads_early = lambda op: False
    machine.serve([0, 0])
    (backup,) = machine.in_flight(OpKind.BACKUP)
    machine.memory.l1[machine.plane.in_flight[backup].op.src] = 99
    machine.memory.l1[:] = 99
    with pytest.raises(LawBroken, match="L10"):
        machine.complete(backup)


def test_the_plane_spoils_what_it_does_not_complete():
    machine = Machine(Setup(prefetch="wait_complete"))
    machine.store_has([0, 0, 0])
    machine.arrive([0, 0, 0])
    machine.pump()
    machine.complete(*machine.in_flight(OpKind.PROBE))
    machine.pump()
    (fetch,) = machine.in_flight(OpKind.FETCH)
    slots = machine.plane.in_flight[fetch].op.dst
    assert isinstance(machine.plane, ManualPlane)
    machine.progress(fetch, 1)
    machine.complete(fetch, 2)
    assert (machine.memory.l2[slots] == -1).tolist() == [False, False, True]
