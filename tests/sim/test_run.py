"""Whole runs in simulated time, small enough to be worked out by hand; then many at random, for the laws."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hicache_ref.build import activator
from hicache_ref.control import invariants
from hicache_ref.control.counters import Refusal
from hicache_ref.control.log import replay
from hicache_ref.control.scheduler import Stage
from hicache_ref.control.types import Cancel, Op, OpKind
from hicache_ref.testing.engine_machine import plain_op
from hicache_sim.errors import Stuck
from workloads.request import Request

from .world import LINK, PAGE, PAGE_BYTES, STEP_S, World, request

A, B, C = 1000, 50_000, 90_000
"""First tokens of prompts that have nothing in common."""


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-9)


def slices(world: World, track: str) -> list[tuple[float, float]]:
    assert world.plane.slices is not None
    return [(each.start_s, each.end_s) for each in world.plane.slices if each.track == track]


def traced(world: World) -> World:
    world.plane.slices, world.plane.most_slices = [], 1000
    return world


# Computing


def test_one_request_alone():
    world = World([request(0, 3.0, A, 20, 4)]).run()
    assert world.ttft(0) == near(20e-3)
    assert world.done[0].ended_s == near(3.0 + 20e-3 + 3 * STEP_S)
    assert world.plane.device.busy_s == near(50e-3)


def test_one_token_and_no_decode():
    world = World([request(0, 0.0, A, 7, 1)]).run()
    assert world.done[0].ended_s == world.done[0].first_token_s == near(7e-3)


def test_two_at_once_are_one_batch():
    world = World([request(0, 0.0, A, 20, 2), request(1, 0.0, B, 30, 3)]).run()
    assert world.ttft(0) == world.ttft(1) == near(50e-3)
    assert (world.done[0].ended_s, world.done[1].ended_s) == (near(60e-3), near(70e-3))


def test_an_arrival_stops_a_decode_at_the_end_of_its_step():
    """At 75 ms the sixth step is under way, which ends at 80."""
    world = World([request(0, 0.0, A, 20, 50), request(1, 75e-3, B, 10, 1)]).run()
    assert world.done[1].admitted_s == near(80e-3)
    assert world.ttft(1) == near(15e-3)
    assert world.done[0].ended_s == near(20e-3 + 49 * STEP_S + 10e-3)


def test_an_arrival_waits_for_a_prefill():
    world = World([request(0, 0.0, A, 100, 1), request(1, 10e-3, B, 10, 1)]).run()
    assert world.ttft(1) == near(100e-3 - 10e-3 + 10e-3)


def test_chunks_take_turns_with_nobody():
    world = World([request(0, 0.0, A, 100, 2)], limits={"chunked_prefill_tokens": 32}).run()
    assert world.done[0].chunks == 4
    assert world.ttft(0) == near(100e-3)


def test_what_the_device_has_is_not_computed():
    world = World([request(0, 0.0, A, 41, 1), request(1, 1.0, A, 61, 1)]).run()
    assert world.done[1].device_hit_tokens == 40
    assert world.ttft(1) == near(21e-3)


# Loading

FILL = [request(0, 0.0, A, 41, 1), request(1, 1.0, B, 130, 1)]
"""In an L1 of 40 pages, the second drives the 10 pages of the first out, which are on the host by then."""


@pytest.mark.parametrize(
    ("prompt", "ttft_s"),
    [
        (41, 10e-3 + 1e-3 / 4),  # 10 ms of loading; the last layer's quarter of a millisecond comes after it
        (81, 10e-3 / 4 + 41e-3),  # 41 ms of computing begin with the first layer
    ],
)
def test_a_load_overlaps_the_batch_it_feeds(prompt, ttft_s):
    world = World([*FILL, request(2, 2.0, A, prompt, 1)], l1=40).run()
    assert (world.done[2].device_hit_tokens, world.done[2].loaded_tokens) == (0, 40)
    assert world.ttft(2) == near(ttft_s)
    assert world.plane.machine.h2d.moved_bytes == pytest.approx(10 * PAGE_BYTES)


def test_a_load_that_comes_in_one_piece_overlaps_nothing():
    """What io backends without layers would cost: 10 ms of loading, then 41 of computing."""
    world = World([*FILL, request(2, 2.0, A, 81, 1)], l1=40)
    world.plane.device._parts = 1
    assert world.run().ttft(2) == near(51e-3)


# L3

STORED = {"store": {}, "l1": 400, "l2": 800}


def test_wait_complete_waits():
    """10 ms from the store, 10 to the device, and the rest of a page."""
    world = World([request(0, 0.0, A, 41, 1)], prefetch="wait_complete", **STORED).hold_in_store(A, 40).run()
    assert (world.done[0].loaded_tokens, world.done[0].storage_hit_tokens) == (40, 40)
    assert world.ttft(0) == near(10e-3 + 10e-3 + 1e-3 / 4)


def test_best_effort_does_not():
    world = World([request(0, 0.0, A, 41, 1)], prefetch="best_effort", **STORED).hold_in_store(A, 40).run()
    assert world.done[0].storage_hit_tokens == 0
    assert world.ttft(0) == near(41e-3)


def test_best_effort_takes_what_is_there_when_its_turn_comes():
    """The second has to wait until 120 ms for the first to end, and by then the store has sent its pages."""
    requests = [request(0, 0.0, B, 20, 11), request(1, 30e-3, A, 41, 1)]
    world = World(requests, prefetch="best_effort", limits={"max_running_requests": 1}, **STORED)
    world.hold_in_store(A, 40).run()
    assert world.done[1].storage_hit_tokens == 40
    assert world.done[1].admitted_s == near(120e-3)
    assert world.ttft(1) == near(120e-3 - 30e-3 + 10e-3 + 1e-3 / 4)


def test_a_slow_store_is_late():
    requests = [request(0, 0.0, B, 20, 11), request(1, 30e-3, A, 41, 1)]
    slow = {"faults": ["slow:0:1e6:20"], "limits": {"max_running_requests": 1}}
    world = World(requests, prefetch="best_effort", **slow, **STORED).hold_in_store(A, 40).run()
    assert world.done[1].storage_hit_tokens == 0
    assert world.ttft(1) == near(90e-3 + 41e-3)
    assert world.cache.counters.prefetched_late == 10
    invariants.check_at_rest(world.cache)


def test_timeout_stops_at_its_deadline_with_what_is_there():
    """256 pages come in two batches of 128 ms; at 200 ms there is one: 512 tokens to load, 513 to compute."""
    world = World(
        [request(0, 0.0, A, 1025, 1)],
        prefetch="timeout",
        prefetch_numbers={"base_s": 0.2, "per_page_s": 0.0},
        **STORED,
    )
    world.hold_in_store(A, 1024).run()
    assert world.done[0].storage_hit_tokens == 512
    assert world.done[0].admitted_s == near(0.2)
    assert world.ttft(0) == near(0.2 + 128e-3 / 4 + 513e-3)


def test_timeout_goes_on_when_all_is_there():
    world = World([request(0, 0.0, A, 41, 1)], prefetch="timeout", **STORED).hold_in_store(A, 40).run()
    assert world.ttft(0) == near(10e-3 + 10e-3 + 1e-3 / 4)
    # The run is over when the last page is stored, though the alarm was set for later.
    assert world.sim.last_s == near(world.ttft(0))
    assert world.env.now > 1.0


def test_timeout_is_kept_while_others_decode():
    """Nothing else happens: no arrival, no report, only a decode that would run for ten seconds more."""
    world = World(
        [request(0, 0.0, B, 20, 1000), request(1, 0.5, A, 41, 1)],
        prefetch="timeout",
        prefetch_numbers={"base_s": 1.0, "per_page_s": 0.0},
        faults=["slow:0:1e6:1e5"],
        **STORED,
    )
    world.hold_in_store(A, 40).run()
    assert 1.5 <= world.done[1].admitted_s <= 1.5 + STEP_S + 1e-9
    assert world.ttft(1) <= 1.0 + STEP_S + 41e-3 + 1e-9


def test_a_fetch_that_ends_stops_a_decode():
    """It has all at 75 + 10 ms; the step under way ends at 90."""
    requests = [request(0, 0.0, B, 20, 100), request(1, 75e-3, A, 41, 1)]
    world = World(requests, prefetch="wait_complete", **STORED).hold_in_store(A, 40).run()
    assert world.done[1].admitted_s == near(90e-3)
    assert world.done[1].storage_hit_tokens == 40


def test_a_miss_costs_the_probe():
    world = World(
        [request(0, 0.0, A, 41, 1)], prefetch="wait_complete", **STORED | {"store": {"probe_latency_s": 7e-3}}
    )
    world.run()
    assert world.ttft(0) == near(7e-3 + 41e-3)
    assert world.cache.counters.prefetch_refusals[Refusal.FEW_HITS] == 1


def test_what_was_computed_reaches_the_store():
    world = World([request(0, 0.0, A, 41, 1)], **STORED).run()
    assert world.plane.client.store.store.probe(list(range(A + 3, A + 40, 4)), 1.0) == 10
    assert world.env.now == near(41e-3 + 10e-3 + 10e-3)


@pytest.mark.parametrize("policy", ["wait_complete", "best_effort", "timeout"])
@pytest.mark.parametrize(
    "fault", ["outage:0:inf", "outage:0.05:1", "owner-lost:0:1", "refuse:0:inf", "partial:0:inf:0.9"]
)
def test_a_broken_store_ends_no_run(policy, fault):
    """Every request ends, and nothing is left behind."""
    requests = [request(number, number * 0.03, A + 1000 * (number % 3), 41 + number, 3) for number in range(12)]
    world = World(requests, prefetch=policy, faults=[fault], **STORED | {"l1": 60, "l2": 120})
    for first in (A, A + 1000):
        world.hold_in_store(first, 40)
    world.run()
    assert {each.stage for each in world.done.values()} == {Stage.DONE}
    assert len(world.done) == 12
    invariants.check_at_rest(world.cache)


def test_a_dead_master_costs_its_time_once_a_call():
    world = World([request(0, 0.0, A, 41, 1)], prefetch="wait_complete", faults=["outage:0:inf"], **STORED)
    world.hold_in_store(A, 40).run()
    dead_s = world.plane.client._profile.master_dead_s
    assert world.ttft(0) == near(dead_s + 41e-3)


def test_a_deadline_that_has_passed_stops_no_clock():
    """The first in the queue waits for memory that a slow copy holds. The second's time is up long before, and nobody
    asks for it: time goes on all the same, and it goes on when the first does."""
    world = World(
        [request(0, 0.0, A, 60, 1), request(1, 70e-3, B, 60, 1), request(2, 80e-3, C, 9, 1)],
        prefetch="timeout",
        prefetch_numbers={"base_s": 1.0, "per_page_s": 0.0},
        faults=["slow:0.05:1e6:1e5"],
        store={},
        l1=20,
        l2=100,
        machine={"d2h_bytes_per_s": LINK / 1000, "d2h_duplex_bytes_per_s": LINK / 1000},
    )
    world.hold_in_store(C, 8).run()
    assert world.done[1].admitted_s == near(60e-3 + 15.0)
    assert world.done[2].admitted_s >= world.done[1].admitted_s


# write_back


def test_write_back_stalls_for_its_copies():
    """An L1 of 12 pages: the second request needs room, and waits for 10 pages to be copied."""
    world = World([request(0, 0.0, A, 40, 1), request(1, 1.0, B, 40, 1)], l1=12, write="write_back").run()
    assert (world.sim.stalls, world.sim.stalled_s) == (1, near(10e-3))
    assert world.ttft(1) == near(10e-3 + 40e-3)
    assert world.plane.machine.d2h.moved_bytes == pytest.approx(10 * PAGE_BYTES)


def test_the_store_is_served_while_the_scheduler_stalls():
    """The third request's probe answers in the middle of the second's stall, and its fetch begins at once."""
    world = traced(
        World(
            [request(0, 0.0, A, 40, 1), request(1, 1.0, B, 40, 1), request(2, 1.0, C, 41, 1)],
            l1=12,
            l2=100,
            write="write_back",
            prefetch="wait_complete",
            store={"probe_latency_s": 2e-3},
        )
    )
    world.hold_in_store(C, 40).run()
    assert world.sim.stalls >= 1
    (fetch,) = slices(world, "fetch")
    # The probes of the first two come before it, one after the other.
    assert fetch[0] == near(1.0 + 2 * 2e-3)
    assert fetch[0] < 1.0 + 10e-3


# Ranks


@pytest.mark.parametrize(("pool", "writers"), [("mha", 2), ("mla", 1)])
def test_bytes_of_two_ranks(pool, writers):
    """Every rank copies and fetches its part; of latent rows, which all have, one rank writes them to the store."""
    requests = [request(0, 0.0, A, 41, 1), request(1, 1.0, B, 41, 1)]
    world = World(requests, prefetch="wait_complete", pool=pool, ranks=2, **STORED).hold_in_store(B, 40).run()
    links = {link.name: link.moved_bytes / PAGE_BYTES for link in world.plane.machine.links}
    assert world.plane.client.written_pages == 10
    assert links == pytest.approx(
        {
            "pcie_d2h": 10,
            "pcie_h2d": 10,
            "store_write": 10 * writers,
            "store_read": 10 * 2,
            "dram": 2 * (10 + 10) + 10 * writers + 10 * 2,
        }
    )


def test_a_shared_dram_is_divided_among_ranks():
    """Four ranks copy 10 pages each through memory that moves 2 pages a millisecond: 20 ms instead of 10."""
    world = traced(World([request(0, 0.0, A, 41, 1)], ranks=4, machine={"dram_bytes_per_s": 2 * LINK})).run()
    ((begin_s, end_s),) = slices(world, "backup")
    assert end_s - begin_s == near(20e-3)


# Workloads that wait


def test_turns_follow_answers_with_think_time():
    turns = [request(0, 0.0, A, 40, 3), request(1, 0.0, A, 60, 1, parent=0, think_s=0.5)]
    world = World(turns, linked=True).run()
    assert world.done[1].arrival_s == near(40e-3 + 2 * STEP_S + 0.5)
    assert world.done[1].device_hit_tokens == 40


def test_so_many_in_parallel():
    world = World([request(number, 0.0, A + 100 * number, 10, 1) for number in range(4)], max_parallel=1).run()
    assert [world.done[number].ended_s for number in range(4)] == [near(10e-3 * (number + 1)) for number in range(4)]
    assert all(world.ttft(number) == near(10e-3) for number in range(4))


def test_thousands_of_rejected_requests_pass_through():
    requests = [request(number, 0.0, A, 500, 1) for number in range(3000)]
    world = World([*requests, request(3000, 0.0, A, 10, 1)], max_parallel=2).run()
    stages = [world.done[number].stage for number in range(3001)]
    assert stages == [Stage.REJECTED] * 3000 + [Stage.DONE]


# What cannot go on is said


def test_an_operation_that_never_ends_is_noticed(monkeypatch):
    world = World([request(0, 0.0, A, 41, 1)], prefetch="wait_complete", **STORED).hold_in_store(A, 40)
    submit = world.plane.submit
    monkeypatch.setattr(world.plane, "submit", lambda op: None if op.kind is OpKind.FETCH else submit(op))
    with pytest.raises(Stuck, match="1 requests can never end"):
        world.run()


# At random


def random_world(seed: int) -> World:
    """A dozen requests with common prefixes, in a machine too small for them, on a store with troubles."""
    rng = random.Random(f"world/{seed}")
    l1 = rng.choice([16, 24, 40])
    requests: list[Request] = []
    at_s = 0.0
    for number in range(rng.choice([10, 25])):
        at_s += rng.choice([0.0, 0.002, 0.05, 0.3])
        first = A + 10_000 * rng.randrange(rng.choice([1, 3]))
        requests.append(request(number, at_s, first, rng.randint(1, 2 * l1), rng.choice([1, 3, 20])))
    faults = [
        "outage:0.1:0.3",
        "slow:0:1:30",
        "owner-lost:0.2:1",
        "lose:0.3:0:0.5",
        "partial:0:9:0.1",
        "refuse:0.1:0.5",
    ]
    capacity = rng.choice([30 * PAGE_BYTES, 1e12])
    store = {
        "eviction": rng.choice(["none", "lru", "lru_page_table", "watermark_lease", "watermark_cleaner", "ttl"]),
        "capacity_bytes": capacity,
        "p99_over_p50": rng.choice([1.0, 3.0]),
        "batch_latency_s": rng.choice([0.0, 1e-3]),
        "lease_s": 0.2,
        "client_ttl_s": 0.2,
        "owner_dead_s": 0.05,
        "master_dead_s": 0.1,
    }
    no_store = rng.random() < 0.2
    return World(
        requests,
        l1=l1,
        l2=rng.choice([0, l1 // 2, 2 * l1]),
        write=rng.choice(["write_through", "write_through_selective", "write_back"]),
        prefetch=rng.choice(["best_effort", "wait_complete", "timeout"]),
        prefetch_numbers=None,
        profile=rng.choice(["v0.5.7", "article", "v0.5.23"]),
        max_parallel=rng.choice([None, None, 2]),
        schedule=rng.choice(["fcfs", "lpm", "lof"]),
        limits={
            "chunked_prefill_tokens": rng.choice([None, 8, 32]),
            "max_running_requests": rng.choice([1, 4, 100]),
            "schedule_conservativeness": rng.choice([0.0, 1.0]),
        },
        store=None if no_store else store,
        faults=[] if no_store else rng.sample(faults, rng.randrange(3)),
        io_backend=rng.choice(["direct", "kernel"]),
        ranks=rng.choice([1, 2]),
        seed=seed,
    )


def recorded(world: World) -> list[tuple[Any, ...]]:
    """Run, and keep every operation the plane was given."""
    ops: list[tuple[Any, ...]] = []
    submit, cancel = world.plane.submit, world.plane.cancel

    def note(op: Op) -> None:
        ops.append(plain_op(op))
        submit(op)

    def note_cancel(op_id: int) -> None:
        ops.append(plain_op(Cancel(op_id)))
        cancel(op_id)

    world.plane.submit, world.plane.cancel = note, note_cancel  # type: ignore[method-assign]
    world.run()
    return ops


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_any_run_keeps_the_laws(first):
    """L4, L5, L12; bytes moved are pages moved; no time is counted twice."""
    for seed in range(first, first + 10):
        world = random_world(seed).run()
        invariants.check_at_rest(world.cache)
        counters, machine, plane = world.cache.counters, world.plane.machine, world.plane
        assert all(each.stage in (Stage.DONE, Stage.REJECTED) for each in world.done.values())
        for each in world.done.values():
            if each.stage is Stage.DONE and not each.retractions:
                assert each.device_hit_tokens + each.loaded_tokens + each.computed_tokens == each.input_tokens
        assert machine.d2h.moved_bytes == pytest.approx(counters.backed_up * PAGE_BYTES)
        assert machine.h2d.moved_bytes == pytest.approx(counters.loaded * PAGE_BYTES)
        busy_s = plane.device.busy_s + world.sim.stalled_s
        assert busy_s <= world.env.now + 1e-9
        assert plane.device.waited_s + plane.device.slowed_s <= plane.device.busy_s + 1e-9
        if plane.client is not None:
            assert plane.client.written_pages >= counters.stored


@pytest.mark.parametrize("seed", range(10))
def test_a_log_is_its_run(seed):
    """L6 and L7: again from the seed, and again from the log, to the last operation."""
    world, twin = random_world(seed), random_world(seed)
    ops = recorded(world)
    assert recorded(twin) == ops
    assert list(twin.log.entries()) == list(world.log.entries())
    fresh, requests = random_world(seed), {}
    activate = activator(PAGE)
    for each in random_world(seed).sim.arrivals._requests:
        requests[each.id] = each
    again = replay(world.log.entries(), fresh.engine, lambda number, at_s: activate(requests[number]))
    assert [plain_op(op) for op in again] == ops
