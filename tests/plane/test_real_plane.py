"""The real plane beyond the contract: bytes on every hop, what waits for what, failures, closing.

Everything is held against the order of events, nothing against a clock.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hicache_ref.config.layouts import OPERATORS
from hicache_ref.control.types import Completion, Op, OpKind, Progress, Released
from hicache_ref.data.compute import ModelComputer
from hicache_ref.data.plane import MOST_ERRORS, RealPlane
from hicache_ref.data.streams import Event
from hicache_ref.data.transfers import Arrival, Producers
from tests.data import fake_cuda

from .real import SOON_S, Idle, MemoryClient, Rig, Scripted, pools, until

LAYERS = 3


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    """Makes rigs, and closes them. What a test holds up it lets go in `free`, else closing is not waited for."""
    rigs: list[Rig] = []

    def make(*args: Any, **options: Any) -> Rig:
        rigs.append(Rig(*args, **options))
        return rigs[-1]

    yield make
    for made in rigs:
        made.plane.close(SOON_S)


class Gates:
    """Named gates. `pass_(what)` waits for that gate if there is one."""

    def __init__(self, *names: Any) -> None:
        self.gates = {name: threading.Event() for name in names}
        self.reached = {name: threading.Event() for name in names}

    def pass_(self, what: Any) -> None:
        if what in self.gates:
            self.reached[what].set()
            assert self.gates[what].wait(SOON_S)

    def open(self, what: Any) -> None:
        self.gates[what].set()


# Bytes


@pytest.mark.parametrize(("io_backend", "layout", "pool"), OPERATORS)
def test_bytes_survive_every_hop(rig, io_backend, layout, pool):
    """L1 to L2 to L3 and back by other slots, in any order of them; their neighbours stay as they were."""
    made = rig(io_backend=io_backend, layout=layout, pool=pool)
    names = [f"page {at}" for at in range(5)]
    l1, l2, l2_again, l1_again = [7, 3, 4, 30, 0], [9, 8, 2, 1, 31], [20, 3, 21, 5, 4], [12, 31, 13, 2, 1]
    made.paint_device(range(32), 100)
    made.paint_host(range(32), 200)
    made.paint_device(l1, 0)
    assert made.end(made.backup(l1, l2)) == Completion(1, 5)
    assert made.on_host(l2, 0) and made.on_device(l1, 0)
    assert made.end(made.submit(OpKind.STORE, l2, names=names)) == Completion(2, 5)
    assert made.end(made.submit(OpKind.PROBE, names=[*names, "unknown"])) == Completion(3, 5)
    assert made.end(made.submit(OpKind.FETCH, dst=l2_again, names=names)) == Completion(4, 5)
    assert made.on_host(l2_again, 0)
    load = made.load(l2_again, l1_again)
    assert not made.end(made.compute((load,))).failed
    assert made.end(load) == Completion(5, 5)
    assert made.on_device(l1_again, 0)
    for page in set(range(32)) - {*l1, *l1_again}:
        assert made.on_device([page], 100 + page)
    for page in set(range(32)) - {*l2, *l2_again}:
        assert made.on_host([page], 200 + page)


def test_what_is_fetched_short_is_told(rig):
    made = rig(store={"batch_pages": 2})
    made.paint_host(range(4), 0)
    made.end(made.submit(OpKind.STORE, range(4), names="abcd"))
    assert made.end(made.submit(OpKind.FETCH, dst=range(10, 16), names="abcdxy")).pages_ok == 4
    assert made.on_host(range(10, 14), 0)
    assert [report for report in made.reports if not report.ends] == [Progress(2, 2), Progress(2, 4)]


# The fence


def test_a_batch_waits_for_each_layer_and_no_further(rig):
    gates, seen = Gates(*((("load", layer)) for layer in range(LAYERS))), []

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        for layer in range(LAYERS):
            before_layer(layer)
            seen.append(layer)

    made = rig(Scripted(forward), gates.pass_)
    load = made.load([0, 1], [2, 3])
    batch = made.compute((load,))
    for layer in range(LAYERS):
        assert gates.reached["load", layer].wait(SOON_S)
        until(lambda layer=layer: len(seen) == layer, f"layer {layer - 1} computed")
        gates.open(("load", layer))
    made.end(batch)
    assert seen == [0, 1, 2]


def test_loading_and_computing_overlap(rig):
    """Each waits for the other at every layer: only together can they end."""
    computed = [threading.Event() for _ in range(LAYERS)]

    def copying(what: tuple[Any, ...]) -> None:
        if what[1] > 0:
            assert computed[what[1] - 1].wait(SOON_S), "nothing is computed while this loads"

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        for layer in range(LAYERS):
            before_layer(layer)
            computed[layer].set()

    made = rig(Scripted(forward), copying)
    load = made.load([0], [1])
    assert not made.end(made.compute((load,))).failed
    assert not made.ends[load].failed


def test_backups_and_loads_and_stores_overlap(rig):
    """Three copies that each wait until all three are under way."""
    meeting = threading.Barrier(3, timeout=SOON_S)
    client = MemoryClient()
    put = client.put
    client.put = lambda *args: meeting.wait() is not None and put(*args)  # type: ignore[method-assign]

    def copying(what: tuple[Any, ...]) -> None:
        if what in (("backup",), ("load", 0)):
            meeting.wait()

    made = rig(before=copying, client=client)
    ops = [made.backup([0], [1]), made.load([2], [3]), made.submit(OpKind.STORE, [4], names="x")]
    assert not any(made.end(op).failed for op in ops)


def test_a_batch_waits_for_no_other_load(rig):
    gates = Gates()
    made = rig(before=gates.pass_)
    first = made.load([0], [1])
    made.end(first)
    gates.gates["load", 0] = threading.Event()
    gates.reached["load", 0] = threading.Event()
    second = made.load([2], [3])
    assert gates.reached["load", 0].wait(SOON_S)
    assert not made.end(made.compute((first,))).failed
    assert second not in made.ends
    gates.open(("load", 0))
    made.end(second)


def test_the_fence_of_one_load(rig):
    gates = Gates(("load", 1))
    made = rig(before=gates.pass_)
    load = made.load([0], [1])
    fence = made.plane.fence(load)
    fence(0)
    passed = threading.Event()
    waiting = threading.Thread(target=lambda: (fence(1), passed.set()))
    waiting.start()
    assert gates.reached["load", 1].wait(SOON_S) and not passed.is_set()
    gates.open(("load", 1))
    waiting.join(SOON_S)
    assert passed.is_set()
    made.end(load)
    made.plane.fence(load)(2)
    made.plane.fence(4711)(0)


def test_an_operator_that_brings_all_layers_at_once():
    events = [Event() for _ in range(LAYERS)]
    arrival = Arrival(1, events)
    arrival.landed(0, 1)
    assert all(event.fired for event in events)


def test_the_fourth_load_waits_for_the_first():
    producers, taken = Producers(), []
    places = [producers.take() for _ in range(3)]
    waiting = threading.Thread(target=lambda: taken.append(producers.take()))
    waiting.start()
    places[1].set()
    waiting.join(0.02)
    assert not taken, "places are taken in turn"
    places[0].set()
    waiting.join(SOON_S)
    assert taken == [places[0]]


def test_on_the_device_three_loads_are_under_way_and_no_more(rig, monkeypatch):
    """Launching runs ahead of the device as far as that."""
    fake_cuda.FakeCuda.put_under(monkeypatch)
    gate, launched = threading.Event(), []

    def copying(what: tuple[Any, ...]) -> None:
        if what == ("load", 0):
            launched.append(what)
            fake_cuda.launch(lambda: gate.wait(SOON_S) and None)

    made = rig(before=copying)
    loads = [made.load([at], [at]) for at in range(5)]
    until(lambda: len(launched) == 3, "three loads launched")
    assert not made.plane.wait(0.02) and len(launched) == 3
    gate.set()
    made.end(loads[-1])
    assert list(made.ends) == loads
    made.plane.close(SOON_S)
    fake_cuda.end_all()


# Copies after the forward


def test_a_backup_waits_for_the_batch_that_makes_its_bytes(rig):
    """Upstream's #20611 and #38463."""
    gates = Gates("forward")

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        gates.pass_("forward")
        made.paint_device([5, 6], 0)
        made.seen.append("computed")

    made = rig(Scripted(forward))
    made.compute()
    backup = made.backup([5, 6], [1, 2])
    assert gates.reached["forward"].wait(SOON_S)
    assert not made.plane.wait(0.02) and not made.seen
    gates.open("forward")
    made.end(backup)
    assert made.seen == ["computed", ("backup",)]
    assert made.on_host([1, 2], 0)


