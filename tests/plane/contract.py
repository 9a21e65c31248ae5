"""What every data plane keeps to, as one suite to inherit: rules 1 to 4 of `hicache_ref/plane.py`.

    class TestMine(PlaneContract):
        def bench(self, seed): return MyBench(...)

Rules of this file
- A bench is a plane with its time in the test's hands: `let(seconds)` lets some pass, `finish()` waits for everything.
- Everything a plane reports goes through `Bench.collect`, which knows what is in flight and lets nothing pass that the
  rules forbid.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hicache_ref.control.active import Active
from hicache_ref.control.batches import Decode, Prefill
from hicache_ref.control.running import Running
from hicache_ref.control.types import Completion, Op, OpKind, Progress
from hicache_ref.plane import DataPlane

STORED = (OpKind.PROBE, OpKind.FETCH, OpKind.STORE)
STEPS = 40


class Bench(ABC):
    """A plane under test. `fails`: its store may; else everything succeeds."""

    fails = False
    storage = True
    slots = 4096
    """Pages of each pool."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.ops: dict[int, Op] = {}
        self.cancelled: set[int] = set()
        self.progress: dict[int, int] = {}
        self.sure: set[int] = set()
        """FETCHes of pages that were all in the store when they were given."""
        self.ended: dict[int, Completion] = {}
        self.order: list[int] = []
        """Operations in the order of their ends."""
        self._next_slot = 0

    @abstractmethod
    def let(self, seconds: float) -> None:
        """So much time passes."""

    @abstractmethod
    def finish(self) -> None:
        """Everything that was begun ends."""

    # Operations

    def give(self, kind: OpKind, pages: int = 1, names: Sequence[Any] = (), batch: Any = None) -> int:
        """One operation, on the next slots of its pools."""
        op_id = len(self.ops) + 1
        slots = np.arange(self._next_slot, self._next_slot + pages, dtype=np.int64) % self.slots
        self._next_slot += pages
        sides = {
            OpKind.BACKUP: (slots, slots),
            OpKind.LOAD: (slots, slots),
            OpKind.FETCH: (None, slots),
            OpKind.STORE: (slots, None),
        }
        src, dst = sides.get(kind, (None, None))
        named = (tuple(names) or tuple(range(pages))) if kind in STORED else ()
        self.ops[op_id] = op = Op(op_id, kind, pages, src, dst, named, batch)
        if kind is OpKind.FETCH and self.stored.issuperset(named):
            self.sure.add(op_id)
        self.plane.submit(op)
        self.collect()
        return op_id

    def prefill(self, loads: tuple[int, ...] = ()) -> int:
        request = Active(0, b"", 8, 1, 0.0)
        return self.give(OpKind.COMPUTE, batch=Prefill([request], [(0, 8)], loads))

    def decode(self, steps: int = STEPS) -> int:
        request = Active(0, b"", 8, steps, 0.0)
        request.kv_tokens, running = 8, Running(4, 4096)
        running.join(request)
        return self.give(OpKind.COMPUTE, steps, batch=Decode(running, 1, steps, 8))

    def cancel(self, op_id: int) -> None:
        self.cancelled.add(op_id)
        self.plane.cancel(op_id)
        self.collect()

    # Reports

    def collect(self) -> None:
        """Take what has been reported, and hold it against the rules."""
        for event in self.plane.poll():
            op = self.ops.get(event.op_id)
            assert op is not None, f"report on an operation nobody has given: {event}"
            assert op.id not in self.ended, f"a report after the end: {event}"
            assert self.progress.get(op.id, 0) <= event.pages_ok <= op.pages, f"{event} of {op.pages} pages"
            if isinstance(event, Progress):
                assert op.kind is OpKind.FETCH, f"progress of a {op.kind.name}"
                self.progress[op.id] = event.pages_ok
                continue
            self.ended[op.id] = event
            self.order.append(op.id)
            self.check_end(op, event)

    def check_end(self, op: Op, end: Completion) -> None:
        assert not end.failed or end.pages_ok < op.pages or op.kind is OpKind.PROBE, f"{end} failed and is whole"
        if op.kind is OpKind.COMPUTE:
            assert end.pages_ok >= 1, "a batch ended within a step"
            early = op.id in self.cancelled and op.batch.may_stop
            assert early or end.pages_ok == op.pages, f"{end}: nobody has stopped it"
            late = [load for load in op.batch.loads if load not in self.ended]
            assert not late, f"a batch ended before its loads {late}"
        elif op.kind in (OpKind.BACKUP, OpKind.LOAD):
            assert end.pages_ok == op.pages and not end.failed, f"a copy in memory fell short: {end}"
        elif op.kind is not OpKind.PROBE and not (self.fails or op.id in self.cancelled):
            sure = op.kind is OpKind.STORE or op.id in self.sure
            assert end.pages_ok == op.pages or not sure, f"nothing was wrong, and still {end}"

    @property
    def stored(self) -> set[Any]:
        """Names of pages that are in the store, by what it has confirmed."""
        ends = ((self.ops[op_id], end.pages_ok) for op_id, end in self.ended.items())
        return {name for op, good in ends if op.kind is OpKind.STORE for name in op.keys[:good]}

    def all_over(self) -> None:
        """Rule 1: every operation has its end, and nothing comes after."""
        self.finish()
        self.collect()
        assert set(self.ended) == set(self.ops), f"without an end: {set(self.ops) - set(self.ended)}"
        self.let(1000.0)
        assert self.plane.poll() == []


