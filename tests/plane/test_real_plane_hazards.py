"""Which pages operations in flight read and write: what the control plane promises, so that a plane needs no fence.

`hicache_ref/data/plane.py` says who waits for whom. Where it says that something cannot be, random lives of engines are
held to it here: no operation writes pages that one in flight reads or writes, none reads pages that one in flight
writes, but for a batch and the loads it names.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

import pytest

from hicache_ref.control.cache import HiCache
from hicache_ref.control.types import Op, OpKind
from hicache_ref.testing.engine_fuzz import EngineWorld, random_engine_setup
from hicache_ref.testing.engine_machine import EngineMachine

STEPS = 120


class Hazard(AssertionError):
    """Two operations in flight at a time that need an order."""


class Touch(NamedTuple):
    """Pages, as (level, slot)."""

    reads: frozenset[tuple[int, int]]
    writes: frozenset[tuple[int, int]]


SIDES = {
    OpKind.BACKUP: (1, 2),
    OpKind.LOAD: (2, 1),
    OpKind.FETCH: (3, 2),
    OpKind.STORE: (2, 3),
}
"""Levels of source and destination."""


class Guard:
    """Watches what a machine gives its plane. `met`: how often two kinds were in flight together."""

    def __init__(self, machine: EngineMachine) -> None:
        self.machine = machine
        self.met: Counter[frozenset[OpKind]] = Counter()
        self._batches: dict[int, Touch] = {}
        self._submit = machine.plane.submit
        machine.plane.submit = self.submit  # type: ignore[method-assign]

    def submit(self, op: Op, read_early: bool) -> None:
        if op.kind is OpKind.COMPUTE:
            self._batches[op.id] = self._batch(op.batch)
        new = self._touch(op, 0)
        for flight in [*self.machine.plane.in_flight.values(), *self.machine.plane.lingering.values()]:
            self.met[frozenset((op.kind, flight.op.kind))] += 1
            self._check(op, new, flight.op, self._touch(flight.op, flight.good))
        self._submit(op, read_early)

    def _check(self, op: Op, new: Touch, other: Op, old: Touch) -> None:
        reads = frozenset() if op.kind is OpKind.COMPUTE and other.id in op.batch.loads else new.reads
        clash = (new.writes & (old.reads | old.writes)) | (reads & old.writes)
        if clash:
            raise Hazard(f"{op.kind.name} {op.id} and {other.kind.name} {other.id} in flight: {sorted(clash)}")

    def _touch(self, op: Op, good: int) -> Touch:
        """`good` leading pages have arrived and are not touched any more."""
        if op.kind is OpKind.COMPUTE:
            return self._batches[op.id]
        source, target = SIDES.get(op.kind, (0, 0))
        return Touch(_pages(source, op.src, 0), _pages(target, op.dst, good))

    def _batch(self, batch: Any) -> Touch:
        machine, page = self.machine, self.machine.setup.cache.page_tokens
        reads, writes = set(), set()
        for request, before, after in machine._spans(batch, batch.steps):
            slots = machine._slots(request)
            reads.update(slots[: -(-after // page)].tolist())
            writes.update(slots[before // page : -(-after // page)].tolist())
        return Touch(_pages(1, reads, 0), _pages(1, writes, 0))


def _pages(level: int, slots: Any, good: int) -> frozenset[tuple[int, int]]:
    listed = [] if slots is None else list(slots)[good:]
    return frozenset((level, int(slot)) for slot in listed)


def live(seed: int, **fixed: Any) -> Counter[frozenset[OpKind]]:
    """One random life under guard; which kinds were in flight together."""
    rng = Random(f"hazards/{seed}")
    machine = EngineMachine(random_engine_setup(rng, **fixed))
    guard, world = Guard(machine), EngineWorld(machine, rng)
    for _ in range(STEPS):
        world.step()
    world.calm_down()
    machine.drain()
    return guard.met


def test_no_two_operations_in_flight_need_an_order():
    met: Counter[frozenset[OpKind]] = Counter()
    for seed in range(100):
        met += live(seed)
    # All that could clash did meet: else nothing was shown.
    moving = {OpKind.BACKUP, OpKind.LOAD, OpKind.FETCH, OpKind.STORE}
    for pair in [*combinations(moving, 2), (OpKind.COMPUTE, OpKind.BACKUP), (OpKind.COMPUTE, OpKind.LOAD)]:
        assert met[frozenset(pair)], f"{pair} have never been in flight together"


def test_without_the_lock_of_write_through_there_is_a_hazard(monkeypatch: pytest.MonkeyPatch):
    """The guard sees what the lock keeps away: pages given to a batch while their backup still reads them."""

    def unlocked(cache: HiCache, node: Any) -> None:
        cache._back_up(node, locked=False)

    monkeypatch.setattr(HiCache, "_write_through", unlocked)
    with pytest.raises(Hazard, match="BACKUP"):
        all(live(seed, write="write_through", prefetch=None) is not None for seed in range(200))
