"""The engine with everything that happens to it in a test's hands; the laws are checked after every step.

Rules of this file
- A method is one thing that can happen: a request arrives or goes away, an operation makes progress or ends, well or
  not, the engine steps or ticks, time passes. While a step waits for copies, only reports come in.
- The plane is `ManualPlane`. A batch computes on shadow memory: what it reads must be there when it starts and when it
  ends, and it writes only slots of its own (law L10).
- After each thing that happens: L1 to L4 and L11, locks and slots against their users, every sum of the running batch.
  When a request has its first token: L12. `drain` ends everything: L4, L5, and L6 from the event log.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..control import invariants
from ..control.active import Active, Stage
from ..control.batches import Decode, Prefill
from ..control.budget import SchedulerLimits
from ..control.engine import Engine
from ..control.invariants import LawBroken
from ..control.keys import AtomKeys, Keyspace, TokenPages
from ..control.lease import Lease
from ..control.log import EntryKind, EventLog, replay
from ..control.scheduler import Scheduler
from ..control.slots import Owner
from ..control.tree import Node
from ..control.types import Op, OpKind, Report, Slots, Wait
from ..policy.schedule import SCHEDULE
from .machine import FOREVER_S, watch_leaves
from .memory import GARBAGE, START, Identities, ShadowMemory
from .plane import ManualPlane, ModelStore
from .session import Setup, plain, words
from .story import happens

MOST_ROUNDS = 20_000
"""Rounds of ending everything after which whatever can end has ended."""


@dataclass(frozen=True)
class EngineSetup:
    """A small engine. `cache.keyspace` may also be `atom pairs`: prefix-unique ids in EAGLE mode."""

    cache: Setup = field(default_factory=Setup)
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    schedule: str = "fcfs"

    @property
    def pairs(self) -> bool:
        return self.cache.keyspace in ("pairs", "atom pairs")

    def keys(self) -> Keyspace:
        return AtomKeys() if self.cache.keyspace.startswith("atom") else TokenPages(self.cache.page_tokens, self.pairs)

    def engine(self, keys: Keyspace) -> Engine:
        """A new engine over an empty cache. `keys`: with what they have met, where pages are interned."""
        cache = self.cache.cache()
        cache.keys = keys
        return Engine(cache, Scheduler(cache, cache.storage, self.limits, SCHEDULE.make(self.schedule)))


class Prompt:
    """What a request of the test is made of: all its tokens, those it will generate too."""

    __slots__ = ("key", "max_new_tokens", "namespace", "output_tokens", "priority", "tokens")

    def __init__(
        self,
        tokens: list[int],
        key: bytes,
        output_tokens: int,
        max_new_tokens: int | None,
        namespace: str | None,
        priority: int,
    ) -> None:
        self.tokens = tokens
        self.key = key
        self.output_tokens = output_tokens
        self.max_new_tokens = max_new_tokens
        self.namespace = namespace
        self.priority = priority

    @property
    def input_tokens(self) -> int:
        return len(self.tokens) - self.output_tokens

    def active(self, request_id: int, arrival_s: float) -> Active:
        return Active(
            request_id,
            self.key,
            self.input_tokens,
            self.output_tokens,
            arrival_s,
            self.namespace,
            self.priority,
            self.max_new_tokens,
        )


class EngineMachine:
    """An engine, its plane and its store, and requests in all stages."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        self.keys = setup.keys()
        self.engine = setup.engine(self.keys)
        self.cache = self.engine.cache
        self.scheduler = self.engine.scheduler
        self.identities = Identities()
        self.memory = ShadowMemory(setup.cache.l1_pages, setup.cache.l2_pages, self.identities)
        self.store = ModelStore(lambda name: self._page_called[name])
        self.plane = ManualPlane(self.memory, self.store)
        self.prompts: dict[int, Prompt] = {}
        self.live: dict[int, Active] = {}
        """Requests brought to the engine that have not ended."""
        self.ended: list[Active] = []
        self.log = EventLog()
        self.ops: list[tuple[Any, ...]] = []
        """Every operation decided so far, in a form that compares."""
        self.now_s = 0.0
        self.seen: Counter[str] = Counter()
        """How often the rare things have happened."""
        self.story: list[str] = []
        """What has happened, in words."""
        self.broken = False
        """The last thing that happened has raised."""
        self.reads_early: Callable[[Op], bool] = lambda op: op.id % 2 == 0
        """When sources are read: at once, or when the operation ends."""
        self.waits_for: set[int] = set()
        self._step: Generator[Wait, None, None] | None = None
        self._page = setup.cache.page_tokens
        self._lag = setup.limits.key_lag_tokens
        self._local = TokenPages(self._page, setup.pairs)
        self._atoms = Identities()
        self._partial: dict[tuple[int, ...], int] = {}
        self._page_called: dict[Any, int] = {}
        self._first_tokens: set[int] = set()
        self._device_leaves, self._host_leaves = watch_leaves(self.cache)
        self._give_up = self.scheduler.give_up_one
        self.scheduler.give_up_one = self._watched_give_up  # type: ignore[method-assign]

    # What can happen: requests

    @happens
    def arrive(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        max_new_tokens: int | None = None,
        namespace: str | None = None,
        priority: int = 0,
    ) -> int:
        """A request for `output` after `prompt`, both token ids. Its id."""
        request_id = len(self.prompts)
        tokens = [*prompt, *output]
        made = Prompt(tokens, self._key(tokens), len(output), max_new_tokens, namespace, priority)
        self.prompts[request_id] = made
        self.live[request_id] = active = made.active(request_id, self.now_s)
        self.log.add(EntryKind.ARRIVE, self.now_s, request_id)
        self.engine.arrive(active, self.now_s)
        return request_id

    @happens
    def abort(self, request_id: int) -> None:
        """The client has gone, whatever has become of its request."""
        known = self.live.get(request_id)
        stage = known.stage.value if known is not None else "over"
        chunked = known is not None and known is self.scheduler.chunked
        self.seen[f"aborted while {'chunked' if chunked else stage}"] += 1
        self.log.add(EntryKind.ABORT, self.now_s, request_id)
        self.engine.abort(request_id, self.now_s)

    # What can happen: operations, steps, time

    def in_flight(self, *kinds: OpKind) -> list[int]:
        """Operations the plane has, oldest first."""
        return [op_id for op_id, flight in self.plane.in_flight.items() if not kinds or flight.op.kind in kinds]

    def may_end(self, op_id: int) -> bool:
        """A batch cannot end before the loads it needs."""
        op = self.plane.in_flight[op_id].op
        return op.kind is not OpKind.COMPUTE or not any(load in self.plane.in_flight for load in op.batch.loads)

    @happens
    def progress(self, op_id: int, pages: int) -> None:
        """Some leading pages of a FETCH in flight have arrived."""
        self._report(self.plane.progress(op_id, pages))

    @happens
    def release(self, op_id: int) -> None:
        """A hanging call returns."""
        self.seen["released"] += 1
        self._report(self.plane.release(op_id))

    @happens
    def complete(self, op_id: int, pages: int | None = None, lingers: bool = False) -> None:
        """An operation ends, with `pages` good ones, or as well as it can. Legal if `may_end`. `lingers`: its call
        hangs on."""
        op = self.plane.in_flight[op_id].op
        if op.kind is OpKind.CLEAR:
            self.store.pages.clear()
        if op.kind is OpKind.COMPUTE:
            pages = op.pages if pages is None or not op.batch.may_stop else min(max(pages, 1), op.pages)
            self._computed(op.batch, pages)
        self._report(self.plane.complete(op_id, None if op.kind is OpKind.LOAD else pages, lingers))

    @property
    def suspended(self) -> bool:
        """A step waits. It may go on once nothing is left that it waits for."""
        return self._step is not None

    @happens
    def step(self) -> None:
        """The engine steps, or goes on with a step that has waited for long enough."""
        if self._step is None:
            self._step = self.engine.step(self.now_s)
            self._advance(EntryKind.STEP)
        elif not self.waits_for:
            self._advance(EntryKind.RESUME)

    @happens
    def tick(self) -> None:
        """Acknowledgements between steps."""
        self.log.add(EntryKind.TICK, self.now_s)
        self.engine.tick(self.now_s)

    @happens
    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def pump(self) -> None:
        """Give the plane what has been decided."""
        for op in self.engine.take_ops():
            self.ops.append(plain_op(op))
            self.story.append(f"  {words(op)}{_batch_words(op)}")
            if isinstance(op, Op):
                self.plane.submit(op, self.reads_early(op))
                if op.kind is OpKind.COMPUTE:
                    self._begins(op.batch)
            else:
                self.plane.cancel(op.op_id)

    # What can happen: the store

    @happens
    def clear_storage(self) -> None:
        """The operator empties L3. Legal if there is one."""
        self.log.add(EntryKind.CLEAR, self.now_s)
        self.engine.clear_storage()

    @happens
    def store_has(self, tokens: Sequence[int]) -> None:
        """Somebody else has stored a prompt."""
        key = self._key(tokens)
        for name, page in zip(self.keys.chain(key, None), self.identities.of(key), strict=True):
            self.store.put(name, page)

    @happens
    def store_drops(self, count: int) -> None:
        """The store forgets its oldest pages."""
        self.store.drop(count)

    @happens
    def store_refuses(self, refusing: bool) -> None:
        """From now on writes fail, or succeed again."""
        self.store.refusing = refusing

    # The laws

    def check(self) -> None:
        """Raises LawBroken. In the middle of a step only what memory holds can be told."""
        self.memory.check(self.cache, self._page_called)
        self._device_leaves.check()
        self._host_leaves.check()
        if self._step is None:
            invariants.check(self.cache)
            self._collect_ended()
            self._check_whereabouts()
            self._check_users()
            self._check_running()
            self._check_first_tokens()

    def _check_whereabouts(self) -> None:
        """Every live request is in one place, and everybody in the engine is live."""
        inside = Counter(request.id for request in self.scheduler.requests())
        _require(all(count == 1 for count in inside.values()), f"L5: a request is in two places: {inside}")
        _require(set(inside) == set(self.live), f"L5: {set(self.live) ^ set(inside)} are lost, or came from nowhere")
        stopping = sum(request.stopping for request in self.live.values())
        _require(self.scheduler.stopping == stopping, f"{self.scheduler.stopping} count as stopping, not {stopping}")

    def _check_users(self) -> None:
        """L1, L3: slots of requests are those of leases; a node is locked once for each user below it."""
        ledger = self.cache.ledger
        leases = self._leases()
        held = [slot for lease in leases.values() for slot in lease.slots.tolist()]
        owned = self.cache.l1.owned()[Owner.REQUEST]
        _require(len(set(held)) == len(held) == owned, f"L1: {owned} slots are requests', leases have {len(held)}")
        others = self._tree_slots().union(self.cache.l1.free_slots().tolist())
        _require(others.isdisjoint(held), f"L1: slots {others.intersection(held)} are not the leases' alone")
        users = [lease.node for lease in leases.values()]
        users += [write.node for write in ledger.writing.values() if write.locked]
        users += [chain.node for load in ledger.loading.values() for chain in load.chains]
        locks: Counter[int] = Counter()
        for user in users:
            node: Node | None = user
            while node is not None:
                locks[node.id] += 1
                node = node.parent
        for node in self.cache.tree.nodes():
            _require(node.lock == locks[node.id], f"L3: {node.lock} locks on node {node.id}, {locks[node.id]} users")

    def _tree_slots(self) -> set[int]:
        """Device slots of all nodes."""
        extents = [node.device for node in self.cache.tree.nodes() if node.device is not None]
        return {slot for extent in extents for slot in extent.indices.tolist()}

    def _check_running(self) -> None:
        """The sums of the running batch, and slots for exactly the tokens of each request, or of its batch."""
        running, batch = self.scheduler.running, self.engine.batch
        context = sum(running.kv_tokens(request) for request in running)
        _require(running.context_tokens == context, f"the batch counts {running.context_tokens} tokens, not {context}")
        _require(len(running) <= self.setup.limits.max_running_requests, f"{len(running)} requests run")
        ahead = batch.steps if isinstance(batch, Decode) else 0
        for request in running:
            known, tokens = self.prompts[request.id], running.kv_tokens(request)
            made = tokens - known.input_tokens + 1
            _require(running.produced(request) == made, f"request {request.id} has {tokens} tokens and made {made}")
            self._check_slots(request, tokens + ahead)
        for request in self.scheduler.prefilling:
            self._check_slots(request, request.kv_tokens)

    def _check_slots(self, request: Active, tokens: int) -> None:
        assert request.lease is not None
        pages, want = request.lease.held + len(request.lease.slots), -(-tokens // self._page)
        _require(pages == want, f"request {request.id} has {pages} pages for {tokens} tokens")

    def _check_first_tokens(self) -> None:
        """L12: what was found and what was computed is the prompt."""
        for request in [*self.live.values(), *self.ended]:
            if request.first_token_s < 0 or request.id in self._first_tokens:
                continue
            self._first_tokens.add(request.id)
            found = request.device_hit_tokens + request.loaded_tokens
            total = found + request.computed_tokens
            _require(
                total == request.input_tokens, f"L12: {total} of {request.input_tokens} tokens of request {request.id}"
            )
            _require(request.storage_hit_tokens <= request.loaded_tokens <= request.host_hit_tokens, "L12: hits")

    def _collect_ended(self) -> None:
        self.scheduler.take_admitted()
        for request in self.scheduler.take_ended():
            _require(self.live.pop(request.id, None) is request, f"L5: request {request.id} ends twice")
            _require(request.lease is None, f"L4: request {request.id} has ended and holds memory")
            self.ended.append(request)
            self.seen[request.stage.value] += 1
            self.seen["retracted"] += request.retractions
            self.seen["chunked"] += request.chunks > 1 + request.retractions
            self.seen["ended at its first token"] += request.stage is Stage.DONE and request.produced == 1
            times = [request.arrival_s, request.ended_s]
            if request.stage is Stage.DONE:
                times[1:1] = [request.admitted_s, request.first_token_s]
                whole = request.produced == request.output_tokens
                _require(whole, f"request {request.id} is done with {request.produced} tokens")
            _require(times == sorted(times), f"request {request.id} went back in time: {times}")

    # Ending everything

    def drain(self) -> None:
        """End all that is under way, until every request has ended; then see that nothing is held or forgotten."""
        for _ in range(MOST_ROUNDS):
            self.pump()
            ledger = self.cache.ledger
            if self.engine.idle and self._step is None and ledger.at_rest and not (ledger.open or self.plane.in_flight):
                break
            before = self._mark()
            self._end_everything()
            if self._mark() == before:
                self.advance(FOREVER_S)
                self._end_everything()
                _require(self._mark() != before, f"L5: {self._stuck_words()}")
        else:
            raise LawBroken(f"L5: not at rest after {MOST_ROUNDS} rounds: {self._stuck_words()}")
        for op_id in list(self.plane.lingering):
            self.release(op_id)
        self._come_to_rest()
        invariants.check_at_rest(self.cache)
        _require(not self.live, f"L5: {list(self.live)} have never ended")
        self._check_replay()

    def _come_to_rest(self) -> None:
        """Tick until nothing comes of it: a tick may copy ahead, and what was copied goes on to the store."""
        for _ in range(MOST_ROUNDS):
            self.tick()
            self.pump()
            if not self.in_flight():
                return
            for op_id in self.in_flight():
                self.complete(op_id)
        raise LawBroken(f"L5: not at rest after {MOST_ROUNDS} ticks without a request")

    def _end_everything(self) -> None:
        """One round: all that may end does, and the engine goes on."""
        for op_id in self.in_flight():
            if self.may_end(op_id):
                self.complete(op_id)
        self.step()
        self.pump()

    def _mark(self) -> tuple[Any, ...]:
        """Changes as long as anything goes on."""
        return len(self.ops), len(self.log), len(self.ended), len(self.plane.in_flight)

    def _stuck_words(self) -> str:
        scheduler = self.scheduler
        chunked = None if scheduler.chunked is None else scheduler.chunked.id
        running = [request.id for request in scheduler.running]
        places = f"waiting {list(scheduler.waiting)}, running {running}, chunked {chunked}, full {scheduler.full}"
        return f"requests can never end: {places}"

    def _check_replay(self) -> None:
        """L6: the log brings a fresh engine to the same decisions."""
        made: dict[int, Prompt] = self.prompts
        engine = self.setup.engine(self.keys)
        again = replay(self.log.entries(), engine, lambda request_id, at_s: made[request_id].active(request_id, at_s))
        _require([plain_op(op) for op in again] == self.ops, "L6: the log replays to other operations")

    def reports(self) -> list[tuple[Any, ...]]:
        """What became of each request, in the order of their ends: L7 compares it."""
        return [(request.stage.value, *(getattr(request, name) for name in _REPORTED)) for request in self.ended]

    # Within: the protocol

    def _report(self, event: Report) -> None:
        self.log.report(event, self.now_s)
        self.engine.on(event)
        if event.ends:
            self.waits_for.discard(event.op_id)

    def _advance(self, kind: EntryKind) -> None:
        assert self._step is not None
        self.log.add(kind, self.now_s)
        wait = next(self._step, None)
        if wait is None:
            self._step = None
            return
        self.seen["stalls"] += 1
        self.waits_for = set(wait.op_ids)
        self.pump()

    def _watched_give_up(self, now_s: float) -> bool:
        """The last resort is for requests that stand in each other's way. One alone always has room."""
        holders = len(self._leases())
        given_up = self._give_up(now_s)
        if given_up:
            self.seen["given up"] += 1
            _require(holders > 1, f"L5: a request was given up while {holders} held memory: {self._stuck_words()}")
        return given_up

    def _leases(self) -> dict[int, Lease]:
        return {request.id: request.lease for request in self.scheduler.requests() if request.lease is not None}

    # Within: computing on shadow memory

    def _begins(self, batch: Prefill | Decode) -> None:
        """What a batch reads is there, but for what is being loaded; what it will write is whatever it was before."""
        for request, before, after in self._spans(batch, batch.steps):
            slots = self._slots(request)
            self._check_read(request, slots, before)
            self.memory.l1[slots[-(-before // self._page) : -(-after // self._page)]] = GARBAGE

    def _computed(self, batch: Prefill | Decode, steps: int) -> None:
        """What a batch reads is there now, all of it; what it writes has the next tokens."""
        loads = [load for load in batch.loads if load in self.plane.in_flight]
        _require(not loads, f"a batch ends before its loads {loads}")
        for request, before, after in self._spans(batch, steps):
            slots = self._slots(request)
            self._check_read(request, slots, before)
            assert request.lease is not None
            first = max(request.lease.held, (before - self._lag) // self._page)
            pages = self._pages(request, after)[first:]
            own = slots[first : first + len(pages)]
            _require(not self._tree_slots().intersection(own.tolist()), "L3: a batch writes into the tree")
            self.memory.l1[own] = pages

    def _spans(self, batch: Prefill | Decode, steps: int) -> list[tuple[Active, int, int]]:
        """Requests of a batch, each with its tokens before and after."""
        return [(request, before, before + new * steps) for request, before, new in batch.parts()]

    def _slots(self, request: Active) -> Slots:
        """Slots of all pages of a request, in order."""
        assert request.lease is not None
        return request.lease.device_pages()

    def _check_read(self, request: Active, slots: Slots, tokens: int) -> None:
        """L10 for the pages of the first `tokens` tokens, but for those on their way to the device."""
        pages = self._pages(request, tokens)
        arriving = {slot for flight in self.plane.in_flight.values() for slot in _load_slots(flight.op)}
        for at, page in enumerate(pages):
            slot = int(slots[at])
            there = slot in arriving or self.memory.l1[slot] == page
            _require(there, f"L10: page {at} of request {request.id} holds {self.memory.l1[slot]}, not {page}")

    def _pages(self, request: Active, tokens: int) -> list[int]:
        """What the pages of the first `tokens` tokens hold; the last may be half full."""
        assert request.lease is not None
        known = self.prompts[request.id]
        whole = max(request.lease.held, (tokens - self._lag) // self._page)
        pages = self.identities.of(known.key)[:whole]
        rest = known.tokens[whole * self._page : tokens]
        if rest:
            content = (pages[-1] if pages else START, *rest)
            pages.append(self._partial.setdefault(content, GARBAGE - 1 - len(self._partial)))
        return pages

    # Within: keys

    def _key(self, tokens: Sequence[int]) -> bytes:
        """The key of a prompt; the names of its pages are known from now on."""
        if isinstance(self.keys, TokenPages):
            key = self.keys.key(tokens)
        else:
            key = array("q", self._atoms.of(self._local.key(tokens))).tobytes()
        self._page_called.update(zip(self.keys.chain(key, None), self.identities.of(key), strict=True))
        return key


_REPORTED = (
    "id",
    "arrival_s",
    "admitted_s",
    "first_token_s",
    "ended_s",
    "device_hit_tokens",
    "host_hit_tokens",
    "loaded_tokens",
    "storage_hit_tokens",
    "computed_tokens",
    "produced",
    "chunks",
    "retractions",
)


def plain_op(op: Any) -> tuple[Any, ...]:
    """An operation, its batch too, in a form that compares."""
    batch = getattr(op, "batch", None)
    if isinstance(batch, Prefill):
        return (*plain(op), [request.id for request in batch.requests], batch.spans, batch.loads)
    if isinstance(batch, Decode):
        return (*plain(op), [request.id for request in batch.running], batch.context_tokens, batch.steps)
    return plain(op)


def _batch_words(op: Any) -> str:
    batch = getattr(op, "batch", None)
    if isinstance(batch, Prefill):
        return f": prefill {dict(zip([r.id for r in batch.requests], batch.spans, strict=True))} after {batch.loads}"
    return f": decode {[request.id for request in batch.running]}" if isinstance(batch, Decode) else ""


def _load_slots(op: Op) -> list[int]:
    return op.dst.tolist() if op.kind is OpKind.LOAD and op.dst is not None else []


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise LawBroken(words)
