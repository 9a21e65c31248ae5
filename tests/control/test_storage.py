"""Prefetches and stores, one by one: admission, answers, the waiting request, what is left when it goes."""

import pytest

from hicache_ref.control.counters import Refusal
from hicache_ref.control.errors import ProtocolError
from hicache_ref.control.types import OpKind, Released
from hicache_ref.policy.prefetch import Timeout
from hicache_ref.testing import Machine, Setup
from hicache_ref.testing.odd import ByTheRest

BOTH = pytest.mark.parametrize("query_first", [False, True])


def with_l3(**fields) -> Machine:
    return Machine(Setup(**{"prefetch": "wait_complete", "l1_pages": 8, "l2_pages": 16, **fields}))


def refusals(machine: Machine) -> dict[str, int]:
    return {why.name: count for why, count in machine.cache.counters.prefetch_refusals.items() if count}


def answer(machine: Machine) -> None:
    """The store answers all probes, and the control plane acts on it."""
    machine.pump()
    for op_id in machine.in_flight(OpKind.PROBE):
        machine.complete(op_id)
    machine.tick()
    machine.pump()


def fetching(machine: Machine, symbols: list[int]) -> tuple[int, int]:
    """A request whose fetch is in flight: its id, and the operation's."""
    machine.store_has(symbols)
    rid = machine.arrive(symbols)
    answer(machine)
    return rid, machine.in_flight(OpKind.FETCH)[-1]


# Admission


@pytest.mark.parametrize(("pages", "issued"), [(3, False), (4, True)])
def test_spans_below_the_threshold_are_not_asked_for(pages, issued):
    machine = with_l3(prefetch_threshold_tokens=4)
    machine.arrive([0] * pages)
    assert refusals(machine) == ({} if issued else {"SHORT": 1})


@pytest.mark.parametrize(("capacity", "issued"), [(5, 2), (6, 2), (7, 3)])
def test_rate_limit_counts_tokens_in_flight(capacity, issued):
    """Refused once what is in flight has reached the limit, not when it would exceed it."""
    machine = with_l3(prefetch_capacity_tokens=capacity)
    for first in range(3):
        machine.arrive([first, 5, 5])
    assert len(machine.cache.ledger.prefetching) == issued
    assert refusals(machine) == ({"RATE": 1} if issued == 2 else {})
    machine.drain()


def test_rate_limit_falls_when_a_request_goes_on():
    machine = with_l3(prefetch_capacity_tokens=3, prefetch="best_effort")
    rid = machine.arrive([0, 0, 0])
    machine.arrive([1, 1, 1])
    assert refusals(machine) == {"RATE": 1}
    machine.poll(rid)
    machine.arrive([2, 2, 2])
    assert refusals(machine) == {"RATE": 1}
    machine.drain()


def test_only_0_5_7_takes_l2_before_it_asks():
    for query_first, taken in ((False, 3), (True, 0)):
        machine = with_l3(changes={"prefetch_query_first": query_first})
        machine.arrive([0, 0, 0])
        assert machine.cache.l2.free == 16 - taken


def test_no_room_in_l2_refuses_at_once_in_0_5_7():
    machine = with_l3(l2_pages=2)
    machine.arrive([0, 0, 0])
    assert refusals(machine) == {"HOST_SPACE": 1}
    machine.drain()


@pytest.mark.parametrize(("room", "fetched"), [(2, 2), (1, 0)])
def test_as_much_as_fits_is_fetched_in_0_5_23_if_worth_it(room, fetched):
    machine = with_l3(profile="v0.5.23", l2_pages=room, prefetch_threshold_tokens=2)
    machine.store_has([0, 0, 0, 0])
    rid = machine.arrive([0, 0, 0, 0])
    answer(machine)
    assert sum(machine.plane.in_flight[op_id].op.pages for op_id in machine.in_flight(OpKind.FETCH)) == fetched
    assert refusals(machine) == ({} if fetched else {"HOST_SPACE": 1})
    assert machine.poll(rid) is not bool(fetched)
    machine.drain()