def test_a_load_waits_for_the_batch_before_it(rig):
    gates = Gates("forward")
    made = rig(Scripted(lambda op, at, before_layer: gates.pass_("forward")))
    made.compute()
    load = made.load([0], [1])
    assert not made.plane.wait(0.02) and not made.seen
    gates.open("forward")
    made.end(load)


def test_a_backup_waits_for_one_step_of_a_decode_not_for_all(rig):
    gates = Gates(1, 3)

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        gates.pass_(at)
        made.seen.append(at)

    made = rig(Scripted(forward))
    decode = made.compute(steps=5, may_stop=True)
    assert gates.reached[1].wait(SOON_S)
    backup = made.backup([0], [1])
    assert not made.plane.wait(0.02) and made.seen == [0]
    gates.open(1)
    made.end(backup)
    assert made.seen.index(("backup",)) > made.seen.index(1) and decode not in made.ends
    gates.open(3)
    assert made.end(decode) == Completion(decode, 5)


@pytest.mark.parametrize("held", [False, True])
def test_a_copy_after_a_batch_that_has_failed(rig, held):
    """Its moment is over, whenever it failed."""
    gates = Gates("forward") if held else Gates()

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        gates.pass_("forward")
        raise ValueError("no")

    made = rig(Scripted(forward))
    batch = made.compute()
    if not held:
        made.end(batch)
    backup = made.backup([0], [1])
    if held:
        gates.open("forward")
    assert not made.end(backup).failed
    assert made.end(batch).failed


