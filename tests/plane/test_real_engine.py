"""Random lives of small engines on real memory: every page holds its identity, on every level, at any time (law L10).

The machine, its laws and its setups are those of `hicache_ref.testing`; here streams, workers and a store of real bytes
stand where its plane stood, and end things when they end: late, out of order between streams, and not always well.
What came in is logged, and the log replays to the same decisions (law L6).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from hicache_ref.config.layouts import LAYOUTS, OPERATORS, KvGeometry
from hicache_ref.control import invariants
from hicache_ref.control.invariants import LawBroken
from hicache_ref.control.types import Op, OpKind
from hicache_ref.data.copy import make_copier
from hicache_ref.data.plane import RealPlane
from hicache_ref.data.pools import DevicePool, HostPool
from hicache_ref.data.storage.breaker import Breaker
from hicache_ref.data.workers import StorageWorkers
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.write import WRITE
from hicache_ref.testing.engine_fuzz import random_engine_setup
from hicache_ref.testing.engine_machine import EngineMachine, EngineSetup, plain_op
from hicache_ref.testing.machine import FOREVER_S

from .real import SOON_S, MemoryClient, Watched

LAYERS = 2
STEPS = 120


class RealMachine(EngineMachine):
    """The machine over a real plane. Pages hold identities as int32, so that poison is its -1, garbage."""

    def __init__(self, setup: EngineSetup, rng: Random) -> None:
        super().__init__(setup)
        self.rng = rng
        self.failing = rng.choice([0.0, 0.0, 0.05, 0.3])
        """Share of backups and calls to the store that fail."""
        io_backend, layout, pool = rng.choice([key for key in OPERATORS if LAYOUTS[key[1]].stored])
        components = 2 if pool == "mha" else 1
        geometry = KvGeometry(pool, components, LAYERS, 1, 1, 2, 4, (2,))
        self.device = DevicePool(geometry, setup.cache.l1_pages, torch.int32)
        self.host: HostPool | None = None
        self.client = Unreliable(self)
        copier = storage = None
        if setup.cache.l2_pages:
            self.host = HostPool(LAYOUTS[layout], geometry, setup.cache.l2_pages, torch.int32)
            copier = Watched(make_copier(io_backend, self.device, self.host), [], self.copying)
            if self.cache.storage is not None:
                storage = lambda report: StorageWorkers(  # noqa: E731
                    self.client, self.host, report, batch_pages=2, breaker=Breaker(failures=1000)
                )
        self.real = RealPlane(self.device, self, self.host, copier, storage, poison=True)

    # The plane's side

    def begin(self, op: Op) -> Identify:
        return Identify(self, op)

    def copying(self, what: tuple[Any, ...]) -> None:
        self.dawdle()
        if what[0] == "backup":
            self.stumble()

    def dawdle(self) -> None:
        if self.rng.random() < 0.2:
            time.sleep(self.rng.choice([0.0, 0.0002, 0.002]))

    def stumble(self) -> None:
        if self.rng.random() < self.failing:
            raise OSError("bad luck")

    # The machine's side

    def store_has(self, tokens: Sequence[int]) -> None:
        """Somebody else has stored a prompt."""
        key = self._key(tokens)
        for name, page in zip(self.keys.chain(key, None), self.identities.of(key), strict=True):
            self.client.pages[name] = np.full(self.device.page_bytes // 4, page, dtype=np.int32).tobytes()

    def pump(self) -> None:
        for op in self.engine.take_ops():
            self.ops.append(plain_op(op))
            if isinstance(op, Op):
                self.seen[op.kind.name] += 1
                self.real.submit(op)
            else:
                self.real.cancel(op.op_id)

    def take(self, timeout_s: float = 0.0) -> None:
        """What the plane has reported, after a while."""
        self.real.wait(timeout_s)
        for report in self.real.poll():
            self._report(report)
        self.check()
        for failure in self.real.errors:
            if failure.kind in (OpKind.COMPUTE, OpKind.LOAD):
                raise LawBroken(f"{failure.kind.name}: {failure.what}")

    def check(self) -> None:
        """Memory as it is: what is settled holds what it should, whatever is being copied elsewhere."""
        self.memory.l1[:] = identities(self.device.whole.flatten(3).movedim(2, 0))
        if self.host is not None:
            views = [self.host.view(c).flatten(2) for c in range(self.device.geometry.components)]
            self.memory.l2[:] = identities(torch.stack(views).movedim(2, 0))
        super().check()

    def over(self) -> bool:
        """Nothing is under way, and what was to be done when something ended has been."""
        if not self.suspended:
            self.tick()
            self.pump()
        ledger = self.cache.ledger
        return self.engine.idle and not self.suspended and ledger.at_rest and not ledger.open

    def end(self) -> None:
        """Everything ends, and nothing is left."""
        until_s = time.monotonic() + SOON_S
        while not self.over():
            if time.monotonic() > until_s:
                raise LawBroken(f"L5: {self._stuck_words()}")
            self.step()
            self.pump()
            self.take(0.001 if self.real.in_flight else 0.0)
            if not self.real.in_flight:
                self.advance(FOREVER_S)
        invariants.check_at_rest(self.cache)
        assert not self.live
        self._check_replay()


class Identify:
    """A batch: reads every page it depends on, layer by layer, and writes those it makes."""

    def __init__(self, machine: RealMachine, op: Op) -> None:
        self.machine = machine
        self.rows = [self.row(*span) for span in machine._spans(op.batch, op.pages)]

    def row(self, request: Any, before: int, after: int) -> tuple[Any, list[list[int]], int]:
        """Slots, the pages before each step and after the last, the first page that is the request's own."""
        machine = self.machine
        steps = range(before, after + 1) if machine.engine.batch.may_stop else (before, after)
        first = max(request.lease.held, (before - machine._lag) // machine._page)
        return machine._slots(request).copy(), [machine._pages(request, tokens) for tokens in steps], first

    def step(self, at: int, before_layer: Callable[[int], None]) -> None:
        whole = self.machine.device.whole
        for layer in range(LAYERS):
            before_layer(layer)
            self.machine.dawdle()
            for slots, pages, first in self.rows:
                read = pages[at] if at == 0 else pages[at][first:]
                self.hold(whole[:, layer, slots[len(pages[at]) - len(read) : len(pages[at])]], read, layer)
            for slots, pages, first in self.rows:
                made = pages[at + 1][first:]
                whole[:, layer, slots[first : first + len(made)]] = filled(made)

    @staticmethod
    def hold(held: torch.Tensor, pages: list[int], layer: int) -> None:
        if not torch.equal(held, filled(pages).expand_as(held)):
            raise LawBroken(f"L10: layer {layer} of pages {pages} holds {held[0, :, 0, 0, 0].tolist()}")


def filled(pages: list[int]) -> torch.Tensor:
    return torch.tensor(pages, dtype=torch.int32).view(-1, 1, 1, 1)


def identities(pages: torch.Tensor) -> Any:
    """[pages] what each page holds all over; garbage where it is not all the same. pages: [pages, ...]."""
    flat = pages.flatten(1)
    first = flat[:, 0].clone()
    first[(flat != flat[:, :1]).any(1)] = -1
    return first.numpy()


class Unreliable(MemoryClient):
    """A store that is late, and fails."""

    def __init__(self, machine: RealMachine) -> None:
        super().__init__()
        self.machine = machine

    def _call(self) -> None:
        self.machine.dawdle()
        self.machine.stumble()


def alive(seed: int) -> RealMachine:
    """Any policies and knobs, with more use for L2 and L3 than chance gives them."""
    rng = Random(f"real/{seed}")
    setup = random_engine_setup(
        rng,
        keyspace=rng.choice(["tokens", "pairs", "atoms"]),
        write=rng.choice(list(WRITE)),
        prefetch=rng.choice([None, *PREFETCH]),
        l2_pages=rng.choice([0, 8, 32, 64]),
        load_back_threshold_tokens=1,
        prefetch_threshold_tokens=1,
        prefetch_capacity_tokens=1 << 20,
    )
    return RealMachine(setup, rng)


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[RealMachine]:
    made = alive(request.param)
    yield made
    made.real.close(SOON_S)


@pytest.mark.parametrize("machine", range(20), indirect=True)
def test_real_memory_holds_what_the_tree_says(machine: RealMachine):
    lives(machine)
    assert machine.seen["COMPUTE"]


def test_everything_has_happened():
    """Else the lives above would show little."""
    seen: Counter[OpKind] = Counter()
    for seed in range(100, 108):
        machine = alive(seed)
        lives(machine)
        machine.real.close(SOON_S)
        seen += machine.real.meters.good
    assert all(seen[kind] for kind in OpKind if kind is not OpKind.CLEAR), seen


def lives(machine: RealMachine) -> None:
    """Requests with common prefixes come, go away, and end."""
    rng, tokens = machine.rng, machine.setup.cache.l1_pages * machine.setup.cache.page_tokens
    books = [[rng.randrange(3) for _ in range(max(2, tokens // 2))] for _ in range(4)]
    for book in books[:2]:
        machine.store_has(book)

    def words(most: int) -> list[int]:
        return [rng.randrange(3) for _ in range(rng.randint(1, max(most, 1)))]

    for _ in range(STEPS):
        happening = rng.random()
        if not machine.suspended and happening < 0.35 and len(machine.scheduler.waiting) < 6:
            book = rng.choice(books)
            machine.arrive(book[: rng.choice([len(book), rng.randint(1, len(book))])] + words(2), words(tokens // 6))
        elif not machine.suspended and happening < 0.37 and machine.live:
            machine.abort(rng.choice(list(machine.live)))
        elif not machine.suspended and happening < 0.45:
            machine.tick()
        elif happening < 0.5:
            machine.advance(rng.choice([0.1, 1.0, FOREVER_S]))
        else:
            machine.step()
        machine.pump()
        machine.take(rng.choice([0.0, 0.0, 0.001, 0.003]))
    machine.end()