@BOTH
def test_nothing_is_asked_for_behind_a_match_without_a_host_copy(query_first):
    """The pages would be named, and hung into the tree, as if they came after the last node that has one."""
    machine = with_l3(write="write_through_selective", changes={"prefetch_query_first": query_first})
    machine.serve([0, 0])
    machine.serve([0, 0, 1])  # [0, 0] is hit again, and backed up; [1] is not
    machine.settle()
    machine.store_has([0, 0, 1, 2, 2])
    rid = machine.arrive([0, 0, 1, 2, 2])
    assert rid not in machine.cache.ledger.prefetching
    machine.drain()


@pytest.mark.parametrize(("query_first", "asked"), [(False, False), (True, True)])
def test_which_node_needs_the_host_copy_is_a_rule(query_first, asked):
    """0.5.7: the last one on the device. 0.5.23: the last of the match, which may be on the host only."""
    machine = with_l3(write="write_through", l1_pages=4, changes={"prefetch_query_first": query_first})
    machine.serve([0, 0])
    machine.complete(*machine.in_flight(OpKind.BACKUP), 0)
    machine.tick()
    machine.serve([0, 0, 1])
    machine.complete(machine.in_flight(OpKind.BACKUP)[0], 0)  # [0, 0] fails again, [1] will not
    machine.settle()
    machine.admit(machine.arrive([0, 0]))  # [0, 0] stays on the device
    machine.admit(machine.arrive([2, 2]))  # [1] is demoted
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1])) == (2, 1)
    rid = machine.arrive([0, 0, 1, 2, 2])
    assert (rid in machine.cache.ledger.prefetching) is asked
    machine.drain()


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_threshold_is_for_the_answer_too(page_tokens):
    machine = with_l3(page_tokens=page_tokens, prefetch_threshold_tokens=3 * page_tokens)
    machine.store_has([0, 0])
    rid = machine.arrive([0, 0, 0, 0])
    machine.pump()
    machine.complete(*machine.in_flight(OpKind.PROBE))
    assert refusals(machine) == {"FEW_HITS": 1}
    assert not machine.poll(rid), "the answer is acted on at the next tick"
    machine.tick()
    assert machine.poll(rid)
    assert machine.cache.l2.free == 16
    machine.drain()


# The waiting request


def test_wait_complete_waits_for_all_the_store_has():
    machine = with_l3()
    machine.store_has([0, 0, 0])
    rid = machine.arrive([0, 0, 0, 1])
    assert not machine.poll(rid)
    answer(machine)
    assert not machine.poll(rid)
    (fetch,) = machine.in_flight(OpKind.FETCH)
    machine.progress(fetch, 2)
    assert not machine.poll(rid)
    machine.complete(fetch)
    assert machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 0, 1])) == (0, 3)
    machine.drain()


def test_best_effort_goes_on_with_what_has_arrived():
    machine = with_l3(prefetch="best_effort")
    rid, fetch = fetching(machine, [0, 0, 0])
    machine.progress(fetch, 2)
    assert machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 0])) == (0, 2)
    assert machine.plane.in_flight[fetch].cancelled is False
    machine.pump()
    assert machine.plane.in_flight[fetch].cancelled is True
    assert machine.cache.l2.free == 16 - 3, "the last page may still arrive: its slot is nobody else's"
    machine.complete(fetch)
    machine.tick()
    assert machine.cache.l2.free == 16 - 2
    machine.drain()


@pytest.mark.parametrize(("elapsed_s", "done"), [(2.999, False), (3.0, True)])
def test_timeout_is_from_the_issue_in_0_5_7(elapsed_s, done):
    machine = with_l3(prefetch=Timeout(base_s=1.0, per_page_s=1.0))
    machine.advance(100.0)
    rid, _ = fetching(machine, [0, 0])
    machine.advance(elapsed_s)
    assert machine.poll(rid) is done
    machine.drain()


