"""What users of SGLang's HiCache met, as tests: the kind of each bug, not its letter.

Numbers are upstream's issues and pull requests. What concerns collectives comes down to one law here: everything is a
function of the log, so ranks that see the same log decide the same (L6, L9).
"""

from collections.abc import Callable

import numpy as np
import pytest

from hicache_ref.control.slots import Owner
from hicache_ref.control.types import OpKind
from hicache_ref.policy.eviction import Lru
from hicache_ref.testing import Machine, Setup, life, replay
from hicache_ref.testing.session import Session


def fingerprint(session: Session):
    """All a rank would have to agree on."""
    nodes = [
        (
            node.id,
            node.pages,
            node.lock,
            node.hits,
            node.last_access,
            _slots(node.device),
            _slots(node.host),
            None if node.names is None else list(node.names),
        )
        for node in session.cache.tree.nodes()
    ]
    return nodes, session.cache.l1._stack.tolist(), session.cache.l2._stack.tolist(), session.ops


def _slots(extent):
    return None if extent is None else extent.indices.tolist()


def keep_going(machine: Machine, kinds: list[OpKind]) -> None:
    """Operations of these kinds end, whatever they lead to."""
    for _ in kinds:
        machine.pump()
        for op_id in machine.in_flight(*kinds):
            machine.complete(op_id)
        machine.tick()
    machine.pump()


@pytest.mark.parametrize("seed", range(8))
def test_30760_38273_26921_22607_ranks_that_see_one_log_never_part(seed):
    """Polls, acknowledgements and drains depend on nothing a rank has for itself: no clock, no own timing."""
    *_, machine = life(seed)
    ranks = [replay(machine.setup, machine.session.log, machine.cache.keys) for _ in range(2)]
    assert fingerprint(ranks[0]) == fingerprint(ranks[1])
    assert ranks[0].ops == machine.session.ops


@pytest.mark.parametrize("ending", ["poll", "abort"])
@pytest.mark.parametrize("arrived", [0, 1, 3])
def test_13483_prefetch_frees_each_host_page_once(ending, arrived):
    """Pages that arrived, did not arrive, arrive too late, or were in the tree: each goes back by one way."""
    machine = Machine(Setup(prefetch="best_effort", prefetch_threshold_tokens=3))
    machine.store_has([0, 0, 0])
    rid = machine.arrive([0, 0, 0])
    keep_going(machine, [OpKind.PROBE])
    machine.serve([0])  # the first page is in the tree by now
    (fetch,) = machine.in_flight(OpKind.FETCH)
    machine.progress(fetch, arrived)
    machine.poll(rid) if ending == "poll" else machine.abort(rid)
    machine.tick()
    machine.complete(fetch)
    machine.tick()
    machine.waiting.pop(rid, None)
    machine.drain()


def test_31902_30106_backed_up_child_of_an_unbacked_parent_can_be_evicted_and_freed():
    """Prefetch hangs pages below a node whose own copy failed. L1 must be able to evict that, and L2 not lose them."""
    machine = Machine(Setup(prefetch="wait_complete", l1_pages=4))
    machine.serve([0, 0])
    (backup,) = machine.in_flight(OpKind.BACKUP)
    machine.store_has([0, 0, 1, 1])
    rid = machine.arrive([0, 0, 1, 1])
    keep_going(machine, [OpKind.PROBE, OpKind.FETCH])
    machine.complete(backup, 0)
    machine.tick()
    assert machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1, 1])) == (2, 2)
    machine.abort(rid)
    machine.settle()
    machine.serve([2] * 4)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1, 1])) == (0, 0)
    machine.drain()


def test_31902_0_5_23_drops_such_a_child():
    machine = Machine(Setup(profile="v0.5.23", prefetch="wait_complete", l1_pages=4))
    machine.serve([0, 0])
    (backup,) = machine.in_flight(OpKind.BACKUP)
    machine.store_has([0, 0, 1, 1])
    rid = machine.arrive([0, 0, 1, 1])
    keep_going(machine, [OpKind.PROBE, OpKind.FETCH])
    machine.complete(backup, 0)
    machine.tick()
    assert machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1, 1])) == (2, 0)
    machine.tick()
    assert machine.cache.l2.free == machine.setup.l2_pages
    machine.abort(rid)
    machine.drain()


def test_20049_locks_are_released_while_only_decoding():
    """A tick is enough; no request has to be admitted for acknowledged copies to make their pages evictable."""
    machine = Machine(Setup(l1_pages=8))
    rid = machine.arrive([1])
    machine.admit(rid)
    machine.prefill(rid)
    machine.serve([0] * 6)
    assert machine.cache.tree.evictable == 0
    for op_id in machine.in_flight(OpKind.BACKUP):
        machine.complete(op_id)
    machine.tick()
    assert machine.cache.tree.evictable == 6
    for _ in range(6):
        assert machine.grow(rid, 1, [1])
        machine.prefill(rid, chunked=True)
    machine.drain()


