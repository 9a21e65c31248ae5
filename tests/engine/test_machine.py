"""Hypothesis looks for the shortest story of an engine that breaks a law."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hicache_ref.control.budget import SchedulerLimits
from hicache_ref.control.rules import PROFILES
from hicache_ref.control.types import OpKind
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.schedule import SCHEDULE
from hicache_ref.policy.write import WRITE
from hicache_ref.testing.engine_machine import EngineMachine, EngineSetup
from hicache_ref.testing.machine import FOREVER_S
from hicache_ref.testing.session import Setup


@st.composite
def setups(draw: st.DrawFn) -> EngineSetup:
    page = draw(st.sampled_from([1, 4]))
    pages = draw(st.integers(12 // page, 24))
    cache = Setup(
        profile=draw(st.sampled_from(list(PROFILES))),
        write=draw(st.sampled_from(list(WRITE))),
        prefetch=draw(st.sampled_from([None, *PREFETCH])),
        page_tokens=page,
        l1_pages=pages,
        l2_pages=draw(st.sampled_from([0, 1, pages, 2 * pages])),
        prefetch_threshold_tokens=page,
        keyspace=draw(st.sampled_from(["tokens", "pairs", "atoms", "atom pairs"])),
    )
    limits = SchedulerLimits(
        max_running_requests=draw(st.sampled_from([1, 2, 100])),
        max_prefill_tokens=draw(st.sampled_from([page, 1000])),
        chunked_prefill_tokens=draw(st.sampled_from([None, page, 2 * page + 1])),
        schedule_conservativeness=draw(st.sampled_from([0.0, 1.0])),
        retract_decode_steps=draw(st.sampled_from([1, 20])),
        key_lag_tokens=int("pairs" in cache.keyspace),
    )
    return EngineSetup(cache, limits, draw(st.sampled_from(list(SCHEDULE))))


picks = st.integers(0, 7)
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=16)
outcomes = st.none() | st.integers(0, 12)
"""Good pages of an operation that ends, steps of a batch; None: as many as there can be."""


class EngineStateMachine(RuleBasedStateMachine):
    """Every rule is a thing that can happen; which request or operation it happens to is the `pick`-th."""

    machine: EngineMachine

    @initialize(setup=setups(), early=st.booleans())
    def begin(self, setup: EngineSetup, early: bool) -> None:
        self.machine = EngineMachine(setup)
        self.machine.reads_early = lambda op: early

    def between_steps(self) -> bool:
        return not self.machine.suspended

    @precondition(between_steps)
    @rule(prompt=tokens, output=tokens, more=st.sampled_from([None, 0, 10]), space=st.sampled_from([None, "a"]))
    def arrive(self, prompt: list[int], output: list[int], more: int | None, space: str | None) -> None:
        self.machine.arrive(prompt, output, None if more is None else len(output) + more, space)
        self.machine.pump()

    @precondition(lambda self: self.between_steps() and self.machine.prompts)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        known = list(self.machine.live) or list(self.machine.prompts)
        self.machine.abort(known[pick % len(known)])
        self.machine.pump()

    @rule()
    def step(self) -> None:
        self.machine.step()
        self.machine.pump()

    @precondition(between_steps)
    @rule()
    def tick(self) -> None:
        self.machine.tick()
        self.machine.pump()

    @precondition(lambda self: any(map(self.machine.may_end, self.machine.in_flight())))
    @rule(pick=picks, good=outcomes)
    def complete(self, pick: int, good: int | None) -> None:
        known = list(filter(self.machine.may_end, self.machine.in_flight()))
        self.machine.complete(known[pick % len(known)], good)
        self.machine.pump()

    @precondition(lambda self: self.machine.in_flight(OpKind.FETCH))
    @rule(pick=picks, good=st.integers(0, 12))
    def progress(self, pick: int, good: int) -> None:
        known = self.machine.in_flight(OpKind.FETCH)
        self.machine.progress(known[pick % len(known)], good)

    @rule(seconds=st.sampled_from([0.5, FOREVER_S]))
    def advance(self, seconds: float) -> None:
        self.machine.advance(seconds)

    @rule(prompt=tokens)
    def store_has(self, prompt: list[int]) -> None:
        self.machine.store_has(prompt)

    @rule(count=st.integers(1, 8))
    def store_drops(self, count: int) -> None:
        self.machine.store_drops(count)

    @rule(refusing=st.booleans())
    def store_refuses(self, refusing: bool) -> None:
        self.machine.store_refuses(refusing)

    def teardown(self) -> None:
        """Whatever has happened, every request can end."""
        if hasattr(self, "machine") and not self.machine.broken:
            self.machine.drain()


EngineStateMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestEngineMachine = EngineStateMachine.TestCase