def test_timeout_before_the_answer_is_the_base():
    machine = with_l3(prefetch=Timeout(base_s=1.0, per_page_s=1.0))
    rid = machine.arrive([0, 0])
    machine.advance(0.999)
    assert not machine.poll(rid)
    machine.advance(0.002)
    assert machine.poll(rid)
    machine.drain()


def test_timeout_is_from_the_first_blocked_poll_in_0_5_23():
    machine = with_l3(profile="v0.5.23", prefetch=Timeout(base_s=1.0, per_page_s=0.0))
    rid, _ = fetching(machine, [0, 0])
    machine.advance(100.0)
    assert machine.cache.storage.ready(rid, machine.now_s), "a poll is worth it: it starts the clock"
    assert not machine.poll(rid)
    assert machine.cache.storage.next_deadline_s() == 101.0
    machine.advance(0.5)
    assert not machine.cache.storage.ready(rid, machine.now_s)
    assert not machine.poll(rid)
    machine.advance(0.5)
    assert machine.cache.storage.ready(rid, machine.now_s)
    assert machine.poll(rid)
    machine.drain()


def test_deadlines_that_move_are_not_missed():
    """An engine with nothing to do sleeps until the next one. This policy's comes nearer with every page."""
    machine = with_l3(prefetch=ByTheRest())
    near, fetch = fetching(machine, [0, 0, 0, 0])
    storage = machine.cache.storage
    assert storage.next_deadline_s() == 1.0
    machine.advance(0.1)
    fetching(machine, [1, 1])
    assert storage.next_deadline_s() == 0.6
    machine.progress(fetch, 2)
    assert storage.next_deadline_s() == 0.5
    machine.abort(near)
    assert storage.next_deadline_s() == 0.6
    machine.drain()


def test_a_look_ends_nothing():
    machine = with_l3(prefetch="best_effort")
    rid, fetch = fetching(machine, [0, 0])
    machine.complete(fetch)
    for _ in range(2):
        assert machine.cache.storage.ready(rid, machine.now_s)
    assert list(machine.cache.ledger.prefetching) == [rid]
    assert machine.cache.storage.ready(99, machine.now_s), "a request without a prefetch need not wait"
    machine.drain()


@BOTH
def test_a_fetch_that_falls_short_is_not_waited_for(query_first):
    """The store had promised more than it has: a hole, an outage, a lie."""
    machine = with_l3(changes={"prefetch_query_first": query_first})
    machine.store_has([0, 0])
    machine.store_lies([0, 0, 0, 0])
    rid = machine.arrive([0, 0, 0, 0])
    answer(machine)
    assert not machine.cache.storage.ready(rid, machine.now_s)
    machine.complete(*machine.in_flight(OpKind.FETCH))
    assert machine.cache.storage.ready(rid, machine.now_s)
    assert machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0, 0, 0])) == (0, 2)
    assert machine.cache.counters.prefetch_failed == 2
    machine.tick()
    assert machine.cache.l2.free == 16 - 2
    machine.drain()


@BOTH
@pytest.mark.parametrize("when", ["asked", "answered", "fetching", "partly", "fetched"])
def test_abort_leaves_nothing(query_first, when):
    """Whenever the request goes away, its pages and its anchor are let go, each once."""
    machine = with_l3(changes={"prefetch_query_first": query_first})
    machine.store_has([0, 0, 0])
    rid = machine.arrive([0, 0, 0])
    machine.pump()
    steps = [
        lambda: machine.complete(*machine.in_flight(OpKind.PROBE)),
        lambda: (machine.tick(), machine.pump()),
        lambda: machine.progress(*machine.in_flight(OpKind.FETCH), 1),
        lambda: machine.complete(*machine.in_flight(OpKind.FETCH)),
    ]
    for step in steps[: ["asked", "answered", "fetching", "partly", "fetched"].index(when)]:
        step()
    machine.abort(rid)
    assert not machine.cache.ledger.prefetching
    assert not machine.cache.tree.root.host_locks
    machine.settle()
    assert machine.cache.l2.free == 16
    assert not list(machine.cache.tree.nodes())
    machine.drain()