def test_a_copy_does_not_wait_for_the_batch_after_it(rig):
    gates = Gates("forward")
    made = rig(Scripted(lambda op, at, before_layer: gates.pass_("forward")))
    backup, load = made.backup([0], [1]), made.load([2], [3])
    batch = made.compute()
    made.end(backup)
    made.end(load)
    assert batch not in made.ends
    gates.open("forward")


# Poison


def reading(made: list[Rig], fenced: bool, read: list[torch.Tensor]) -> Scripted:
    """A batch that reads pages 4 and 5, whether or not it waits for their load."""

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        for layer in range(LAYERS):
            if fenced:
                before_layer(layer)
            read.append(made[0].device.whole[:, layer, [4, 5]].clone())

    return Scripted(forward)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_missing_fence_shows_as_nan(rig, fenced):
    """The pages hold old bytes that look right; with poison on, who reads them too early reads NaN."""
    gates, made, read = Gates(("load", 1)), [], []
    made.append(rig(reading(made, fenced, read), gates.pass_, poison=True))
    made[0].paint_device([4, 5], 50)
    made[0].paint_host([0, 1], 0)
    load = made[0].load([0, 1], [4, 5])
    batch = made[0].compute((load,))
    assert gates.reached["load", 1].wait(SOON_S)
    if fenced:
        until(lambda: len(read) == 1, "the first layer read")
    else:
        until(lambda: len(read) == LAYERS, "all layers read, too early")
    gates.open(("load", 1))
    made[0].end(batch)
    made[0].end(load)
    assert torch.stack(read).isnan().any().item() is not fenced
    assert made[0].on_device([4, 5], 0)


