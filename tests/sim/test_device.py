"""The device: layers that compute as they arrive, copies that slow them down, decode that stops between two steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simpy import Environment

from hicache_ref.control.active import Active
from hicache_ref.control.batches import Decode, Prefill
from hicache_ref.control.running import Running
from hicache_ref.control.types import Op, OpKind

from .world import LAYERS, PAGE_S, STEP_S, TOKEN_S, costs, make_plane

thorough = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


class Machine:
    """A plane, and when what ended on it."""

    def __init__(self, **options) -> None:
        self.env = Environment()
        self.plane = make_plane(self.env, **options)
        self.ends: dict[int, float] = {}
        self.steps: dict[int, int] = {}
        self.plane.deliver = self._note

    def _note(self, report, computed: bool) -> None:
        self.ends[report.op_id] = self.env.now
        self.steps[report.op_id] = report.pages_ok

    def at(self, time_s: float, call, *args) -> None:
        self.env.timeout(time_s - self.env.now).callbacks.append(lambda _: call(*args))

    def copy(self, op_id: int, kind: OpKind, pages: int, at_s: float = 0.0) -> None:
        self.at(at_s, self.plane.submit, Op(op_id, kind, pages))

    def prefill(self, op_id: int, tokens: int, at_s: float = 0.0, loads: tuple[int, ...] = ()) -> None:
        batch = Prefill([Active(0, b"", tokens, 1, 0.0)], [(0, tokens)], loads)
        self.at(at_s, self.plane.submit, Op(op_id, OpKind.COMPUTE, 1, batch=batch))

    def decode(self, op_id: int, steps: int, at_s: float = 0.0, context: int = 100) -> None:
        request = Active(0, b"", context, steps, 0.0)
        request.kv_tokens, running = context, Running(4, 4096)
        running.join(request)
        batch = Decode(running, 1, steps, context)
        self.at(at_s, self.plane.submit, Op(op_id, OpKind.COMPUTE, steps, batch=batch))

    def cancel(self, op_id: int, at_s: float) -> None:
        self.at(at_s, self.plane.cancel, op_id)

    def run(self) -> dict[int, float]:
        self.env.run()
        return self.ends


# Layer by layer


def layer_by_layer(start_s: float, work_s: float, loads: list[tuple[float, float]], parts: int = LAYERS) -> float:
    """Layer i computes when layer i - 1 has, and layer i of every load has arrived."""
    now_s = start_s
    for layer in range(1, parts + 1):
        arrived_s = [begin_s + (end_s - begin_s) * layer / parts for begin_s, end_s in loads]
        now_s = max([now_s, *arrived_s]) + work_s / parts
    return now_s


@thorough
@given(
    loads=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=3),
    tokens=st.integers(1, 80),
    begins=st.integers(0, 60),
)
def test_a_batch_overlaps_its_loads(loads, tokens, begins):
    """Against the recurrence, for loads that began before the batch or wait behind one another."""
    machine = Machine()
    spans, free_s = [], 0.0
    loads = sorted(loads)
    for number, (at, pages) in enumerate(loads):
        machine.copy(number, OpKind.LOAD, pages, at * 1e-3)
        begin_s = max(free_s, at * 1e-3)
        free_s = begin_s + pages * PAGE_S
        spans.append((begin_s, free_s))
    start_s = max(begins, loads[-1][0]) * 1e-3 + 1e-6
    machine.prefill(99, tokens, start_s, tuple(range(len(loads))))
    ends = machine.run()
    assert [ends[number] for number in range(len(loads))] == pytest.approx([end_s for _, end_s in spans])
    alive = [span for span in spans if span[1] > start_s]
    assert ends[99] == pytest.approx(layer_by_layer(start_s, tokens * TOKEN_S, alive), abs=1e-9)
    device = machine.plane.device
    assert device.busy_s == pytest.approx(ends[99] - start_s)
    assert device.waited_s == pytest.approx(ends[99] - start_s - tokens * TOKEN_S, abs=1e-9)


def test_by_hand():
    """40 ms of loading, 20 of computing: the last layer computes when the last quarter is there. And the other way."""
    for pages, tokens, end_s in ((40, 20, 45e-3), (20, 40, 45e-3), (40, 40, 50e-3), (4, 400, 401e-3)):
        machine = Machine()
        machine.copy(1, OpKind.LOAD, pages)
        machine.prefill(2, tokens, loads=(1,))
        assert machine.run()[2] == pytest.approx(end_s)


def test_without_layers_all_of_a_load_comes_first():
    machine = Machine(io_backend="kernel_ascend")
    machine.copy(1, OpKind.LOAD, 40)
    machine.prefill(2, 20, loads=(1,))
    assert machine.run()[2] == pytest.approx(60e-3)


def test_only_the_loads_of_a_batch_hold_it_up():
    machine = Machine()
    machine.copy(1, OpKind.LOAD, 10)
    machine.copy(2, OpKind.LOAD, 90)
    machine.prefill(3, 20, loads=(1,))
    assert machine.run()[3] == pytest.approx(10e-3 / 4 + 20e-3)


# Copies on the processors that compute

SLOW = {"io_backend": "kernel", "machine": {"kernel_blocks": 33.0, "sms": 132.0}}
SHARE = 0.25


def slowed(start_s: float, work_s: float, copies: list[tuple[float, float]]) -> float:
    """A second beside a copy does 0.75 s of work, however many copies there are."""
    edges = sorted({start_s, math.inf, *(edge for span in copies for edge in span if edge > start_s)})
    for begin_s, end_s in pairwise(edges):
        rate = 1.0 - SHARE * any(at <= begin_s and end_s <= until for at, until in copies)
        if begin_s + work_s / rate <= end_s:
            return begin_s + work_s / rate
        work_s -= (end_s - begin_s) * rate
    raise AssertionError


@thorough
@given(
    backups=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), max_size=3),
    loads=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), max_size=2),
    tokens=st.integers(1, 100),
    begins=st.integers(0, 50),
)
def test_kernel_copies_slow_a_batch_exactly(backups, loads, tokens, begins):
    """Copies it does not wait for, in both directions, before it, beside it and after it."""
    machine, spans = Machine(**SLOW), []
    for kind, copies, first in ((OpKind.BACKUP, sorted(backups), 0), (OpKind.LOAD, sorted(loads), 10)):
        free_s = 0.0
        for number, (at, pages) in enumerate(copies):
            machine.copy(first + number, kind, pages, at * 1e-3)
            begin_s = max(free_s, at * 1e-3)
            free_s = begin_s + pages * PAGE_S
            spans.append((begin_s, free_s))
    # As begun: a copy that follows another at once is one copy.
    start_s = begins * 1e-3 + 1e-6
    machine.prefill(99, tokens, start_s)
    end_s = machine.run()[99]
    assert end_s == pytest.approx(slowed(start_s, tokens * TOKEN_S, merged(spans)), abs=1e-9)
    device = machine.plane.device
    assert device.busy_s == pytest.approx(end_s - start_s)
    assert device.slowed_s == pytest.approx(end_s - start_s - tokens * TOKEN_S, abs=1e-9)
    assert device.waited_s == pytest.approx(0.0, abs=1e-9)


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans that touch or overlap, as one."""
    whole: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans):
        if whole and begin_s <= whole[-1][1] + 1e-12:
            whole[-1] = (whole[-1][0], max(end_s, whole[-1][1]))
        else:
            whole.append((begin_s, end_s))
    return whole