def test_a_cancelled_fetch_may_come_back_whole():
    """Cancelling is a wish. What arrives for nobody is given back, and counted."""
    machine = with_l3(prefetch="best_effort")
    rid, fetch = fetching(machine, [0, 0, 0])
    machine.poll(rid)
    machine.pump()
    machine.complete(fetch, 3)
    machine.tick()
    assert machine.cache.l2.free == 16
    assert machine.cache.counters.prefetch_wasted == 3
    assert machine.cache.counters.prefetched_late == 3
    machine.drain()


def test_a_probe_answered_after_its_request_went_on_is_fetched_and_stopped_in_0_5_7():
    """As upstream's thread does. In 0.5.23 no L2 pages are taken for it, and so nothing is fetched."""
    for profile, fetches in (("v0.5.7", 1), ("v0.5.23", 0)):
        machine = with_l3(profile=profile, prefetch="best_effort")
        machine.store_has([0, 0, 0])
        rid = machine.arrive([0, 0, 0])
        assert machine.poll(rid)
        answer(machine)
        assert len(machine.in_flight(OpKind.FETCH)) == fetches
        assert all(machine.plane.in_flight[op_id].cancelled for op_id in machine.in_flight(OpKind.FETCH))
        machine.drain()


def test_a_request_has_one_prefetch_at_a_time():
    """A second would hold an anchor that nobody lets go."""
    machine = with_l3()
    rid = machine.arrive([0, 0])
    assert not machine.may_ask_again(rid)
    with pytest.raises(AssertionError, match="request 0 has a prefetch in flight"):
        machine.ask_again(rid)


def test_an_answer_to_an_earlier_prefetch_does_not_end_the_next():
    """0.5.23 asks again. The first one, given up and answered late, is of the same request."""
    machine = with_l3(profile="v0.5.23", prefetch="best_effort")
    rid = machine.arrive([0, 0])
    machine.poll(rid)
    machine.ask_again(rid)
    machine.pump()
    first, second = machine.in_flight(OpKind.PROBE)
    machine.complete(first)
    machine.tick()
    assert rid in machine.cache.ledger.prefetching
    machine.store_has([0, 0])
    machine.complete(second)
    machine.tick()
    machine.pump()
    machine.complete(*machine.in_flight(OpKind.FETCH))
    machine.poll(rid)
    assert machine.cache.tree.peek(None, machine.key([0, 0])) == (0, 2)
    machine.drain()


@pytest.mark.parametrize("arrived", [0, 1, 2])
def test_pages_whose_anchor_has_left_the_tree_are_given_back(arrived):
    """The anchor lost its host copy, its write having failed, and then L1 needed the room: nothing may hang there."""
    machine = with_l3(l1_pages=4, prefetch_capacity_tokens=1)
    machine.serve([0, 0])
    machine.store_has([0, 0, 1, 1])
    rid = machine.arrive([0, 0, 1, 1])
    machine.complete(*machine.in_flight(OpKind.BACKUP), 0)
    answer(machine)
    machine.serve([2] * 4)  # refused for load by now: computed
    assert machine.cache.tree.peek(None, machine.key([0, 0])) == (0, 0)
    machine.complete(*machine.in_flight(OpKind.FETCH), arrived)
    assert machine.poll(rid)
    assert machine.cache.counters.prefetch_wasted == arrived
    machine.settle()
    assert not machine.cache.ledger.detached
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1, 1])) == (0, 0)
    machine.drain()


def test_a_held_copy_that_has_left_the_tree_is_free_when_its_last_holder_lets_go():
    machine = with_l3(l1_pages=4, l2_pages=2, changes={"prefetch_query_first": True})
    machine.serve([0, 0, 0])  # too long for L2
    machine.serve([0, 0, 0, 1])  # its last page is backed up
    machine.settle()
    small = machine.arrive([9])
    machine.poll_until_done(small)
    machine.admit(small)  # [1] is demoted
    machine.discard(small)
    first, second = machine.arrive([0, 0, 0, 1, 5]), machine.arrive([0, 0, 0, 1, 6])
    assert not list(machine.cache.make_room(4)), "write_through need not wait"
    assert len(machine.cache.ledger.detached) == 1
    machine.tick()
    assert machine.cache.l2.free == 1
    machine.abort(first)
    assert machine.cache.l2.free == 1
    machine.abort(second)
    assert machine.cache.l2.free == 2
    machine.settle()
    assert not machine.cache.ledger.detached