def test_poison_fills_both_pools_and_destinations_at_submit(rig):
    client = MemoryClient()
    client.hold = threading.Event()
    gates = Gates(("backup",))
    made = rig(before=gates.pass_, client=client, poison=True)
    assert made.device.whole.isnan().all() and made.host.view(1).isnan().all()
    made.paint_host(range(6), 0)
    made.paint_device(range(6), 0)
    backup = made.backup([0], [2])
    fetch = made.submit(OpKind.FETCH, dst=[3], names="x")
    assert made.host.view(0)[:, [2, 3]].isnan().all() and made.on_host([0, 1], 0)
    gates.open(("backup",))
    client.hold.set()
    made.end(backup)
    made.end(fetch)
    assert made.on_host([2], 0), "page 2 holds what page 0 of the device held"


def test_bytes_of_byte_formats_are_poisoned_too():
    device, _ = pools(4)
    device.poison(np.array([1]))
    assert device.whole[:, :, 1].isnan().all() and not device.whole[:, :, 0].isnan().any()


# Decoding and cancelling


def test_a_cancelled_decode_ends_after_the_step_under_way(rig):
    gates = Gates(2)
    steps = []

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        steps.append(at)
        gates.pass_(at)

    made = rig(Scripted(forward))
    decode = made.compute(steps=10, may_stop=True)
    assert gates.reached[2].wait(SOON_S)
    made.plane.cancel(decode)
    gates.open(2)
    assert made.end(decode) == Completion(decode, 3)
    assert steps == [0, 1, 2]


def test_on_the_device_a_decode_is_launched_one_step_ahead(rig, monkeypatch):
    """Not all of it at once: a cancel would come too late."""
    fake_cuda.FakeCuda.put_under(monkeypatch)
    gates, launched = Gates(0, 1), []

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        launched.append(at)
        fake_cuda.launch(lambda: gates.pass_(at))

    made = rig(Scripted(forward))
    decode = made.compute(steps=10, may_stop=True)
    assert gates.reached[0].wait(SOON_S)
    until(lambda: launched == [0, 1], "a step launched ahead")
    assert not made.plane.wait(0.02) and launched == [0, 1]
    gates.open(0)
    assert gates.reached[1].wait(SOON_S)
    until(lambda: launched == [0, 1, 2], "the next")
    made.plane.cancel(decode)
    gates.open(1)
    assert made.end(decode).pages_ok <= 4
    made.plane.close(SOON_S)
    fake_cuda.end_all()


def test_a_batch_is_turned_into_rows_when_it_is_submitted(rig):
    """Later the engine's state is another one."""
    state, rows_seen, logits_seen = ["at submit"], [], []
    gates = Gates(("load", 0))

    class Rows:
        def __init__(self, op: Op) -> None:
            self.known = state[0]

        def rows(self, step: int) -> list[Any]:
            return [(self.known, step)]

        def computed(self, step: int, logits: Any) -> None:
            logits_seen.append((step, logits))

    class Model:
        def forward(self, rows: Any, before_layer: Callable[[int], None]) -> Any:
            before_layer(0)
            rows_seen.extend(rows)
            return f"logits of {rows[0][1]}"

    made = rig(ModelComputer(Model(), Rows), gates.pass_)
    load = made.load([0], [1])
    batch = made.compute((load,), steps=2)
    state[0] = "later"
    gates.open(("load", 0))
    assert made.end(batch) == Completion(batch, 2)
    assert rows_seen == [("at submit", 0), ("at submit", 1)]
    assert logits_seen == [(0, "logits of 0"), (1, "logits of 1")]


# What fails