def test_20560_l3_writes_end_while_idle():
    machine = Machine(Setup(prefetch="wait_complete"))
    machine.serve([0, 0])
    assert not machine.running
    assert not machine.waiting
    keep_going(machine, [OpKind.BACKUP, OpKind.STORE])
    assert len(machine.store.pages) == 2
    assert machine.cache.ledger.at_rest
    machine.drain()


@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_20611_38463_a_copy_under_way_keeps_its_source(write, acknowledged):
    """No later forward may write where a copy to L2 still reads: the pages stay until the copy has been acknowledged,
    or, under write_back, the step that evicts them waits for it."""
    machine = Machine(Setup(write=write, l1_pages=2))
    machine.serve([0, 0])
    rid = machine.arrive([1, 1])
    if write == "write_back":
        seen: list[int] = []

        def serve(op_ids: tuple[int, ...]) -> None:
            seen.extend(op_ids)
            assert machine.cache.l1.free == 0
            for op_id in op_ids:
                machine.session.on(machine.plane.complete(op_id))

        machine.on_wait = serve
        assert machine.admit(rid)
        assert seen
    else:
        if acknowledged:
            machine.complete(*machine.in_flight(OpKind.BACKUP))
        assert not machine.admit(rid), "reported is not yet acted on"
        machine.settle()
        assert machine.admit(rid)
    machine.drain()


@pytest.mark.parametrize("good", [0, 1, 2])
def test_27504_only_pages_that_arrived_are_served(good):
    """A fetch that falls short leaves garbage behind its good pages. The machine checks each page the tree serves."""
    machine = Machine(Setup(prefetch="wait_complete"))
    machine.store_has([0, 0, 0])
    rid = machine.arrive([0, 0, 0])
    keep_going(machine, [OpKind.PROBE])
    machine.complete(*machine.in_flight(OpKind.FETCH), good)
    assert machine.poll(rid)
    assert machine.admit(rid)
    assert machine.admission.match.host_pages == good
    machine.drain()


def test_38452_a_host_only_match_does_not_keep_the_rest_from_being_asked_for():
    machine = Machine(Setup(prefetch="wait_complete", l1_pages=4))
    machine.serve([0, 0])
    machine.settle()
    machine.serve([1] * 4)
    machine.settle()
    assert machine.cache.tree.peek(None, machine.key([0, 0])) == (0, 2)
    machine.store_has([0, 0, 2, 2])
    rid = machine.arrive([0, 0, 2, 2])
    keep_going(machine, [OpKind.PROBE, OpKind.FETCH])
    assert machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 2, 2])) == (0, 4)
    machine.drain()


def test_31445_what_a_timeout_cuts_off_keeps_its_target_until_it_ends():
    machine = Machine(Setup(prefetch="timeout", l1_pages=4, l2_pages=4))
    machine.store_has([0, 0, 0, 0])
    rid = machine.arrive([0, 0, 0, 0])
    keep_going(machine, [OpKind.PROBE])
    machine.advance(100.0)
    assert machine.poll(rid)
    (fetch,) = machine.in_flight(OpKind.FETCH)
    machine.abort(rid)
    for _ in range(3):
        machine.tick()
    assert machine.cache.l2.alloc(1, Owner.TREE) is None
    machine.complete(fetch)
    machine.tick()
    assert machine.cache.l2.free == 4
    machine.drain()


def test_35769_target_of_a_load_survives_inserts_over_it():
    """A request that computes the same pages meanwhile gives up its own slots, never those being loaded into."""
    machine = Machine(Setup(l1_pages=8, l2_pages=16, load_back_threshold_tokens=3))
    machine.serve([0, 0, 0])
    machine.settle()
    machine.serve([1] * 8)
    machine.settle()
    computing, loading = machine.arrive([0, 0]), machine.arrive([0, 0, 0, 2])
    machine.admit(computing)  # two pages are not worth a load
    machine.admit(loading)
    machine.start_loading()
    machine.pump()
    (load,) = machine.in_flight(OpKind.LOAD)
    target = machine.plane.in_flight[load].op.dst
    own = machine.session.leases[computing].slots
    machine.finish(computing)
    free = machine.cache.l1.free_slots()
    assert np.isin(own, free).all()
    assert not np.isin(target, free).any()
    machine.complete(load)
    machine.finish(loading)
    machine.drain()


def test_26747_names_in_l3_ignore_the_namespace_and_hold_the_same_bytes():
    """So a page stored by one namespace may be fetched by another, where it hangs under its own root."""
    machine = Machine(Setup(profile="v0.5.23", prefetch="wait_complete"))
    machine.serve([0, 0], namespace="a")
    machine.settle()
    admission = machine.serve([0, 0], namespace="b")
    assert admission.match.host_pages == 2
    assert machine.cache.tree.peek(None, machine.key([0, 0])) == (0, 0)
    machine.drain()