# Into the tree


def test_pages_that_are_in_the_tree_already_are_given_back():
    machine = with_l3(prefetch_threshold_tokens=3)
    rid, fetch = fetching(machine, [0, 0, 0])
    machine.complete(fetch)
    machine.serve([0, 0])  # too short to be asked for: computed
    machine.settle()
    free = machine.cache.l2.free
    assert machine.poll(rid)
    assert machine.cache.counters.prefetched == 1
    assert machine.cache.counters.prefetched_duplicate == 2
    *_, last = machine.cache.tree.nodes()
    assert list(last.names) == machine.cache.keys.chain(machine.key([0, 0, 0]), None)[2:]
    assert machine.cache.l2.free == free + 2
    machine.drain()


@pytest.mark.parametrize(("write", "refills", "kept"), [("none", False, 1), ("none", True, 3), ("write_back", True, 1)])
def test_refilling_nodes_that_are_on_the_device_only_is_a_rule(write, refills, kept):
    """Else, and under write_back, their pages are duplicates, and new ones hang below a node without a host copy."""
    changes = {"prefetch_refills_device_only": refills}
    machine = with_l3(write=write, prefetch_threshold_tokens=3, changes=changes)
    rid, fetch = fetching(machine, [0, 0, 1])
    machine.complete(fetch)
    machine.serve([0, 0])  # too short to be asked for: computed
    assert machine.poll(rid)
    machine.tick()
    assert 16 - machine.cache.l2.free == kept
    assert machine.cache.tree.peek(None, machine.key([0, 0, 1])) == (2, 1)
    machine.drain()


@pytest.mark.parametrize(("knob", "found"), [(True, None), (False, "a")])
def test_prefetch_at_the_root_forgets_the_namespace_in_0_5_7(knob, found):
    """Upstream's bug (issue #26747 is its cousin), kept where it is part of the version."""
    machine = with_l3(changes={"prefetch_root_drops_extra_key": knob})
    machine.store_has([0, 0])
    rid = machine.arrive([0, 0], namespace="a")
    answer(machine)
    machine.complete(*machine.in_flight(OpKind.FETCH))
    machine.poll(rid)
    for namespace in (None, "a", "b"):
        assert machine.cache.tree.peek(namespace, machine.key([0, 0])) == (0, 2 if namespace == found else 0)
    machine.drain()


def test_prefetch_below_a_node_keeps_its_namespace():
    machine = with_l3(changes={"prefetch_root_drops_extra_key": True})
    machine.serve([0, 0], namespace="a")
    machine.settle()
    machine.store_has([0, 0, 1])
    rid = machine.arrive([0, 0, 1], namespace="a")
    answer(machine)
    machine.complete(*machine.in_flight(OpKind.FETCH))
    machine.poll(rid)
    assert machine.cache.tree.peek("a", machine.key([0, 0, 1])) == (2, 1)
    machine.drain()


# Stores


def test_finished_writes_go_on_to_l3():
    machine = with_l3()
    machine.serve([0, 1])
    assert not machine.in_flight(OpKind.STORE)
    machine.settle()
    assert list(machine.store.pages.values()) == machine.identities.of(machine.key([0, 1]))
    assert machine.cache.counters.stored == 2


def test_a_failed_write_is_not_stored():
    machine = with_l3()
    machine.serve([0, 1])
    machine.complete(*machine.in_flight(OpKind.BACKUP), 1)
    machine.settle()
    assert not machine.store.pages


def test_a_refused_store_ends_like_any_other():
    machine = with_l3()
    machine.store_refuses(True)
    machine.serve([0, 1])
    machine.settle()
    assert machine.cache.counters.store_failed == 2
    assert not any(node.host_locks for node in machine.cache.tree.nodes())
    machine.drain()