def test_a_copy_that_raises_fails_and_the_next_does_not(rig):
    broken = {"on": True}

    def copying(what: tuple[Any, ...]) -> None:
        if broken["on"] and what in (("load", 1), ("backup",)):
            raise OSError(f"{what[0]} lost power")

    made = rig(before=copying)
    load, backup = made.load([0, 1], [2, 3]), made.backup([4], [5])
    batch = made.compute((load,))
    assert made.end(load) == Completion(load, 0, True)
    assert made.end(backup) == Completion(backup, 0, True)
    assert made.end(batch) == Completion(batch, 0, True)
    assert list(made.ends).index(load) < list(made.ends).index(batch)
    assert made.error(load) == "OSError: load lost power"
    assert made.error(backup) == "OSError: backup lost power"
    assert made.error(batch) == f"LoadFailed: LOAD {load} has failed: load lost power"
    # Nor does a batch that comes later compute on what never arrived.
    late = made.compute((load,))
    assert made.end(late).failed and f"LOAD {load} has failed" in made.error(late)
    broken["on"] = False
    assert not made.end(made.load([0, 1], [2, 3])).failed
    assert not made.end(made.backup([4], [5])).failed
    assert not made.end(made.compute()).failed


def test_a_batch_that_waits_for_a_load_fails_with_it(rig):
    """It is let go, also where the layer it waits for will never come."""
    seen = []

    def copying(what: tuple[Any, ...]) -> None:
        if what == ("load", 1):
            until(lambda: seen == [0], "the batch to wait for layer 1")
            raise OSError("the load lost power")

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        for layer in range(LAYERS):
            before_layer(layer)
            seen.append(layer)

    made = rig(Scripted(forward), copying)
    load = made.load([0], [1])
    batch = made.compute((load,))
    assert made.end(batch) == Completion(batch, 0, True)
    assert made.end(load).failed
    assert seen == [0]


def test_pages_that_are_not_there_are_a_failed_copy(rig):
    made = rig()
    assert made.end(made.load([99], [0])).failed
    assert made.end(made.backup([0], [99])).failed
    assert "the pool has 0 to 31" in made.error(1)


def test_a_forward_that_raises_says_which_steps_were_done(rig):
    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        if at == 3:
            raise RuntimeError("out of luck")

    made = rig(Scripted(forward))
    decode = made.compute(steps=5, may_stop=True)
    assert made.end(decode) == Completion(decode, 3, True)
    assert made.error(decode) == "RuntimeError: out of luck"


def test_a_batch_that_cannot_be_begun_has_failed(rig):
    class Refuses(Idle):
        def begin(self, op: Op) -> Any:
            raise KeyError("no such request")

    made = rig(Refuses())
    assert made.end(made.compute()).failed
    assert "no such request" in made.error(1)


def test_a_store_that_raises_is_a_failed_completion(rig):
    made = rig()
    made.client.fails = True
    for kind, side in ((OpKind.STORE, "src"), (OpKind.FETCH, "dst")):
        op = made.submit(kind, names="ab", **{side: [0, 1]})
        assert made.end(op) == Completion(op, 0, True)
        assert "0 of 2 pages" in made.error(op)


def test_a_hanging_store_is_left_and_says_when_it_lets_go(rig):
    client = MemoryClient()
    client.hold = threading.Event()
    made = rig(client=client, store={"call_timeout_s": 0.02})
    fetch = made.submit(OpKind.FETCH, dst=[0, 1], names="ab")
    assert made.end(fetch) == Completion(fetch, 0, True, True)
    assert not made.end(made.backup([0], [5])).failed
    client.hold.set()
    until(lambda: made.collect() or Released(fetch) in made.reports, "the pages to be released")


