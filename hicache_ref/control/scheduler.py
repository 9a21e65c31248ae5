"""The request scheduler: who waits, who is admitted, who decodes, who has to go back.

Rules of this file
- Budgets are in tokens and count what is free and what could be evicted, as upstream's do; slots are pages.
- One batch at a time: a prefill batch if one can be formed, else a decode batch. A decode batch runs many steps in
  one operation, as many as change nothing else: until a request ends or L1 runs short of upstream's reserve.
- Source: `managers/schedule_policy.py` (`PrefillAdder`), `schedule_batch.py` (`retract_decode`, `check_decode_mem`),
  `scheduler.py` (`get_next_batch_to_run`) and `mem_cache/common.py` of 0.5.7.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from .active import Active, Stage
from .batches import Decode, Prefill
from .budget import CLIP_MAX_NEW_TOKENS, Budget, SchedulerLimits, Verdict
from .cache import HiCache
from .keys import ATOM_BYTES
from .lease import Lease, commit, discard, release
from .running import Running
from .slots import Owner, nothing
from .storage import StorageSide
from .tree import Match
from .types import Wait


class SchedulePolicy(Protocol):
    """In which order waiting requests are considered."""

    name: str
    reorders: bool
    """False: in the order they came."""

    def order(self, waiting: list[Active], cache: HiCache) -> None:
        """Sort `waiting` in place. May match prompts, which counts as use of their prefixes, as upstream's does."""
        ...