@pytest.mark.parametrize(("publishes", "stored"), [(False, 1), (True, 3)])
def test_which_half_of_a_split_write_is_stored_is_a_rule(publishes, stored):
    machine = with_l3(changes={"split_publishes_upper": publishes})
    machine.serve([0, 0, 1])
    machine.serve([0, 0])
    first, *_ = machine.in_flight(OpKind.BACKUP)
    machine.complete(first)
    machine.tick()
    machine.pump()
    assert sum(machine.plane.in_flight[op_id].op.pages for op_id in machine.in_flight(OpKind.STORE)) == stored
    machine.drain()


@pytest.mark.parametrize(("profile", "stored"), [("v0.5.7", 0), ("article", 2), ("v0.5.23", 2)])
def test_write_back_stores_in_all_but_0_5_7(profile, stored):
    machine = with_l3(profile=profile, write="write_back", l1_pages=2)
    machine.serve([0, 0])
    machine.serve([1, 1])
    machine.settle()
    assert machine.cache.counters.stored == stored
    machine.drain()


def test_a_store_in_flight_holds_its_pages_in_l2():
    """Its source could be given to somebody else under its hands."""
    machine = with_l3(l1_pages=2, l2_pages=2)
    machine.serve([0, 0])
    machine.complete(*machine.in_flight(OpKind.BACKUP))
    machine.tick()
    machine.pump()
    (store,) = machine.in_flight(OpKind.STORE)
    machine.serve([1, 1])
    assert machine.cache.evict_host(2) == 0
    machine.complete(store)
    machine.tick()
    assert machine.cache.evict_host(2) == 2
    machine.drain()


@BOTH
def test_a_hanging_fetch_lets_the_request_go_on_and_keeps_its_pages(query_first):
    """The call may still write: its slots are nobody's until it has returned, and nothing waits for that."""
    machine = with_l3(changes={"prefetch_query_first": query_first})
    rid, fetch = fetching(machine, [0, 1, 2, 3])
    machine.progress(fetch, 1)
    machine.complete(fetch, 1, lingers=True)
    assert machine.poll(rid)
    machine.settle()
    assert machine.cache.ledger.at_rest
    assert machine.cache.l2.free == 16 - 1 - 3
    machine.release(fetch)
    machine.settle()
    assert machine.cache.l2.free == 16 - 1
    machine.drain()


def test_a_hanging_store_holds_its_pages_until_it_returns():
    """It may still read: what lay there meanwhile would be stored under the wrong name."""
    machine = with_l3(l1_pages=2, l2_pages=2)
    machine.serve([0, 0])
    machine.complete(*machine.in_flight(OpKind.BACKUP))
    machine.tick()
    machine.pump()
    (store,) = machine.in_flight(OpKind.STORE)
    machine.serve([1, 1])
    machine.complete(store, 0, lingers=True)
    machine.tick()
    assert machine.cache.evict_host(2) == 0
    machine.release(store)
    assert machine.cache.evict_host(2) == 2
    machine.drain()


def test_only_what_lingers_can_be_released():
    machine = with_l3()
    _, fetch = fetching(machine, [0, 1])
    with pytest.raises(ProtocolError, match="does not linger"):
        machine.session.on(Released(fetch))


def test_limits_are_in_tokens():
    machine = with_l3(page_tokens=16, prefetch_threshold_tokens=33)
    machine.store_has([0, 0, 0])
    machine.arrive([0, 0, 0])
    answer(machine)
    assert machine.in_flight(OpKind.FETCH), "3 pages are 48 tokens"
    machine = with_l3(page_tokens=16, prefetch_threshold_tokens=33, prefetch_capacity_tokens=1)
    machine.arrive([0, 0])
    assert refusals(machine) == {Refusal.SHORT.name: 1}
    machine.arrive([0, 0, 0])
    machine.arrive([1, 1, 1])
    assert refusals(machine) == {Refusal.SHORT.name: 1, Refusal.RATE.name: 1}
    machine.drain()