@thorough
@given(pages=st.integers(1, 80), tokens=st.integers(1, 80))
def test_own_loads_slow_a_batch_nearly_as_much_as_they_would(pages, tokens):
    """The closed form takes the slowest layer at full speed: it is early by no more than the load slows the work."""
    machine = Machine(**SLOW)
    machine.copy(1, OpKind.LOAD, pages)
    machine.prefill(2, tokens, loads=(1,))
    ours_s, now_s, span = machine.run()[2], 0.0, (0.0, pages * PAGE_S)
    for layer in range(1, LAYERS + 1):
        now_s = slowed(max(now_s, span[1] * layer / LAYERS), tokens * TOKEN_S / LAYERS, [span])
    late_s = SHARE / (1 - SHARE) * min(tokens * TOKEN_S, pages * PAGE_S)
    assert now_s - late_s - 1e-9 <= ours_s <= now_s + 1e-9


def test_copy_engines_slow_nobody():
    machine = Machine(io_backend="direct")
    machine.copy(1, OpKind.BACKUP, 30)
    machine.prefill(2, 20)
    assert machine.run()[2] == pytest.approx(20e-3)
    assert machine.plane.device.slowed_s == 0.0


def test_a_decode_is_slowed_too():
    machine = Machine(**SLOW)
    machine.copy(1, OpKind.BACKUP, 40)
    machine.decode(2, 10)
    assert machine.run()[2] == pytest.approx(10 * STEP_S + SHARE * 40e-3)


# Stopping

CONTEXT_S = 1e-4


@thorough
@given(steps=st.integers(1, 40), at=st.floats(0.0, 1.0), again=st.booleans(), context=st.integers(0, 300))
def test_a_decode_stops_at_the_end_of_its_step(steps, at, again, context):
    """At the first boundary after the cancel, as the compute model has it; a second cancel changes nothing."""
    machine, model = Machine(context_s=CONTEXT_S), costs(CONTEXT_S)
    machine.decode(1, steps, 0.0, context)
    machine.cancel(1, at)
    if again:
        machine.cancel(1, at + 1e-3)
    end_s = machine.run()[1]
    done = machine.steps[1]
    assert 1 <= done <= steps
    assert end_s == pytest.approx(model.decode_s(1, context, done))
    if at >= model.decode_s(1, context, steps):
        assert done == steps
    else:
        assert model.decode_s(1, context, done - 1) <= at + 2e-9
        assert done == steps or end_s >= at


def test_a_slowed_decode_stops_after_the_work_of_its_step():
    """40 ms beside a copy are 30 of work: at 32 ms the third step is under way, and at 40 ms it is done."""
    machine = Machine(**SLOW)
    machine.copy(1, OpKind.BACKUP, 400)
    machine.decode(2, 10)
    machine.cancel(2, 32e-3)
    assert machine.run()[2] == pytest.approx(40e-3)
    assert machine.steps[2] == 3


def test_a_prefill_goes_on():
    machine = Machine()
    machine.prefill(1, 50)
    machine.cancel(1, 10e-3)
    assert machine.run()[1] == pytest.approx(50e-3)


def test_a_long_decode_is_a_handful_of_events():
    machine = Machine(context_s=1e-6)
    machine.decode(1, 100_000)
    machine.run()
    assert machine.ends[1] == pytest.approx(costs(1e-6).decode_s(1, 100, 100_000))
    assert next(machine.env._eid) < 10
