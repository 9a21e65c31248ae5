"""Many random lives of small engines, from the command line: a seed decides everything.

python -m hicache_ref.testing.engine_fuzz --seeds 2000 --jobs 2
python -m hicache_ref.testing.engine_fuzz --first 4711          (one seed, again)

Rules of this file
- A seed decides the setup, the habits of the world, every step. The same seed, the same life (law L7).
- Memories are so tight that requests are sent back and given up, chunks so small that prompts need many.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from ..control.budget import SchedulerLimits
from ..control.types import OpKind
from ..policy.schedule import SCHEDULE
from .engine_machine import EngineMachine, EngineSetup
from .machine import FOREVER_S
from .world import FuzzFailure, random_setup

STEPS = 150
LAST_OPERATIONS = 40


def engine_fuzz(seed: int, steps: int = STEPS, **fixed: Any) -> EngineMachine:
    """One random run, drained at its end. `fixed`: fields of `Setup` not left to the seed. Raises FuzzFailure."""
    rng = Random(f"engine/{seed}")
    machine = EngineMachine(random_engine_setup(rng, **fixed))
    try:
        world = EngineWorld(machine, rng)
        for _ in range(steps):
            world.step()
        world.calm_down()
        machine.drain()
    except Exception as error:
        story = "\n  ".join(machine.story[-LAST_OPERATIONS:])
        words = f"{type(error).__name__}: {error}\nseed {seed}, {machine.setup}\nlast operations:\n  {story}"
        raise FuzzFailure(words) from error
    return machine


def random_engine_setup(rng: Random, **fixed: Any) -> EngineSetup:
    """Any profile, knobs and policies; L1 of a few dozen tokens; budgets from nothing to everything."""
    cache = random_setup(rng, **fixed)
    page = cache.page_tokens
    pages = rng.choice({1: [12, 16, 24, 40], 4: [4, 6, 8, 12, 16]}.get(page, [2, 3, 4, 6, 8]))
    l2_pages = rng.choice([0, 1, pages // 2, pages, 2 * pages, 4 * pages])
    drawn: dict[str, Any] = {
        "l1_pages": pages,
        "l2_pages": l2_pages,
        "keyspace": rng.choice(["tokens", "pairs", "atoms", "atom pairs"]),
        "prefetch_capacity_tokens": page * rng.choice([1, max(l2_pages, 1), 1 << 20]),
    }
    cache = replace(cache, **{name: value for name, value in drawn.items() if name not in fixed})
    tokens = cache.l1_pages * page
    limits = SchedulerLimits(
        max_running_requests=rng.choice([1, 3, 8, 100, 100]),
        max_prefill_tokens=rng.choice([page, 2 * page, tokens // 2, tokens, 10 * tokens]),
        chunked_prefill_tokens=rng.choice([None, page, page + 1, 2 * page, tokens // 2, tokens]),
        context_tokens=rng.choice([None, None, None, max(tokens // 2, 10)]),
        schedule_conservativeness=rng.choice([0.0, 0.0, 0.1, 1.0, 2.0]),
        new_token_ratio_decay_steps=rng.choice([1, 5, 600]),
        retract_decode_steps=rng.choice([1, 5, 20]),
        key_lag_tokens=1 if "pairs" in cache.keyspace else 0,
    )
    return EngineSetup(cache, limits, rng.choice(["fcfs", *SCHEDULE]))


class EngineWorld:
    """What happens to one engine, by chance: requests with common prefixes, a plane and a store with habits."""

    def __init__(self, machine: EngineMachine, rng: Random) -> None:
        self.machine = machine
        self.rng = rng
        setup = machine.setup.cache
        self.page = setup.page_tokens
        self.tokens = setup.l1_pages * setup.page_tokens
        self.symbols = rng.choice([2, 3, 50])
        self.namespaces: list[str | None] = [None, "a"] if rng.random() < 0.3 else [None]
        self.longest = max(2, int(self.tokens * rng.choice([0.1, 0.1, 0.3, 0.6, 1.1])))
        self.most_output = rng.choice([1, 4, self.tokens // 2, self.tokens, self.tokens])
        self.books = [self.words(self.longest) for _ in range(rng.choice([1, 3, 6]))]
        """Most prompts begin as one of these does."""
        self.most_waiting = rng.choice([2, 6, 12])
        self.failing = rng.choice([0.0, 0.0, 0.1, 0.5])
        """Share of operations that end short."""
        self.lazy = rng.choice([0.0, 0.3])
        """Chance that decided operations stay with the engine for another step."""
        moves: list[tuple[Callable[[], bool | None], float]] = [
            (self.arrive, 4),
            (self.abort, 0.2),
            (self.step_engine, 5),
            (machine.tick, 2),
            (self.complete, 8),
            (self.progress, 1),
            (self.hang, 0.2),
            (self.let_go, 0.4),
            (self.advance, 0.7),
            (self.trouble_store, 0.3),
            (self.clear_storage, 0.05),
        ]
        self.moves = [move for move, _ in moves]
        # Every seed has things that hardly ever happen in it.
        self.weights = [weight * rng.choice([0.2, 1, 1, 3]) for _, weight in moves]
        machine.reads_early = lambda op: rng.random() < 0.5
        if rng.random() < 0.5:
            for book in self.books:
                machine.store_has(book)

    def step(self) -> None:
        """One thing that can happen now."""
        while self._move() is False:
            pass
        if self.rng.random() >= self.lazy:
            self.machine.pump()

    def _move(self) -> bool | None:
        if not self.machine.suspended:
            return self.rng.choices(self.moves, self.weights)[0]()
        reports = [self.complete, self.complete, self.progress, self.hang, self.let_go]
        move = self.rng.choice([*reports, self.advance, self.step_engine])
        return move()

    def calm_down(self) -> None:
        """Whatever has been trouble is over: from now on everything ends as it should."""
        self.machine.store_refuses(False)

    # Requests: False, if there is none for whom this could happen

    def words(self, most: int) -> list[int]:
        return [self.rng.randrange(self.symbols) for _ in range(self.rng.randint(1, most))]

    def arrive(self) -> bool:
        machine, rng = self.machine, self.rng
        if len(machine.scheduler.waiting) >= self.most_waiting:
            return False
        book = rng.choice(self.books)
        prompt = book[: rng.choice([len(book), rng.randint(1, len(book))])]
        if rng.random() < 0.4:
            prompt = (prompt + self.words(self.longest))[: self.longest]
        output = self.words(self.most_output)
        longest = rng.choice([None, None, len(output), len(output) * 2, 5000])
        machine.arrive(prompt, output, longest, rng.choice(self.namespaces), rng.randrange(3))
        return True

    def abort(self) -> bool:
        """Somebody goes away: who waits, who runs, or, now and then, who has gone."""
        known = [
            request.id for request in self.machine.live.values() if request.id not in self.machine.scheduler.waiting
        ]
        if self.rng.random() < 0.2 or not known:
            known = list(self.machine.prompts)
        if not known:
            return False
        self.machine.abort(self.rng.choice(known))
        return True

    # The engine and its plane

    def step_engine(self) -> bool:
        if self.machine.suspended and self.machine.waits_for:
            return False
        self.machine.step()
        return True

    def complete(self) -> bool:
        """An operation ends, oldest first or not, well or not."""
        machine, rng = self.machine, self.rng
        op_id = self._one_of(filter(machine.may_end, machine.in_flight()))
        if op_id is None:
            return False
        op = machine.plane.in_flight[op_id].op
        short = rng.random() < (0.3 if op.kind is OpKind.COMPUTE else self.failing)
        machine.complete(op_id, rng.randint(0, op.pages) if short else None)
        return True

    def hang(self) -> bool:
        """A call to the store is given up, and may still touch its pages."""
        machine = self.machine
        op_id = self._one_of(filter(machine.plane.may_linger, machine.in_flight()))
        if op_id is None:
            return False
        machine.complete(op_id, self.rng.randrange(machine.plane.in_flight[op_id].op.pages), lingers=True)
        return True

    def let_go(self) -> bool:
        op_id = self._one_of(self.machine.plane.lingering)
        if op_id is None:
            return False
        self.machine.release(op_id)
        return True

    def progress(self) -> bool:
        op_id = self._one_of(self.machine.in_flight(OpKind.FETCH))
        if op_id is None:
            return False
        self.machine.progress(op_id, self.rng.randint(0, self.machine.plane.in_flight[op_id].op.pages))
        return True

    def advance(self) -> None:
        self.machine.advance(self.rng.choice([0.1, 1.0, 1.0, FOREVER_S]))

    def trouble_store(self) -> None:
        machine, rng = self.machine, self.rng
        match rng.randrange(3):
            case 0:
                machine.store_drops(rng.randint(1, 8))
            case 1:
                machine.store_has(rng.choice(self.books))
            case _:
                machine.store_refuses(not machine.store.refusing)

    def clear_storage(self) -> bool:
        if self.machine.cache.storage is None:
            return False
        self.machine.clear_storage()
        return True

    def _one_of(self, ids: Iterable[int]) -> int | None:
        known = list(ids)
        return self.rng.choice(known) if known else None


# From the command line


def outcome_of(seed: int, steps: int) -> Counter[str] | str:
    """What a seed has seen, or what it found, in words."""
    try:
        return engine_fuzz(seed, steps).seen
    except FuzzFailure as failure:
        where = traceback.format_exception(failure.__cause__)
        return f"{failure}\n{''.join(where[-3:])}"


def outcomes(seeds: range, steps: int, jobs: int) -> Iterator[Counter[str] | str]:
    """Of many seeds, in order."""
    run = partial(outcome_of, steps=steps)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=20)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hicache_ref.testing.engine_fuzz", description="Fuzz the engine.")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--most", type=int, default=1, help="failures to print before giving up")
    args = parser.parse_args()
    began = time.perf_counter()
    seen: Counter[str] = Counter()
    found: list[str] = []
    for outcome in outcomes(range(args.first, args.first + args.seeds), args.steps, args.jobs):
        if isinstance(outcome, str):
            found.append(outcome)
            if len(found) == args.most:
                break
        else:
            seen += outcome
    print("\n\n".join(found) or f"{args.seeds} seeds, no failure, {time.perf_counter() - began:.0f} s")
    print(", ".join(f"{count} {what}" for what, count in sorted(seen.items())))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
