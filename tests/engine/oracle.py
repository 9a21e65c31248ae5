"""Upstream's scheduling told again, one token a step, as the judge of the engine's.

Rules of this file
- Everything is counted in tokens and done anew at every step, as v0.5.7's scheduler loop does: nothing is kept that can
  be counted, no step is skipped. The cache underneath is ours, which golden files judge.
- Transfers are over before they are asked about, in the oracle as in the engine it is compared with.
- A trace names what was computed: ("prefill", ((id, before, new), …), room) and ("decode", ids, steps, ratio).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from hicache_ref.control.active import Active
from hicache_ref.control.batches import Decode, Prefill
from hicache_ref.control.cache import HiCache
from hicache_ref.control.keys import ATOM_BYTES
from hicache_ref.control.lease import Lease, commit, discard, release
from hicache_ref.control.slots import Owner, nothing
from hicache_ref.control.types import Completion, Op, OpKind, Wait
from hicache_ref.testing.engine_machine import EngineSetup, Prompt

CLIP = 4096
CONTINUE, NO_TOKEN, OTHER = "continue", "no token", "other"


class OutOfMemory(Exception):
    """Upstream raises and dies here."""


@dataclass
class Job:
    """One request of a run: due when so many batches and steps are over."""

    id: int
    due: int
    prompt: Prompt


@dataclass(eq=False)
class Req:
    """A request as upstream sees it."""

    id: int
    prompt: Prompt
    origin: int
    longest: int
    stop: int
    """Tokens after which it ends."""
    out: int = 0
    fill: int = 0
    prefix: int = 0
    host: int = 0
    extend: int = 0
    lease: Lease | None = None
    match: Any = None
    retracted: int = 0

    @property
    def finished(self) -> bool:
        return self.out >= self.stop


@dataclass
class Outcome:
    """What a run computed, and how it ended."""

    trace: list[tuple[Any, ...]] = field(default_factory=list)
    ended: list[tuple[int, int, int]] = field(default_factory=list)
    """(id, tokens made, times sent back), in order."""
    died: bool = False

    def prefill(self, spans: list[tuple[int, int, int]], room: int) -> None:
        self.trace.append(("prefill", tuple(spans), room))

    def decode(self, ids: list[int], steps: int, ratio: float) -> None:
        """Decode steps of the same requests are one entry."""
        last = self.trace[-1] if self.trace else ("",)
        if last[0] == "decode" and last[1] == tuple(ids):
            steps += self.trace.pop()[2]
        self.trace.append(("decode", tuple(ids), steps, round(ratio, 9)))


class Oracle:
    """The loop."""

    def __init__(self, setup: EngineSetup, keys: Any) -> None:
        self.cache = setup.cache.cache()
        self.cache.keys = keys
        self.limits = limits = setup.limits
        self.schedule = setup.schedule
        self.page = setup.cache.page_tokens
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.last: list[Req] = []
        self.chunked: Req | None = None
        self.is_full = False
        self.init_ratio = min(limits.init_new_token_ratio * limits.schedule_conservativeness, 1.0)
        self.min_ratio = min(self.init_ratio * limits.min_new_token_ratio_factor, 1.0)
        self.decay = (self.init_ratio - self.min_ratio) / limits.new_token_ratio_decay_steps
        self.ratio = self.init_ratio
        self.outcome = Outcome()

    def run(self, jobs: list[Job]) -> Outcome:
        jobs, loops = sorted(jobs, key=lambda job: job.due), 0
        try:
            while jobs or self.waiting or self.running or self.chunked or self.last:
                while jobs and jobs[0].due <= loops:
                    self.receive(jobs.pop(0))
                # Copies that were under way may have held what it needs.
                if self.loop() or self.loop():
                    loops += 1
                elif jobs:
                    loops = max(loops, jobs[0].due)
                else:
                    break
        except OutOfMemory:
            self.outcome.died = True
        return self.outcome

    # The pool

    @property
    def available(self) -> int:
        return self.cache.l1.free * self.page

    @property
    def evictable(self) -> int:
        return self.cache.tree.evictable * self.page

    def evict_for(self, tokens: int) -> None:
        if self.available < tokens:
            short = tokens - self.available if self.cache.rules.evict_shortfall_only else tokens
            instantly(self.cache, self.cache.make_room(-(-short // self.page)))

    def alloc(self, pages: int) -> Any:
        slots = self.cache.l1.alloc(pages, Owner.REQUEST)
        if slots is None:
            raise OutOfMemory
        return slots

    # Requests come

    def receive(self, job: Job) -> None:
        pool = self.cache.l1.pages * self.page
        context = self.limits.context_tokens
        max_req_len = (pool if context is None else min(context, pool)) - 1
        origin = job.prompt.input_tokens
        wanted = job.prompt.output_tokens if job.prompt.max_new_tokens is None else job.prompt.max_new_tokens
        longest = min(wanted, max_req_len - origin - 1)
        if origin >= max_req_len - 5:
            self.outcome.ended.append((job.id, 0, 0))
            return
        stop = max(1, min(job.prompt.output_tokens, longest))
        self.waiting.append(Req(job.id, job.prompt, origin, longest, stop))

    # One loop

    def loop(self) -> bool:
        batch, kind = self.next_batch()
        self.last = batch if kind == "prefill" else []
        settle(self.cache)
        self.cache.tick(0.0)
        if not batch:
            return False
        if kind == "prefill":
            self.after_prefill(batch)
        else:
            self.after_decode(batch)
        settle(self.cache)
        return True

    def next_batch(self) -> tuple[list[Req], str]:
        if self.chunked is not None:
            self.keep(self.chunked, self.chunked.prefix + self.chunked.extend, chunked=True)
        if self.last:
            stay = [req for req in self.last if not req.finished and req is not self.chunked]
            if len(stay) < len(self.last):
                self.is_full = False
            if stay and not self.running:
                self.running, self.is_full = stay, False
            else:
                self.running = self.running + stay
        batch = self.prefill_batch()
        if batch:
            return batch, "prefill"
        return (self.decode_batch(), "decode") if self.running else ([], "")

    def prefill_batch(self) -> list[Req]:
        if (self.is_full or not self.waiting) and self.chunked is None:
            return []
        most = self.limits.max_running_requests - len(self.running)
        if most <= 0 and self.chunked is None:
            self.is_full = True
            return []
        self.order()
        adder = Adder(self)
        was_chunked = self.chunked
        if was_chunked is not None:
            was_chunked.fill = was_chunked.origin + was_chunked.out
            was_chunked.prefix += was_chunked.extend
            was_chunked.extend = was_chunked.fill - was_chunked.prefix
            self.chunked = adder.add_chunked(was_chunked)
        for req in self.waiting:
            if len(adder.can_run) >= most:
                self.is_full = True
            if self.is_full:
                break
            self.match(req)
            verdict = adder.add_one(req)
            if verdict is not CONTINUE:
                if verdict is NO_TOKEN:
                    self.is_full = bool(adder.can_run or self.running)
                break
        if not adder.can_run:
            return []
        self.waiting = [req for req in self.waiting if req not in adder.can_run]
        if adder.new_chunked is not None:
            assert self.chunked is None
            self.chunked = adder.new_chunked
        self.cache.start_loading()
        self.alloc_for_extend(adder.can_run)
        spans = [(req.id, req.prefix, req.extend) for req in adder.can_run]
        self.outcome.prefill(spans, room(self.cache))
        return adder.can_run

    def match(self, req: Req) -> None:
        req.fill = req.origin + req.out
        req.match = self.cache.match(req.prompt.namespace, self.key(req, req.fill - 1))
        req.prefix = req.match.device_pages * self.page
        req.host = req.match.host_pages * self.page
        req.extend = req.fill - req.prefix

    def order(self) -> None:
        if self.schedule == "lof":
            self.waiting.sort(key=lambda req: -req.longest)
        if self.schedule != "lpm" or len(self.waiting) > 128:
            return
        ranks: dict[int, float] = {}
        queued: list[tuple[str | None, bytes]] = []
        for req in self.waiting:
            key = self.key(req, req.origin + req.out)
            known = self.cache.match(req.prompt.namespace, key).device_pages * self.page
            ranks[req.id] = -known
            if known <= 32:
                twins = [common(key, other) for space, other in queued if space == req.prompt.namespace]
                if max(twins, default=0) * self.page >= 32:
                    ranks[req.id] = float("inf")
                else:
                    queued.append((req.prompt.namespace, key))
        self.waiting.sort(key=lambda req: ranks[req.id])

    def alloc_for_extend(self, batch: list[Req]) -> None:
        tokens = sum(req.extend for req in batch)
        self.evict_for(tokens if self.page == 1 else tokens + len(batch) * self.page)
        for req in batch:
            assert req.lease is not None
            req.lease.grow(self.alloc(self.pages(req.prefix + req.extend) - self.pages(req.prefix)))

    def decode_batch(self) -> list[Req]:
        before = len(self.running)
        if not self.enough_for_step(self.running):
            self.retract()
        else:
            self.ratio = max(self.ratio - self.decay, self.min_ratio)
        if len(self.running) < before:
            self.is_full = False
        self.evict_for(len(self.running) * self.page)
        for req in self.running:
            assert req.lease is not None
            req.lease.grow(self.alloc(int(self.length(req) % self.page == 0)))
        self.outcome.decode([req.id for req in self.running], 1, self.ratio)
        return self.running

    def enough_for_step(self, batch: list[Req]) -> bool:
        tokens = sum(self.length(req) % self.page == 0 for req in batch) * self.page
        self.evict_for(tokens)
        return self.available >= tokens

    def retract(self) -> None:
        keep = sorted(self.running, key=lambda req: (req.out, -req.origin), reverse=True)
        gone = []
        while (not gone or not self.enough_for_step(keep)) and len(keep) > 1:
            req = keep.pop()
            gone.append(req)
            assert req.lease is not None
            discard(self.cache, req.lease)
            req.lease = None
            req.retracted += 1
            self.evict_for(len(keep) * self.limits.retract_decode_steps)
        if len(keep) <= 1 and not self.enough_for_step(keep):
            raise OutOfMemory
        self.running = keep
        made = sum(req.out for req in keep) + self.limits.retract_decode_steps * len(keep)
        self.ratio = min(1.0, made / (sum(req.longest for req in keep) + 1))
        self.waiting += gone

    # What has been computed

    def after_prefill(self, batch: list[Req]) -> None:
        for req in batch:
            if req is self.chunked:
                continue
            req.out += 1
            if req.finished:
                self.finish(req)
            else:
                self.keep(req, req.fill, chunked=False)

    def after_decode(self, batch: list[Req]) -> None:
        over = False
        for req in batch:
            req.out += 1
            if req.finished:
                self.finish(req)
                over = True
        if over:
            # At the head of the next decode pass, which comes before anything else looks.
            self.running = [req for req in self.running if not req.finished]
            self.is_full = False

    def keep(self, req: Req, tokens: int, chunked: bool) -> None:
        assert req.lease is not None
        req.lease.key = self.key(req, tokens)
        commit(self.cache, req.lease, req.prompt.priority, chunked)

    def finish(self, req: Req) -> None:
        assert req.lease is not None
        committed = self.length(req) if self.cache.rules.caches_output else req.origin
        req.lease.key = self.key(req, committed)
        release(self.cache, req.lease, req.prompt.priority)
        self.outcome.ended.append((req.id, req.out, req.retracted))

    # Arithmetic

    def length(self, req: Req) -> int:
        """Tokens with KV: the newest has none yet."""
        return req.origin + req.out - 1

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def key(self, req: Req, tokens: int) -> bytes:
        return req.prompt.key[: max(tokens - self.limits.key_lag_tokens, 0) // self.page * ATOM_BYTES]


class Adder:
    """Budgets of one prefill batch, and the verdict on each request."""

    def __init__(self, oracle: Oracle) -> None:
        self.of = oracle
        self.input_left = oracle.limits.max_prefill_tokens
        self.chunk_left = oracle.limits.chunked_prefill_tokens
        self.offset = sum(min(req.longest - req.out, CLIP) * oracle.ratio for req in oracle.running)
        self.now_offset = 0
        self.can_run: list[Req] = []
        self.new_chunked: Req | None = None

    def total_left(self) -> float:
        return self.of.available + self.of.evictable - self.offset

    def now_left(self) -> int:
        return self.of.available + self.of.evictable - self.now_offset

    def whole(self, tokens: int) -> int:
        return self.of.pages(tokens) * self.of.page

    def spend(self, extend: int, later: int) -> None:
        extend = self.whole(extend)
        self.offset += extend + later
        self.now_offset += extend
        self.input_left -= extend
        if self.chunk_left is not None:
            self.chunk_left -= extend

    def add_chunked(self, req: Req) -> Req | None:
        assert self.chunk_left is not None
        room = min(self.chunk_left, int(self.total_left()))
        if room <= 0:
            room = self.chunk_left
        cut = req.extend > room
        req.extend = min(req.extend, room)
        self.can_run.append(req)
        self.spend(req.extend, 0 if cut else min(req.longest, CLIP))
        return req if cut else None

    def add_one(self, req: Req) -> str:
        cache = self.of.cache
        total = req.extend + min(max(req.longest - req.out, 0), CLIP)
        if total >= self.total_left():
            return NO_TOKEN
        if self.whole(req.extend - req.host) >= self.input_left and self.can_run:
            return OTHER
        node = req.match.device_node
        cache.lock(node)
        try:
            if total >= self.total_left():
                return NO_TOKEN
            loaded = instantly(cache, cache.load_back(req.match)) if req.host else 0
            if loaded:
                node = req.match.node
                req.prefix += loaded * self.of.page
                req.extend = req.fill - req.prefix
            whole = self.whole(req.extend)
            if whole >= self.input_left and self.can_run:
                return OTHER
            if self.chunk_left is None or whole <= self.chunk_left:
                later = min(req.longest, CLIP)
            else:
                cut = self.chunk_left // self.of.page * self.of.page
                if cut <= 0:
                    return OTHER
                req.extend, later = cut, 0
                self.new_chunked = req
            self.can_run.append(req)
            cache.lock(node)
            self.spend(req.extend, later)
        finally:
            cache.unlock(req.match.device_node)
        req.lease = Lease(req.prompt.namespace, b"", req.prefix // self.of.page, node, nothing(Owner.REQUEST))
        return self.state()

    def state(self) -> str:
        if self.total_left() <= 0 or self.now_left() <= 0:
            return NO_TOKEN
        if self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0):
            return OTHER
        return CONTINUE


def common(a: bytes, b: bytes) -> int:
    """Leading pages that two keys share."""
    pairs = zip(memoryview(a).cast("q"), memoryview(b).cast("q"), strict=False)
    return next((at for at, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)) // ATOM_BYTES)


def room(cache: HiCache) -> int:
    """Pages of L1 that are free or could be. Not the free alone: at each step upstream looks again for the page a
    request that it wants in reserve, which the engine looks for once a batch, so it may evict the same a step later."""
    return cache.l1.free + cache.tree.evictable


# Transfers that take no time


def settle(cache: HiCache) -> None:
    for op in cache.take_ops():
        if isinstance(op, Op):
            cache.on(Completion(op.id, op.pages))


def instantly(cache: HiCache, call: Generator[Wait, None, int]) -> int:
    """A call that may wait, whose copies are over at once."""
    while True:
        try:
            next(call)
        except StopIteration as stop:
            return int(stop.value)
        settle(cache)


# The engine, brought to the same terms


class Instant:
    """The engine under test; batches take loops, transfers no time."""

    def __init__(self, setup: EngineSetup, keys: Any) -> None:
        self.engine = setup.engine(keys)
        self.outcome = Outcome()
        self.batch: Op | None = None

    def run(self, jobs: list[Job]) -> Outcome:
        jobs, loops = sorted(jobs, key=lambda job: job.due), 0
        engine = self.engine
        while True:
            while jobs and jobs[0].due <= loops:
                job = jobs.pop(0)
                engine.arrive(job.prompt.active(job.id, float(job.due)), 0.0)
            self.step()
            if self.batch is None:
                self.step()
            if engine.scheduler.aborted_for_room:
                self.outcome.died = True
                return self.outcome
            if self.batch is not None:
                loops += self.compute(jobs[0].due - loops if jobs else None)
            elif jobs:
                loops = max(loops, jobs[0].due)
            else:
                return self.outcome

    def step(self) -> None:
        step = self.engine.step(0.0)
        while next(step, None) is not None:
            self.settle()
        self.settle()
        for request in self.engine.scheduler.take_ended():
            self.outcome.ended.append((request.id, request.produced, request.retractions))

    def settle(self) -> None:
        """What is decided is done, but for the batch."""
        for op in self.engine.take_ops():
            if not isinstance(op, Op):
                continue
            if op.kind is OpKind.COMPUTE:
                self.batch = op
                if isinstance(op.batch, Prefill):
                    spans = [(r.id, *span) for r, span in zip(op.batch.requests, op.batch.spans, strict=True)]
                    self.outcome.prefill(spans, room(self.engine.cache))
            else:
                self.engine.on(Completion(op.id, op.pages))

    def compute(self, most: int | None) -> int:
        """End the batch, a decode batch after `most` steps at the latest. The loops it took."""
        op, self.batch = self.batch, None
        assert op is not None
        steps = op.pages if most is None or op.batch.may_stop is False else max(1, min(op.pages, most))
        if isinstance(op.batch, Decode):
            ids, scheduler = [request.id for request in op.batch.running], self.engine.scheduler
            before = scheduler.new_token_ratio
            self.engine.on(Completion(op.id, steps))
            after = max(before - scheduler._decay * (steps - 1), scheduler._min_ratio)
            self.outcome.decode(ids, steps, after)
        else:
            self.engine.on(Completion(op.id, steps))
        return steps


def compare(setup: EngineSetup, jobs: list[Job], keys: Any, tell: Callable[[str], None] = print) -> Outcome:
    """Both runs; AssertionError where they part."""
    judge = Oracle(setup, keys).run(list(jobs))
    ours = Instant(setup, keys).run(list(jobs))
    length = min(len(judge.trace), len(ours.trace)) if judge.died or ours.died else len(judge.trace)
    for at in range(max(length, len(ours.trace)) if not judge.died else length):
        want = judge.trace[at] if at < len(judge.trace) else None
        have = ours.trace[at] if at < len(ours.trace) else None
        same = want == have or (at == length - 1 and judge.died)
        assert same, f"batch {at} of {setup}\nupstream {want}\nours     {have}"
    if not judge.died:
        # A prompt too long is turned away before the step, and so before those end that end in it.
        assert [row for row in ours.ended if row[1]] == [row for row in judge.ended if row[1]]
        assert sorted(ours.ended) == sorted(judge.ended)
    return judge


__all__ = ["Active", "Instant", "Job", "Oracle", "Outcome", "compare"]
