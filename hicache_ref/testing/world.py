"""Random lives of small caches: a seed decides everything.

Rules of this file
- A seed decides the setup, the habits of the world, every step. The same seed, the same life.
- Habits differ from seed to seed (a store that lies, copies that fail, acknowledgements that never come in time), so
  that rare states are common in some seeds, rather than rare in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from random import Random
from typing import Any

from ..control.keys import ATOM_BYTES
from ..control.rules import PROFILES, Rules
from ..control.types import OpKind
from ..policy.eviction import EVICTION
from ..policy.prefetch import PREFETCH
from ..policy.write import WRITE
from .machine import FOREVER_S, Machine
from .odd import ODD_EVICTION, ODD_PREFETCH, ODD_WRITE
from .session import Setup

STEPS = 200
LAST_OPERATIONS = 40


class FuzzFailure(AssertionError):
    """A seed whose run broke a law, with the setup and the last operations."""


def fuzz(seed: int, steps: int = STEPS, **fixed: Any) -> Machine:
    """One random run, drained at its end. `fixed`: fields of `Setup` not left to the seed. Raises FuzzFailure."""
    *_, machine = life(seed, steps, **fixed)
    return machine


def life(seed: int, steps: int = STEPS, **fixed: Any) -> Iterator[Machine]:
    """The same, step by step."""
    rng = Random(seed)
    setup = random_setup(rng, **fixed)
    machine = Machine(setup)
    try:
        world = World(machine, rng)
        for _ in range(steps):
            world.step()
            yield machine
        machine.drain()
    except Exception as error:
        story = "\n  ".join(machine.story[-LAST_OPERATIONS:])
        words = f"{type(error).__name__}: {error}\nseed {seed}, {setup}\nlast operations:\n  {story}"
        raise FuzzFailure(words) from error
    yield machine


def random_setup(rng: Random, **fixed: Any) -> Setup:
    """Any profile and mix of knobs, any policies, any sizes: L2 larger than L1, smaller, tiny, none."""
    l1_pages = rng.choice([1, 2, 4, 6, 8, 8, 12, 12, 16, 24, 24, 40])
    l2_pages = rng.choice([0, 1, 2, 4, *(l1_pages * halves // 2 for halves in (1, 2, 3, 4, 4, 4, 8, 8))])
    page_tokens = rng.choice([1, 1, 4, 16])
    drawn = {
        "profile": rng.choice(list(PROFILES)),
        "changes": random_knobs(rng),
        "write": rng.choice(["write_through", "write_back", *WRITE, *ODD_WRITE]),
        "eviction": rng.choice(["lru", *EVICTION, *ODD_EVICTION]),
        "prefetch": rng.choice([None, *PREFETCH, *ODD_PREFETCH]),
        "page_tokens": page_tokens,
        "l1_pages": l1_pages,
        "l2_pages": l2_pages,
        "load_back_threshold_tokens": rng.choice([1, 1, 1, 10]),
        "prefetch_threshold_tokens": page_tokens * rng.choice([1, 1, 2, 4]),
        "prefetch_capacity_tokens": page_tokens * rng.choice([1, l2_pages, 1 << 20]),
        "keyspace": rng.choice(["tokens", "pairs", "atoms", "atoms"]),
    }
    return Setup(**{**drawn, **fixed})


def random_knobs(rng: Random) -> dict[str, Any]:
    """Half of the time none; else each knob with a chance, as one upstream version has it or as another."""
    if rng.random() < 0.5:
        return {}
    knobs = [knob.name for knob in fields(Rules) if rng.random() < 0.3]
    return {knob: getattr(PROFILES[rng.choice(list(PROFILES))], knob) for knob in knobs}


class World:
    """What happens to one machine, by chance: requests with common prefixes, and a plane and a store with habits."""

    def __init__(self, machine: Machine, rng: Random) -> None:
        self.machine = machine
        self.rng = rng
        self.ready: set[int] = set()
        """Waiting requests whose poll has said yes."""
        self.longest = machine.setup.l1_pages + 1
        self.symbols = rng.choice([2, 3, 10])
        self.namespaces: list[str | None] = [None, "a"] if rng.random() < 0.3 else [None]
        self.books = [self.words(self.longest) for _ in range(rng.choice([1, 3, 6, 12]))]
        """Most prompts begin as one of these does."""
        self.failing = rng.choice([0.0, 0.0, 0.1, 0.5])
        """Share of operations that end short."""
        self.lazy = rng.choice([0.0, 0.3])
        """Chance that decided operations stay with the control plane for another step."""
        moves: list[tuple[Callable[[], bool | None], float]] = [
            (self.arrive, 3),
            (self.poll, 4),
            (self.ask_again, 0.5),
            (self.admit, 4),
            (self.prefill, 4),
            (self.grow, 2),
            (self.finish, 4),
            (self.discard, 0.5),
            (self.abort, 0.3),
            (self.serve, 4),
            (self.machine.start_loading, 2),
            (self.machine.tick, 4),
            (self.advance, 0.5),
            (self.progress, 2),
            (self.complete, 5),
            (self.complete_some, 2),
            (self.hang, 0.3),
            (self.let_go, 0.5),
            (self.trouble_store, 0.3),
        ]
        self.moves = [move for move, _ in moves]
        # Every seed has things that hardly ever happen in it.
        self.weights = [weight * rng.choice([0.1, 1, 1, 3]) for _, weight in moves]
        machine.reads_early = lambda op: rng.random() < 0.5
        machine.on_wait = self.serve_wait
        if rng.random() < 0.5:
            for book in self.books:
                machine.store_has(book)

    def step(self) -> None:
        """One thing that can happen now."""
        while self.rng.choices(self.moves, self.weights)[0]() is False:
            pass
        if self.rng.random() >= self.lazy:
            self.machine.pump()

    # Requests: False, if there is none for whom this could happen

    def words(self, most: int) -> list[int]:
        return [self.rng.randrange(self.symbols) for _ in range(self.rng.randint(1, most))]

    def prompt(self) -> list[int]:
        """The beginning of a book, often with an end of its own."""
        rng = self.rng
        book = rng.choice(self.books)
        prompt = book[: rng.choice([len(book), rng.randint(1, len(book))])]
        return (prompt + self.words(self.longest) if rng.random() < 0.4 else prompt)[: self.longest]

    def arrive(self) -> bool:
        if len(self.machine.waiting) >= 6:
            return False
        self.machine.arrive(self.prompt(), self.rng.choice(self.namespaces), self.rng.randrange(3))
        return True

    def poll(self) -> bool:
        rid = self.one_of(rid for rid in self.machine.waiting if rid not in self.ready)
        if rid is not None and self.machine.poll(rid):
            self.ready.add(rid)
        return rid is not None

    def ask_again(self) -> bool:
        rid = self.one_of(filter(self.machine.may_ask_again, self.machine.waiting))
        if rid is not None:
            self.machine.ask_again(rid)
            self.ready.discard(rid)
        return rid is not None

    def admit(self) -> bool:
        rid = self.one_of(rid for rid in self.machine.waiting if rid in self.ready)
        if rid is not None:
            pages = len(self.machine.waiting[rid].key) // ATOM_BYTES
            self.machine.admit(rid, self.rng.choice([None, self.rng.randrange(pages + 1)]))
        return rid is not None

    def prefill(self) -> bool:
        rid = self.one_of(filter(self.machine.may_compute, self.machine.running))
        if rid is not None:
            self.machine.prefill(rid, chunked=self.rng.random() < 0.4)
        return rid is not None

    def grow(self) -> bool:
        rid = self.one_of(self.machine.running)
        if rid is not None:
            output = [self.rng.randrange(self.symbols) for _ in range(self.rng.choice([0, 0, 1, 3]))]
            self.machine.grow(rid, self.rng.randrange(1, 5), output)
        return rid is not None

    def finish(self) -> bool:
        rid = self.one_of(filter(self.machine.may_compute, self.machine.running))
        if rid is not None:
            self.machine.finish(rid)
        return rid is not None

    def discard(self) -> bool:
        rid = self.one_of(self.machine.running)
        if rid is not None:
            self.machine.discard(rid)
        return rid is not None

    def abort(self) -> bool:
        rid = self.one_of(self.machine.waiting)
        if rid is not None:
            self.machine.abort(rid)
        return rid is not None

    def serve(self) -> None:
        """A whole life at once, but for what is not ready yet."""
        machine = self.machine
        rid = machine.arrive(self.prompt(), self.rng.choice(self.namespaces), self.rng.randrange(3))
        machine.pump()
        self.complete_some()
        self.complete_some()
        if not machine.poll(rid):
            return
        self.ready.add(rid)
        if machine.admit(rid):
            machine.start_loading()
            machine.pump()
            self.complete_some()
            if machine.may_compute(rid):
                machine.finish(rid)

    # The plane, the store, time

    def complete(self) -> bool:
        op_id = self.one_of(self.machine.in_flight())
        if op_id is not None:
            self.machine.complete(op_id, self.outcome(op_id))
        return op_id is not None

    def hang(self) -> bool:
        """A call to the store is given up, and may still touch its pages."""
        machine = self.machine
        op_id = self.one_of(filter(machine.plane.may_linger, machine.in_flight()))
        if op_id is not None:
            most = machine.plane.most(op_id)
            machine.complete(op_id, self.rng.randrange(most) if most else 0, lingers=True)
        return op_id is not None

    def let_go(self) -> bool:
        op_id = self.one_of(self.machine.plane.lingering)
        if op_id is not None:
            self.machine.release(op_id)
        return op_id is not None

    def complete_some(self) -> None:
        for op_id in self.machine.in_flight():
            if self.rng.random() < 0.7:
                self.machine.complete(op_id, self.outcome(op_id))
            self.machine.pump()

    def progress(self) -> bool:
        op_id = self.one_of(self.machine.in_flight(OpKind.FETCH))
        if op_id is not None:
            self.machine.progress(op_id, self.rng.randint(0, self.machine.plane.most(op_id)))
        return op_id is not None

    def outcome(self, op_id: int) -> int | None:
        """How many pages will be good; None: as many as there can be."""
        if self.machine.plane.in_flight[op_id].op.kind is OpKind.LOAD:
            return None
        if self.rng.random() >= self.failing and not self.machine.plane.in_flight[op_id].cancelled:
            return None
        return self.rng.randint(0, self.machine.plane.most(op_id))

    def serve_wait(self, op_ids: tuple[int, ...]) -> None:
        """What a step waits for ends, in any order and with any luck; other things may end as well."""
        machine, rng = self.machine, self.rng
        others = [op_id for op_id in machine.in_flight() if op_id not in op_ids and rng.random() < 0.2]
        awaited = [*op_ids, *others]
        rng.shuffle(awaited)
        for op_id in awaited:
            machine.session.on(machine.plane.complete(op_id, self.outcome(op_id)))

    def advance(self) -> None:
        self.machine.advance(self.rng.choice([1e-9, 0.5, 2.0, FOREVER_S]))

    def trouble_store(self) -> None:
        rng = self.rng
        what = rng.randrange(4)
        if what == 0:
            self.machine.store_drops(rng.randint(1, 8))
        elif what == 1:
            self.machine.store_refuses(rng.random() < 0.5)
        elif what == 2:
            self.machine.store_lies(self.prompt())
        else:
            self.machine.store_has(self.prompt())

    def one_of(self, rids: Any) -> int | None:
        rids = list(rids)
        return self.rng.choice(rids) if rids else None