@pytest.mark.parametrize("wanted", [1, 2, 3, 5])
def test_4987_evict_host_counts_what_it_evicts_and_stops(wanted):
    machine = Machine(Setup(l1_pages=8, l2_pages=8))
    for symbol in range(4):
        machine.serve([symbol, symbol])
        machine.settle()
    assert machine.admit(machine.arrive([9] * 8))  # all four are demoted
    freed = machine.cache.evict_host(wanted)
    assert freed == machine.cache.l2.free == -(-wanted // 2) * 2


def test_38454_an_eviction_looks_at_its_victim_not_at_every_leaf():
    asked = 0

    class Counting(Lru):
        def rank(self, node):
            nonlocal asked
            asked += 1
            return super().rank(node)

    cache = Setup(eviction=Counting(), write="none", l1_pages=1000, keyspace="atoms").cache()
    for leaf in range(1000):
        key = leaf.to_bytes(8, "little")
        cache.insert(None, key, 0, cache.l1.alloc(1, Owner.REQUEST))
    asked = 0
    for _ in range(100):
        assert list(cache.make_room(1)) == []
    assert cache.l1.free == 100
    assert asked < 300


@pytest.mark.parametrize(("knob", "gone"), [(False, 4), (True, 2)])
def test_40748_evicting_what_is_missing_instead_of_all_is_a_rule(knob, gone):
    """A load of 4 pages with 2 free evicts 4 in 0.5.7 and 2 in 0.5.23."""
    machine = Machine(Setup(l1_pages=10, l2_pages=40, changes={"evict_shortfall_only": knob}))
    machine.serve([0] * 4)
    machine.settle()
    machine.serve([9] * 10)
    machine.settle()
    for symbol in range(1, 5):
        machine.serve([symbol] * 2)
        machine.settle()
    assert machine.cache.l1.free == 2
    evicted = machine.cache.counters.evicted_l1
    assert machine.serve([0] * 4).loaded == 4
    assert machine.cache.counters.evicted_l1 - evicted == gone
    machine.drain()


def test_27631_a_load_does_not_throw_out_what_it_loads():
    """`LostLoad` of the golden files: room for the load is made by write_back, which makes room in L2 by evicting,
    from there, the very pages to be loaded."""
    machine = Machine(Setup(write="write_back", l1_pages=4, l2_pages=4))
    machine.serve([0, 0])
    machine.serve([1, 1, 1, 1])  # [0, 0] goes to L2
    machine.serve([2, 2])  # so does [1, 1, 1, 1], as far as there is room
    admission = machine.serve([0, 0])
    assert admission.loaded == admission.match.host_pages
    machine.drain()


def test_write_back_with_a_full_l2_goes_on():
    """v0.5.7 asserts, and dies."""
    machine = Machine(Setup(write="write_back", l1_pages=4, l2_pages=1))
    for symbol in range(4):
        assert machine.serve([symbol] * 3)
    machine.drain()


def test_9601_a_waiting_request_keeps_the_node_its_pages_will_hang_below():
    """And neither level can lose it meanwhile, whatever presses."""
    machine = Machine(Setup(prefetch="wait_complete", l1_pages=4, l2_pages=8, prefetch_capacity_tokens=1))
    machine.serve([0, 0])
    machine.settle()
    machine.store_has([0, 0, 1, 1])
    rid = machine.arrive([0, 0, 1, 1])
    keep_going(machine, [OpKind.PROBE])
    machine.serve([2] * 4)
    machine.cache.evict_host(8)
    machine.complete(*machine.in_flight(OpKind.FETCH))
    assert machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1, 1])) == (0, 4)
    machine.drain()


def test_tokens_in_flight_never_leak():
    """Upstream's counter is clamped where it falls below zero, and a leak ends L3 for good."""
    ways: list[Callable[[Machine, int], object]] = [
        lambda machine, rid: machine.abort(rid),
        lambda machine, rid: machine.poll_until_done(rid),
        lambda machine, rid: (keep_going(machine, [OpKind.PROBE, OpKind.FETCH]), machine.poll(rid)),
        lambda machine, rid: (keep_going(machine, [OpKind.PROBE]), machine.abort(rid)),
    ]
    machine = Machine(Setup(prefetch="timeout", prefetch_capacity_tokens=4))
    for at in range(12):
        if at % 2:
            machine.store_has([at] * 4)
        rid = machine.arrive([at] * 4)
        assert rid in machine.cache.ledger.prefetching
        ways[at % 4](machine, rid)
        machine.settle()
        assert machine.cache.ledger.prefetch_pages == 0
    machine.drain()