class Scheduler:
    """Queue and batches over one cache."""

    def __init__(
        self, cache: HiCache, storage: StorageSide | None, limits: SchedulerLimits, policy: SchedulePolicy
    ) -> None:
        self.cache = cache
        self.storage = storage
        self.limits = limits
        self.policy = policy
        self.waiting: dict[int, Active] = {}
        """By id, in the order in which they are considered."""
        self.prefilling: list[Active] = []
        """The requests of the prefill batch in flight."""
        self.running = Running(cache.shape.page_tokens, CLIP_MAX_NEW_TOKENS)
        self.chunked: Active | None = None
        """The request whose prompt is only partly prefilled: at most one."""
        self.full = False
        """No request is admitted until one ends (upstream's `batch_is_full`)."""
        self.admitted: list[Active] = []
        """Requests admitted for the first time since they were last collected."""
        self.ended: list[Active] = []
        """Requests that have ended since they were last collected."""
        self._passes = 0
        self.retracted = 0
        self.aborted_for_room = 0
        self.stopping = 0
        """Requests that are to end with the batch they are in."""
        self._page = cache.shape.page_tokens
        self._init_ratio = min(limits.init_new_token_ratio * limits.schedule_conservativeness, 1.0)
        self._min_ratio = min(self._init_ratio * limits.min_new_token_ratio_factor, 1.0)
        self._decay = (self._init_ratio - self._min_ratio) / limits.new_token_ratio_decay_steps
        self.new_token_ratio = self._init_ratio

    # Arriving and leaving

    def longest_prompt_tokens(self) -> int:
        """Longer prompts are rejected: those of upstream's `max_req_input_len` and beyond."""
        return self._longest_request_tokens() - 6

    def _longest_request_tokens(self) -> int:
        pool = self.cache.l1.pages * self._page
        context = self.limits.context_tokens
        return (pool if context is None else min(pool, context)) - 1

    def enqueue(self, request: Active, now_s: float) -> None:
        """A request arrives: rejected, or queued, and its prefetch started."""
        if request.input_tokens > self.longest_prompt_tokens():
            self._end(request, Stage.REJECTED, now_s)
            return
        room = self._longest_request_tokens() - request.input_tokens - 1
        request.max_new_tokens = min(request.max_new_tokens, room)
        request.output_tokens = max(1, min(request.output_tokens, request.max_new_tokens))
        self._queue(request, now_s)

    def _queue(self, request: Active, now_s: float) -> None:
        request.stage = Stage.WAITING
        self._prefetch(request, now_s)
        self.waiting[request.id] = request

    def _prefetch(self, request: Active, now_s: float) -> None:
        if self.storage is None:
            return
        key = self._match_key(request)
        match = self.cache.match(request.namespace, key)
        missing = key[(match.device_pages + match.host_pages) * ATOM_BYTES :]
        request.prefetch = self.storage.prefetch(request.id, match, request.namespace, missing, now_s)
        request.prefetch_tries += 1

    def _retry_prefetches(self, now_s: float) -> None:
        """Ask L3 again for waiting requests that were refused for load or found too little (0.5.23)."""
        rules = self.cache.rules
        self._passes += 1
        if not rules.prefetch_retry_attempts or self._passes % rules.prefetch_retry_passes:
            return
        for request in list(self.waiting.values())[1:]:  # never the head of the queue: it would only be delayed
            prefetch = request.prefetch
            if prefetch is None or prefetch.refused is None or not prefetch.refused.worth_a_retry:
                continue
            if request.prefetch_tries <= rules.prefetch_retry_attempts:
                self._prefetch(request, now_s)

    def abort(self, request_id: int, now_s: float) -> None:
        """Give up a request: at once if it waits, with its batch if it runs. Unknown ones have ended already."""
        waiting = self.waiting.pop(request_id, None)
        if waiting is not None:
            if self.storage is not None:
                self.storage.abort(request_id)
            self._end(waiting, Stage.ABORTED, now_s)
            return
        for request in self.requests():
            if request.id == request_id and not request.stopping:
                request.stopping = True
                self.stopping += 1

    def _end(self, request: Active, stage: Stage, now_s: float) -> None:
        self.stopping -= request.stopping
        request.stage = stage
        request.ended_s = now_s
        self.ended.append(request)

    # Forming a prefill batch

    def form_prefill(self, now_s: float) -> Generator[Wait, None, Prefill | None]:
        """Admit what fits (upstream's `get_new_batch_prefill`); None if nothing does."""
        if (self.full or not self.waiting) and self.chunked is None:
            return None
        if len(self.running) >= self.limits.max_running_requests and self.chunked is None:
            self.full = True
            return None
        self._retry_prefetches(now_s)
        if self.policy.reorders:
            queue = list(self.waiting.values())
            self.policy.order(queue, self.cache)
            self.waiting = {request.id: request for request in queue}
        budget = Budget(self.cache, self.limits, self.running, self.new_token_ratio)
        admitted: list[tuple[Active, int]] = []
        if self.chunked is not None:
            admitted.append((self.chunked, self._next_chunk(self.chunked, budget)))
        if self.waiting:
            yield from self._admit_waiting(admitted, budget, now_s)
        if admitted:
            yield from self._allocate(admitted)
        self.cache.start_loading()
        if not admitted:
            # There were slots for nobody after all: only a running request can end the wait for one to end.
            self.full = self.full and bool(self.running)
            return None
        self._leave_queue(admitted, now_s)
        spans = []
        for request, extend in admitted:
            spans.append((request.kv_tokens, extend))
            request.kv_tokens += extend
            request.computed_tokens += extend
            request.chunks += 1
        self.prefilling = [request for request, _ in admitted]
        # Every load in flight, not only this batch's: an earlier one may feed nodes that this batch has matched.
        return Prefill(self.prefilling, spans, tuple(self.cache.ledger.loading))

    def _next_chunk(self, request: Active, budget: Budget) -> int:
        assert budget.chunk_tokens is not None
        left = request.fill_tokens - request.kv_tokens
        room = min(budget.chunk_tokens, int(budget.total_tokens))
        # It holds slots, so it must go on, however little room there is.
        extend = min(left, room if room > 0 else budget.chunk_tokens)
        done = extend == left
        budget.spend(extend, min(request.max_new_tokens, CLIP_MAX_NEW_TOKENS) if done else 0)
        if done:
            self.chunked = None
        return extend

    def _admit_waiting(
        self, admitted: list[tuple[Active, int]], budget: Budget, now_s: float
    ) -> Generator[Wait, None, None]:
        allowed = self.limits.max_running_requests - len(self.running)
        for request in self.waiting.values():
            if len(admitted) >= allowed:
                self.full = True
            if self.full:
                break
            if self.storage is not None and not self.storage.poll(request.id, now_s):
                continue
            verdict = yield from self._add(request, admitted, budget)
            if verdict is not Verdict.GO_ON:
                if verdict is Verdict.NO_TOKEN:
                    self.full = bool(admitted or self.running)
                break

    def _add(
        self, request: Active, admitted: list[tuple[Active, int]], budget: Budget
    ) -> Generator[Wait, None, Verdict]:
        """Add one request to the batch if it fits (upstream's `add_one_req`)."""
        cache, page = self.cache, self._page
        match = cache.match(request.namespace, self._match_key(request))
        prefix, host = match.device_pages * page, match.host_pages * page
        new_tokens = min(max(request.max_new_tokens - request.produced, 0), CLIP_MAX_NEW_TOKENS)
        total = request.fill_tokens - prefix + new_tokens
        if total >= budget.total_tokens:
            return Verdict.NO_TOKEN
        if admitted and budget.whole_pages(request.fill_tokens - prefix - host) >= budget.input_tokens:
            return Verdict.STOP
        cache.lock(match.device_node)
        try:
            if total >= budget.total_tokens:
                return Verdict.NO_TOKEN
            loaded = 0
            if match.host_pages:
                loaded = yield from cache.load_back(match)
            held = match.device_pages + loaded
            extend = request.fill_tokens - held * page
            whole = budget.whole_pages(extend)
            if admitted and whole >= budget.input_tokens:
                return Verdict.STOP
            if budget.chunk_tokens is not None and whole > budget.chunk_tokens:
                extend = budget.chunk_tokens // page * page
                if extend <= 0:
                    return Verdict.STOP
                self.chunked = request
                new_tokens = 0
            else:
                new_tokens = min(request.max_new_tokens, CLIP_MAX_NEW_TOKENS)
            node = match.node if loaded else match.device_node
            cache.lock(node)
            budget.spend(extend, new_tokens)
        finally:
            cache.unlock(match.device_node)
        request.lease = Lease(request.namespace, b"", held, node, nothing(Owner.REQUEST))
        request.kv_tokens = held * page
        if request.admitted_s < 0:
            self._note_hits(request, match, loaded)
        admitted.append((request, extend))
        return budget.verdict()

    def _note_hits(self, request: Active, match: Match, loaded: int) -> None:
        page = self._page
        request.device_hit_tokens = match.device_pages * page
        self.admitted.append(request)
        request.host_hit_tokens = match.host_pages * page
        request.loaded_tokens = loaded * page
        if request.prefetch is not None:
            request.storage_hit_tokens = min(request.prefetch.inserted_pages, loaded) * page

    def _allocate(self, admitted: list[tuple[Active, int]]) -> Generator[Wait, None, None]:
        """Slots for the batch; requests for whom there are none after all leave it, the last admitted first."""
        cache, page = self.cache, self._page
        while admitted:
            needs = [self._pages(r.kv_tokens + extend) - self._pages(r.kv_tokens) for r, extend in admitted]
            need = sum(needs)
            # Upstream counts a page more for each request than it may need.
            reserve = need if page == 1 else -(-sum(extend for _, extend in admitted) // page) + len(admitted)
            if cache.l1.free < reserve:
                short = reserve - cache.l1.free if cache.rules.evict_shortfall_only else reserve
                yield from cache.make_room(short)
            slots = cache.l1.alloc(need, Owner.REQUEST)
            if slots is not None:
                for (request, _), pages in zip(admitted, needs, strict=True):
                    assert request.lease is not None
                    request.lease.grow(slots.cut(pages))
                return
            request, _ = admitted.pop()
            if request.stage is Stage.PREFILL:
                self.chunked = request  # it keeps what it holds and tries again
                continue
            assert request.lease is not None
            discard(cache, request.lease)
            request.lease = None
            if self.chunked is request:
                self.chunked = None

    def _leave_queue(self, admitted: list[tuple[Active, int]], now_s: float) -> None:
        for request, _ in admitted:
            self.waiting.pop(request.id, None)
            request.stage = Stage.PREFILL
            if request.admitted_s < 0:
                request.admitted_s = now_s

    # Forming a decode batch

    def form_decode(self, now_s: float) -> Generator[Wait, None, Decode | None]:
        """The running requests, for as many steps as nothing changes; None if none can run."""
        before = self.retracted
        running = self.running
        if self.cache.l1.free < len(running):
            yield from self._make_decode_room(now_s)
        retracted = self.retracted > before
        if not running:
            return None
        # Those sent back wait, and with them out of the way somebody may be admitted after the next step.
        steps = self._steps_within_room(1 if retracted else running.steps_to_end())
        if steps == 0:
            return None
        if not retracted:
            self._decay_ratio(1)
        self._grow(steps)
        return Decode(running, len(running), steps, running.context_tokens)

    def _make_decode_room(self, now_s: float) -> Generator[Wait, None, None]:
        """Room for one step of all, evicting as upstream's `check_decode_mem` and paged allocation do, retracting
        requests if that is not enough."""
        l1 = self.cache.l1
        need = self.running.pages_for(1)
        if need > l1.free:
            yield from self._evict_for(need)
        if need > l1.free:
            yield from self._retract(now_s)
        reserve = len(self.running)
        if l1.free < reserve and self.running:
            yield from self._evict_for(reserve)

    def _evict_for(self, pages: int) -> Generator[Wait, None, None]:
        free = self.cache.l1.free
        if pages > free:
            yield from self.cache.make_room(pages - free if self.cache.rules.evict_shortfall_only else pages)

    def _retract(self, now_s: float) -> Generator[Wait, None, None]:
        """Send requests back to the queue, those with the least output first, until a step fits."""
        limits, running = self.limits, self.running
        order = sorted(running, key=lambda r: (running.produced(r), -r.input_tokens), reverse=True)
        if len(order) == 1:
            return
        gone = []
        while len(order) > 1:
            request = order.pop()
            running.leave(request)
            self._send_back(request)
            gone.append(request)
            yield from self._evict_for(-(-len(order) * limits.retract_decode_steps // self._page))
            need = running.pages_for(1)
            yield from self._evict_for(need)
            if need <= self.cache.l1.free:
                break
        running.arrange(order)
        decoded = sum(map(running.produced, running)) + limits.retract_decode_steps * len(running)
        self.new_token_ratio = min(1.0, decoded / (sum(r.max_new_tokens for r in running) + 1))
        self.full = False
        for request in gone:
            self._queue(request, now_s)

    def _send_back(self, request: Active) -> None:
        assert request.lease is not None
        discard(self.cache, request.lease)
        request.lease = None
        request.kv_tokens = 0
        request.retractions += 1
        self.retracted += 1

    def give_up_one(self, now_s: float) -> bool:
        """The last resort when nothing can go on and nothing is in flight that could make room.

        Upstream dies here. A request is aborted with what it has produced; False if there is none.
        """
        if self.running:
            request = list(self.running)[-1]
            self.running.leave(request)
            assert request.lease is not None
            discard(self.cache, request.lease)
        elif self.waiting:
            request = self.waiting.pop(next(iter(self.waiting)))
        else:
            return False
        self.aborted_for_room += 1
        self.full = False
        self._end(request, Stage.ABORTED, now_s)
        return True

    def _steps_within_room(self, most: int) -> int:
        """The most steps, up to `most`, through which L1 keeps upstream's reserve of a page a request before each
        step; where the reserve cannot be had, the steps for which pages are there at all."""
        free = self.cache.l1.free
        spare = free - len(self.running)
        if spare < 0:
            return self.running.steps_for(free, most)
        return min(most, 1 + self.running.steps_for(spare, most - 1))

    def _grow(self, steps: int) -> None:
        """Slots for `steps` steps of all."""
        slots = self.cache.l1.alloc(self.running.pages_for(steps), Owner.REQUEST)
        assert slots is not None
        for request, pages in self.running.needing(0, steps):
            assert request.lease is not None
            request.lease.grow(slots.cut(pages))

    def _shrink(self, done: int, planned: int) -> None:
        """Give back slots for steps that were not taken."""
        for request, pages in self.running.needing(done, planned):
            assert request.lease is not None
            self.cache.free_request_slots(request.lease.shrink(pages))

    # When a batch has been computed

    def prefilled(self, batch: Prefill, now_s: float) -> None:
        """A prefill batch is done: its pages join the tree, and finished prompts have their next token."""
        self.prefilling = []
        running = self.running
        expected = len(running) + len(batch.requests) if running else -1
        for request in batch.requests:
            partly = request is self.chunked
            if not partly:
                request.produced += 1
                if request.first_token_s < 0:
                    request.first_token_s = now_s
            if request.stopping or request.produced >= request.output_tokens:
                self.chunked = None if partly else self.chunked
                self._finish(request, now_s)
            else:
                self._commit(request, chunked=partly)
                if not partly:
                    request.stage = Stage.DECODE
                    running.join(request)
        # Upstream forgets that it is full when not all of a batch go on to decode, or nobody has decoded before.
        if len(running) != expected:
            self.full = False

    def decoded(self, batch: Decode, steps: int, now_s: float) -> None:
        """A decode batch is done, or was stopped after `steps` steps."""
        self._decay_ratio(steps - 1)
        if steps < batch.steps:
            self._shrink(steps, batch.steps)
        self.running.advance(steps)
        over = self.running.ended()
        if self.stopping:
            over += [request for request in self.running if request.stopping and request not in over]
        for request in over:
            self.running.leave(request)
            self._finish(request, now_s)
        if over:
            self.full = False

    def _decay_ratio(self, steps: int) -> None:
        """Upstream does it before each step, but not where it has sent requests back."""
        self.new_token_ratio = max(self.new_token_ratio - self._decay * steps, self._min_ratio)

    def _commit(self, request: Active, chunked: bool) -> None:
        assert request.lease is not None
        request.lease.key = self._key(request, request.kv_tokens)
        commit(self.cache, request.lease, request.priority, chunked)

    def _finish(self, request: Active, now_s: float) -> None:
        assert request.lease is not None
        cached = request.kv_tokens if self.cache.rules.caches_output else min(request.kv_tokens, request.input_tokens)
        request.lease.key = self._key(request, cached)
        release(self.cache, request.lease, request.priority)
        request.lease = None
        self._end(request, Stage.ABORTED if request.stopping else Stage.DONE, now_s)

    # Keys and pages

    def _key(self, request: Active, tokens: int) -> bytes:
        pages = max(tokens - self.limits.key_lag_tokens, 0) // self._page
        return request.key[: pages * ATOM_BYTES]

    def _match_key(self, request: Active) -> bytes:
        """What a prefill may match: at least one token is computed."""
        return self._key(request, request.fill_tokens - 1)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page)

    def take_admitted(self) -> list[Active]:
        """Requests admitted for the first time since the last call."""
        admitted, self.admitted = self.admitted, []
        return admitted

    def take_ended(self) -> list[Active]:
        """Requests that have ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running or self.prefilling or self.chunked)

    def requests(self) -> list[Active]:
        """All that are in the engine."""
        chunked = [self.chunked] if self.chunked and self.chunked not in self.prefilling else []
        return [*self.waiting.values(), *self.prefilling, *self.running, *chunked]

    def wants_a_turn(self, now_s: float) -> bool:
        """Would it pay to stop decoding? Only if a waiting request might be admitted, or a running one is to go."""
        if self.stopping:
            return True
        if self.full or not self.waiting or len(self.running) >= self.limits.max_running_requests:
            return False
        storage = self.storage
        return storage is None or any(storage.ready(request_id, now_s) for request_id in self.waiting)

    def next_deadline_s(self) -> float | None:
        """When the first prefetch that a request waits for times out."""
        return self.storage.next_deadline_s() if self.storage is not None else None