def test_workers_that_say_too_much_are_not_believed():
    """One end an operation, no progress after it, no release of what does not linger."""
    device, host = pools(4)

    class Talkative:
        def __init__(self, report: Callable[[Any], None]) -> None:
            self.report = report

        def submit(self, op: Op) -> None:
            said = [Progress(op.id, 1), Released(op.id), Completion(op.id, 1, True, True), Completion(op.id, 2)]
            for report in [*said, Progress(op.id, 2), Released(op.id), Released(op.id), Completion(99, 1)]:
                self.report(report)

        def cancel(self, op_id: int) -> None: ...

        def close(self, timeout_s: float) -> None: ...

    plane = RealPlane(device, Idle(), host, storage=Talkative)
    plane.submit(Op(1, OpKind.FETCH, 2, dst=np.array([0, 1]), keys="ab"))
    assert plane.poll() == [Progress(1, 1), Completion(1, 1, True, True), Released(1)]
    plane.close()


def test_without_host_memory_there_is_nothing_to_copy():
    device, _ = pools(4)
    plane = RealPlane(device, Idle())
    assert plane.capabilities.storage is False
    plane.submit(Op(1, OpKind.LOAD, 1, np.array([0]), np.array([0])))
    plane.submit(Op(2, OpKind.COMPUTE, 1, batch=type("Batch", (), {"loads": (), "may_stop": False})))
    assert plane.wait(SOON_S)
    until(lambda: plane.in_flight == 0, "the batch")
    assert plane.poll() == [Completion(1, 0, True), Completion(2, 1)]
    assert plane.errors[0].what == "ValueError: no LOAD here: this plane does COMPUTE"
    plane.close()


def test_errors_are_kept_within_bounds(rig):
    made = rig()
    for _ in range(MOST_ERRORS + 5):
        made.submit(OpKind.LOAD, [0], [99])
    until(lambda: not made.plane.in_flight, "all loads")
    assert len(made.plane.errors) == MOST_ERRORS


# Waiting


def test_wait_returns_when_there_is_something(rig):
    gates = Gates(("backup",))
    made = rig(before=gates.pass_)
    assert made.plane.wait(0.0) is False
    made.backup([0], [1])
    assert made.plane.wait(0.01) is False
    threading.Timer(0.01, gates.open, [("backup",)]).start()
    assert made.plane.wait(SOON_S) is True
    assert made.plane.wait() is True, "what was not polled is still there"
    assert made.plane.poll() == [Completion(1, 1)]


# Closing


def give_everything(made: Rig) -> list[int]:
    """Three of each kind."""
    ops = []
    for _ in range(3):
        load = made.load([0, 1], [2, 3])
        ops += [load, made.backup([4], [5]), made.compute((load,)), made.compute(steps=1000, may_stop=True)]
        ops += [made.submit(OpKind.STORE, [6], names="a"), made.submit(OpKind.FETCH, dst=[7], names="a")]
        ops += [made.submit(OpKind.PROBE, names="ab"), made.submit(OpKind.CLEAR, pages=0)]
    return ops


@pytest.mark.parametrize("held", [[("load", 1)], [("backup",)], ["forward"], [("load", 1), ("backup",), "forward"]])
def test_closing_with_everything_in_flight(rig, held):
    """Whatever hangs, every operation has one end, and nothing comes after; what comes later fails at once."""
    gates, client = Gates(*held), MemoryClient()
    client.hold = threading.Event()

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        before_layer(0)
        gates.pass_("forward")

    made = rig(Scripted(forward), gates.pass_, client=client)
    ops = give_everything(made)
    made.plane.close(0.05)
    made.collect()
    assert sorted(made.ends) == ops
    assert made.plane.in_flight == 0
    late = [made.backup([0], [1]), made.compute(), made.submit(OpKind.PROBE, names="a")]
    made.collect()
    assert all(made.ends[op] == Completion(op, 0, True) for op in late)
    assert "the plane is closed" in made.error(late[0])
    client.hold.set()
    for what in held:
        gates.open(what)
    for stream in made.plane._streams:
        assert stream.join(SOON_S)
    made.collect()
    assert len(made.reports) - len(made.ends) == sum(isinstance(report, Released) for report in made.reports)