class PlaneContract(ABC):
    """The suite. `bench(seed)` makes a fresh bench."""

    @abstractmethod
    def bench(self, seed: int = 0) -> Bench: ...

    def kinds(self, bench: Bench) -> list[OpKind]:
        return [kind for kind in OpKind if kind is not OpKind.CLEAR and (bench.storage or kind not in STORED)]

    def give(self, bench: Bench, kind: OpKind, pages: int = 3) -> int:
        """Any operation of this kind."""
        return bench.decode() if kind is OpKind.COMPUTE else bench.give(kind, pages)

    def test_says_what_it_is(self):
        bench = self.bench()
        facts = bench.plane.capabilities
        assert min(facts.page_bytes, facts.layers, facts.ranks) >= 1
        assert facts.storage is bench.storage

    def test_is_silent_when_nothing_is_asked(self):
        bench = self.bench()
        bench.let(10.0)
        assert bench.plane.poll() == []
        bench.all_over()

    @pytest.mark.parametrize("kind", [kind for kind in OpKind if kind is not OpKind.CLEAR])
    def test_every_operation_ends_once(self, kind):
        bench = self.bench()
        if kind not in self.kinds(bench):
            pytest.skip("this plane has no store")
        self.give(bench, kind)
        bench.all_over()

    def test_many_at_once_all_end(self):
        bench = self.bench()
        for at in range(60):
            kinds = [kind for kind in self.kinds(bench) if kind is not OpKind.COMPUTE]
            self.give(bench, kinds[at % len(kinds)], 1 + at % 7)
        bench.decode()
        bench.all_over()

    def test_a_report_is_given_once(self):
        bench = self.bench()
        op_id = bench.give(OpKind.BACKUP, 2)
        bench.finish()
        assert [event.op_id for event in bench.plane.poll()] == [op_id]
        assert bench.plane.poll() == []

    def test_cancel_of_what_is_over_or_unknown_is_harmless(self):
        bench = self.bench()
        bench.plane.cancel(4711)
        op_ids = [self.give(bench, kind) for kind in self.kinds(bench)]
        bench.finish()
        bench.collect()
        for op_id in op_ids:
            bench.plane.cancel(op_id)
        # Nor does it stick to an operation that comes later.
        last = bench.decode()
        bench.all_over()
        assert bench.ended[last].pages_ok == STEPS

    @pytest.mark.parametrize("kind", [kind for kind in OpKind if kind is not OpKind.CLEAR])
    @pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.0123, 0.21, 5.0])
    def test_cancelled_operations_end_once(self, kind, after_s):
        """At once, in the middle, at the end, too late; and twice."""
        bench = self.bench()
        if kind not in self.kinds(bench):
            pytest.skip("this plane has no store")
        op_id = self.give(bench, kind, 300)
        bench.let(after_s)
        bench.collect()
        bench.cancel(op_id)
        bench.cancel(op_id)
        bench.all_over()

    def test_copies_end_in_order(self):
        for kind in (OpKind.BACKUP, OpKind.LOAD):
            bench = self.bench()
            op_ids = [bench.give(kind, pages) for pages in (9, 1, 5, 2, 7, 1)]
            bench.all_over()
            assert bench.order == op_ids

    def test_a_batch_waits_for_its_loads(self):
        bench = self.bench()
        loads = tuple(bench.give(OpKind.LOAD, 50) for _ in range(3))
        bench.prefill(loads)
        bench.all_over()

    def test_loads_that_are_over_hold_nobody_up(self):
        bench = self.bench()
        loads = tuple(bench.give(OpKind.LOAD, 3) for _ in range(2))
        bench.finish()
        bench.collect()
        bench.prefill(loads)
        bench.all_over()

    def test_a_prefill_does_not_stop_for_a_cancel(self):
        bench = self.bench()
        bench.cancel(bench.prefill())
        bench.all_over()

    def test_a_decode_stops_between_two_steps(self):
        bench = self.bench()
        done = []
        for after_s in (0.0, 0.001, 0.055, 0.2):
            op_id = bench.decode()
            bench.let(after_s)
            bench.collect()
            bench.cancel(op_id)
            bench.finish()
            bench.collect()
            done.append(bench.ended[op_id].pages_ok)
        assert min(done) >= 1
        assert done == sorted(done)
        bench.all_over()

    def test_one_batch_after_the_other(self):
        bench = self.bench()
        for _ in range(5):
            bench.decode(3)
            bench.finish()
            bench.collect()
        bench.all_over()

    def test_what_was_stored_is_found_and_fetched(self):
        bench = self.bench()
        if not bench.storage or bench.fails:
            pytest.skip("this plane has no store that can be relied on")
        names = list(range(300))
        bench.give(OpKind.STORE, 300, names)
        bench.finish()
        found, known = bench.give(OpKind.PROBE, 400, range(400)), bench.give(OpKind.FETCH, 300, names)
        unknown = bench.give(OpKind.PROBE, 5, range(900, 905))
        bench.all_over()
        assert [bench.ended[op_id].pages_ok for op_id in (found, known, unknown)] == [300, 300, 0]

    def test_clearing_empties_the_store(self):
        bench = self.bench()
        if not bench.storage or bench.fails:
            pytest.skip("this plane has no store that can be relied on")
        names = list(range(300))
        bench.give(OpKind.STORE, 300, names)
        bench.finish()
        bench.give(OpKind.CLEAR, 0)
        bench.finish()
        probe = bench.give(OpKind.PROBE, 300, names)
        bench.finish()
        again = bench.give(OpKind.STORE, 300, names)
        bench.all_over()
        assert [bench.ended[op_id].pages_ok for op_id in (probe, again)] == [0, 300]

    def test_a_fetch_tells_how_far_it_is(self):
        bench = self.bench()
        if not bench.storage or bench.fails:
            pytest.skip("this plane has no store that can be relied on")
        names = list(range(1000))
        bench.give(OpKind.STORE, 1000, names)
        bench.finish()
        fetch = bench.give(OpKind.FETCH, 1000, names)
        bench.all_over()
        assert 0 < bench.progress[fetch] < 1000

    @pytest.mark.parametrize("seed", range(12))
    def test_any_mix_at_any_time(self, seed):
        """Random operations, cancels and pauses; one batch at a time, as the engine has it."""
        bench, rng = self.bench(seed), random.Random(seed)
        kinds = self.kinds(bench)
        batch = 0
        for _ in range(120):
            computing = batch in bench.ops and batch not in bench.ended
            match rng.randrange(6):
                case 0 if bench.ops:
                    bench.cancel(rng.choice(list(bench.ops)))
                case 1 | 2:
                    bench.let(rng.choice([0.0, 0.0003, 0.01, 0.2, 3.0]))
                    bench.collect()
                case _:
                    kind = rng.choice(kinds)
                    if kind is not OpKind.COMPUTE:
                        first = rng.randrange(500)
                        pages = rng.choice([1, 5, 127, 128, 129, 300])
                        bench.give(kind, pages, range(first, first + pages))
                    elif not computing:
                        loads = tuple(op.id for op in bench.ops.values() if op.kind is OpKind.LOAD)
                        batch = rng.choice([bench.decode, lambda loads=loads: bench.prefill(loads)])()
        bench.all_over()
