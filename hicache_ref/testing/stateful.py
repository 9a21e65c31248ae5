"""The machine for Hypothesis, which finds the shortest story that breaks a law. Needs hypothesis.

from hicache_ref.testing.stateful import HiCacheStateMachine
TestMine = HiCacheStateMachine.TestCase
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ..control.rules import PROFILES
from ..control.types import OpKind
from ..policy.eviction import EVICTION
from ..policy.prefetch import PREFETCH
from ..policy.write import WRITE
from .machine import FOREVER_S, Machine
from .session import Setup

setups = st.builds(
    Setup,
    profile=st.sampled_from(list(PROFILES)),
    write=st.sampled_from(list(WRITE)),
    eviction=st.sampled_from(list(EVICTION)),
    prefetch=st.sampled_from([None, *PREFETCH]),
    page_tokens=st.sampled_from([1, 4]),
    l1_pages=st.integers(1, 12),
    l2_pages=st.integers(0, 24),
    load_back_threshold_tokens=st.just(1),
    prefetch_threshold_tokens=st.sampled_from([1, 4]),
    prefetch_capacity_tokens=st.sampled_from([4, 1 << 20]),
    keyspace=st.sampled_from(["tokens", "pairs", "atoms"]),
)
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)
picks = st.integers(0, 7)
pages = st.integers(0, 12)
outcomes = st.none() | pages
"""Good pages of an operation that ends; None: as many as there can be."""


class HiCacheStateMachine(RuleBasedStateMachine):
    """Every rule is a thing that can happen; which request or operation it happens to is the `pick`-th."""

    machine: Machine

    @initialize(setup=setups, early=st.booleans())
    def begin(self, setup: Setup, early: bool) -> None:
        self.machine = Machine(setup)
        self.machine.reads_early = lambda op: early
        self.ready: set[int] = set()

    # Requests

    @rule(symbols=prompts, namespace=st.sampled_from([None, "a"]), priority=st.integers(0, 2))
    def arrive(self, symbols: list[int], namespace: str | None, priority: int) -> None:
        self.machine.arrive(symbols, namespace, priority)
        self.machine.pump()

    @precondition(lambda self: self.machine.waiting)
    @rule(pick=picks)
    def poll(self, pick: int) -> None:
        rid = _the(pick, self.machine.waiting)
        if self.machine.poll(rid):
            self.ready.add(rid)
        self.machine.pump()

    @precondition(lambda self: any(map(self.machine.may_ask_again, self.machine.waiting)))
    @rule(pick=picks)
    def ask_again(self, pick: int) -> None:
        rid = _the(pick, filter(self.machine.may_ask_again, self.machine.waiting))
        self.machine.ask_again(rid)
        self.ready.discard(rid)
        self.machine.pump()

    @precondition(lambda self: self.machine.waiting)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        self.machine.abort(_the(pick, self.machine.waiting))
        self.machine.pump()

    @precondition(lambda self: self.ready & self.machine.waiting.keys())
    @rule(pick=picks, most=st.none() | pages, copies=outcomes)
    def admit(self, pick: int, most: int | None, copies: int | None) -> None:
        self._copies_end(copies)
        self.machine.admit(_the(pick, sorted(self.ready & self.machine.waiting.keys())), most)
        self.machine.pump()

    @precondition(lambda self: any(map(self.machine.may_compute, self.machine.running)))
    @rule(pick=picks, chunked=st.booleans())
    def prefill(self, pick: int, chunked: bool) -> None:
        self.machine.prefill(_the(pick, filter(self.machine.may_compute, self.machine.running)), chunked)
        self.machine.pump()

    @precondition(lambda self: self.machine.running)
    @rule(pick=picks, more=st.integers(1, 4), output=st.lists(st.integers(0, 1), max_size=3), copies=outcomes)
    def grow(self, pick: int, more: int, output: list[int], copies: int | None) -> None:
        self._copies_end(copies)
        self.machine.grow(_the(pick, self.machine.running), more, output)
        self.machine.pump()

    @precondition(lambda self: any(map(self.machine.may_compute, self.machine.running)))
    @rule(pick=picks)
    def finish(self, pick: int) -> None:
        self.machine.finish(_the(pick, filter(self.machine.may_compute, self.machine.running)))
        self.machine.pump()

    @precondition(lambda self: self.machine.running)
    @rule(pick=picks)
    def discard(self, pick: int) -> None:
        self.machine.discard(_the(pick, self.machine.running))
        self.machine.pump()

    # Operations in flight, and time

    @rule()
    def start_loading(self) -> None:
        self.machine.start_loading()
        self.machine.pump()

    @precondition(lambda self: self.machine.in_flight(OpKind.FETCH))
    @rule(pick=picks, good=pages)
    def progress(self, pick: int, good: int) -> None:
        self.machine.progress(_the(pick, self.machine.in_flight(OpKind.FETCH)), good)

    @precondition(lambda self: self.machine.in_flight())
    @rule(pick=picks, good=outcomes)
    def complete(self, pick: int, good: int | None) -> None:
        op_id = _the(pick, self.machine.in_flight())
        loads = op_id in self.machine.in_flight(OpKind.LOAD)
        self.machine.complete(op_id, None if loads else good)
        self.machine.pump()

    @rule()
    def tick(self) -> None:
        self.machine.tick()
        self.machine.pump()

    @rule(seconds=st.sampled_from([0.5, FOREVER_S]))
    def advance(self, seconds: float) -> None:
        self.machine.advance(seconds)

    # The store

    @rule(symbols=prompts)
    def store_has(self, symbols: list[int]) -> None:
        self.machine.store_has(symbols)

    @rule(count=st.integers(1, 8))
    def store_drops(self, count: int) -> None:
        self.machine.store_drops(count)

    @rule(refusing=st.booleans())
    def store_refuses(self, refusing: bool) -> None:
        self.machine.store_refuses(refusing)

    @rule(symbols=prompts)
    def store_lies(self, symbols: list[int]) -> None:
        self.machine.store_lies(symbols)

    def teardown(self) -> None:
        """Whatever has happened, everything can end."""
        if hasattr(self, "machine") and not self.machine.broken:
            self.machine.drain()

    def _copies_end(self, good: int | None) -> None:
        """How the copies end that write_back's eviction waits for."""
        machine = self.machine

        def serve(op_ids: tuple[int, ...]) -> None:
            for op_id in op_ids:
                machine.session.on(machine.plane.complete(op_id, good))

        machine.on_wait = serve


def _the(pick: int, ids: Iterable[int]) -> int:
    known = list(ids)
    return known[pick % len(known)]