def test_closing_finishes_what_runs_and_keeps_what_was_stored(rig):
    client, gates = MemoryClient(), Gates(("load", 1), ("backup",), "forward")
    client.hold = threading.Event()
    made = rig(Scripted(lambda op, at, before_layer: gates.pass_("forward")), gates.pass_, client=client)
    made.paint_host([6], 0)
    load, backup = made.load([0], [1]), made.backup([2], [3])
    decode = made.compute(steps=100, may_stop=True)
    store = made.submit(OpKind.STORE, [6], names=["kept"])
    for what in (*gates.reached.values(), client.called):
        assert what.wait(SOON_S)
    closing = threading.Thread(target=made.plane.close, args=[SOON_S])
    closing.start()
    until(lambda: made.plane._closed, "closing to begin")
    for what in gates.gates:
        gates.open(what)
    client.hold.set()
    closing.join(SOON_S)
    made.collect()
    assert [made.ends[op].failed for op in (load, backup, decode, store)] == [False] * 4
    assert 1 <= made.ends[decode].pages_ok < 100
    assert "kept" in client.pages and client.closed
    made.plane.close()


# Any mix, and some of it fails


@pytest.mark.parametrize("seed", range(6))
def test_one_end_each_whatever_fails_and_whenever_it_is_closed(rig, seed):
    rng = random.Random(seed)

    def copying(what: tuple[Any, ...]) -> None:
        if rng.random() < 0.1:
            raise OSError("bad luck")

    def forward(op: Op, at: int, before_layer: Callable[[int], None]) -> None:
        for layer in range(LAYERS):
            before_layer(layer)
        copying(())

    made = rig(Scripted(forward), copying, poison=bool(seed % 2), store={"batch_pages": 2})
    ops: list[int] = []
    for _ in range(10):
        ops += give_everything(made)
        made.client.fails = rng.random() < 0.2
        made.plane.cancel(rng.choice(ops))
        if rng.random() < 0.5:
            made.plane.wait(0.001)
        made.collect()
    made.plane.close(SOON_S)
    made.collect()
    assert sorted(made.ends) == ops
    for op, end in made.ends.items():
        assert not end.failed or any(failure.op_id == op for failure in made.plane.errors)


# What is counted


def test_times_and_bytes_are_told(rig):
    clock = iter(range(1000))
    gates = Gates(("load", 0))
    made = rig(before=gates.pass_, clock=lambda: float(next(clock)), most_slices=7)
    load = made.load([0, 1], [2, 3])
    batch = made.compute((load,))
    assert gates.reached["load", 0].wait(SOON_S)
    assert not made.plane.wait(0.02)
    gates.open(("load", 0))
    made.end(batch)
    made.end(made.backup([0, 1, 2], [4, 5, 6]))
    made.end(made.submit(OpKind.STORE, [4, 5], names="ab"))
    made.end(made.submit(OpKind.FETCH, dst=[8, 9, 10], names="abc"))
    made.end(made.submit(OpKind.PROBE, names="ab"))
    meters, page = made.plane.meters, made.device.page_bytes
    moved = {link.name: link.moved_bytes for link in meters.links}
    assert moved == {"pcie_h2d": 2 * page, "pcie_d2h": 3 * page, "store_read": 2 * page, "store_write": 2 * page}
    assert (meters.store.read_pages, meters.store.written_pages, meters.store.failed_calls) == (2, 2, 1)
    assert meters.waited_s > 0.005
    assert meters.busy_s > 0
    assert {kind for kind, count in meters.op_counts.items() if count} == set(OpKind) - {OpKind.CLEAR}
    assert [(s.track, s.pages) for s in made.plane.slices] == [
        ("load", 2), ("compute", 1), ("backup", 3), ("store", 2), ("fetch", 3), ("probe", 2)
    ]  # fmt: skip
    assert all(s.start_s < s.end_s for s in made.plane.slices)
    for _ in range(5):
        made.end(made.backup([0], [1]))
    assert len(made.plane.slices) == 7, "no more than were asked for"
