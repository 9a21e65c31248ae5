"""HiCache's decisions on L3: when to probe, fetch and store, and when a request stops waiting.

Rules of this file
- L3 is asked, never remembered: no node knows whether the store still has its pages (article 3.3).
- A prefetch ends for its request when that goes on, with what has arrived by then; for L2 when the last operation
  on its slots has completed. In between its slots belong to nobody else.
- Host slots that workers give back return to the pool at the next `tick`, as upstream's queues make them.
- Source: `hiradix_cache.py` and `cache_controller.py` of 0.5.7 (`prefetch_from_storage` to
  `drain_storage_control_queues`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, TypeVar

from .cache import HiCache
from .counters import Refusal
from .keys import ATOM_BYTES, common_pages
from .ledger import Prefetch, Store, Write
from .policies import FetchLimits, PrefetchPolicy
from .slots import Extent, Owner
from .tree import HostLock, Match, Node
from .types import Completion, Op, OpKind, Progress

T = TypeVar("T")


class PrefetchLimits:
    """Admission of prefetches (article 3.6).

    threshold_tokens: shorter spans and smaller hits are not fetched; at least a page. capacity_tokens: no new prefetch
    while this many tokens are in flight.
    """

    def __init__(self, threshold_tokens: int, capacity_tokens: int) -> None:
        self.threshold_tokens = threshold_tokens
        self.capacity_tokens = capacity_tokens

    def asks(self, pages: int, tokens: int) -> bool:
        return tokens >= self.threshold_tokens

    def worth(self, tokens: int) -> bool:
        return tokens >= self.threshold_tokens

    def ended(self, pages: int, arrived: int) -> None:
        pass


def limits_of(policy: PrefetchPolicy, given: FetchLimits) -> FetchLimits:
    """The limits that hold under `policy`: those given, unless it makes others of them (`limits`)."""
    own: Callable[[FetchLimits], FetchLimits] | None = getattr(policy, "limits", None)
    return given if own is None else own(given)


class StorageSide:
    """L3 as seen by the control plane. Attaches itself to a cache."""

    def __init__(self, cache: HiCache, policy: PrefetchPolicy, limits: FetchLimits) -> None:
        self.cache = cache
        self.policy = policy
        self.limits = limits_of(policy, limits)
        self.ledger = cache.ledger
        self.page_tokens = cache.shape.page_tokens
        cache.storage = self
        self._deadlines: list[tuple[float, int, Prefetch]] = []
        """A heap; entries whose prefetch has ended or got another deadline are passed over."""
        self._serial = 0

    # Writing to L3

    def store_written(self, write: Write) -> None:
        """A write to L2 is acknowledged: what it covers goes on to L3, whatever its hits (article 3.5)."""
        fragments = write.fragments if self.cache.rules.split_publishes_upper else write.fragments[-1:]
        for node in fragments:
            self._store(node)

    def _store(self, node: Node) -> None:
        store = Store(self.ledger.new_op(), node, node.pages)
        self.ledger.storing[store.op_id] = store
        self.ledger.open[store.op_id] = self._stored
        self.cache.counters.stores += 1
        assert node.host is not None, "a written node has a host copy"
        self.cache.submit(Op(store.op_id, OpKind.STORE, node.pages, node.host.indices, None, node.names))

    def _stored(self, event: Completion | Progress) -> None:
        del self.ledger.open[event.op_id]
        store = self.ledger.storing[event.op_id]
        self.cache.counters.stored += event.pages_ok
        self.cache.counters.store_failed += store.pages - event.pages_ok
        if event.lingers:
            del self.ledger.storing[event.op_id]
            self.ledger.lingering_stores[event.op_id] = store
        else:
            self.ledger.stored.append(store)

    def clear(self) -> None:
        """Empty the store (upstream's `clear_storage_backend`). The tree keeps what it has."""
        op_id = self.ledger.new_op()
        self.ledger.clearing.add(op_id)
        self.ledger.open[op_id] = self._cleared
        self.cache.submit(Op(op_id, OpKind.CLEAR, 0))

    def _cleared(self, event: Completion | Progress) -> None:
        del self.ledger.open[event.op_id]
        self.ledger.clearing.remove(event.op_id)

    # Prefetch: issue

    def prefetch(self, request: Any, match: Match, namespace: str | None, atoms: bytes, now_s: float) -> Prefetch:
        """Ask L3 for `atoms`, the pages of a waiting request behind its match; `refused` says why it was not asked."""
        cache, rules = self.cache, self.cache.rules
        started_s = None if rules.prefetch_clock_from_poll else now_s
        prefetch = Prefetch(request, match.host_node, namespace, atoms, len(atoms) // ATOM_BYTES, started_s)
        refusal = self._refusal(prefetch, match)
        if refusal is not None:
            self._refuse(prefetch, refusal)
            return prefetch
        anchor = prefetch.anchor
        self.ledger.begin_prefetch(prefetch)
        self._note_deadline(prefetch)
        prefetch.names = cache.keys.chain(atoms, anchor.names[-1] if anchor.names else None)
        prefetch.probe_op = self.ledger.new_op()
        self._track(prefetch, prefetch.probe_op)
        cache.submit(Op(prefetch.probe_op, OpKind.PROBE, prefetch.pages, None, None, prefetch.names))
        cache.counters.prefetches_issued += 1
        return prefetch

    def _refusal(self, prefetch: Prefetch, match: Match) -> Refusal | None:
        """The admissions of article 3.6, in order. A prefetch that passes holds its anchor, and its L2 pages where
        these are allocated beforehand."""
        query_first = self.cache.rules.prefetch_query_first
        # Else the anchor would lie above the match: the pages asked for do not come after it.
        if (match.node if query_first else match.device_node).host is None:
            return Refusal.ANCHOR
        if not self.limits.asks(prefetch.pages, prefetch.pages * self.page_tokens):
            return Refusal.SHORT
        if self.ledger.prefetch_pages * self.page_tokens >= self.limits.capacity_tokens:
            return Refusal.RATE
        prefetch.hold = HostLock(prefetch.anchor)
        if not query_first:
            prefetch.slots = self.cache.host_slots(prefetch.pages, Owner.TRANSIT, whole=True)
            if prefetch.slots is None:
                self._let_anchor_go(prefetch)
                return Refusal.HOST_SPACE
        return None

    def _refuse(self, prefetch: Prefetch, why: Refusal) -> None:
        prefetch.refused = why
        self.cache.counters.prefetch_refusals[why] += 1

    def _track(self, prefetch: Prefetch, op_id: int) -> None:
        self.ledger.fetching[op_id] = prefetch
        self.ledger.open[op_id] = self._probed if op_id == prefetch.probe_op else self._fetched

    # Prefetch: what comes back

    def _probed(self, event: Completion | Progress) -> None:
        """The store has answered: revoke what is not worth it, or fetch what is there.

        A prefetch given up meanwhile is fetched all the same, as upstream's thread does; it is told to stop at once.
        """
        del self.ledger.open[event.op_id]
        prefetch = self.ledger.fetching.pop(event.op_id)
        hits = prefetch.promised_pages = event.pages_ok
        if not self.limits.worth(hits * self.page_tokens):
            prefetch.hit_pages = 0
            self._note_deadline(prefetch)
            self._release(prefetch.slots)
            prefetch.slots = None
            self._refuse(prefetch, Refusal.FEW_HITS)
            self.ledger.revoked.append(prefetch)
        elif prefetch.slots is None:
            self.ledger.answered.append(prefetch)
        else:
            found = prefetch.slots.cut(hits)
            self._release(prefetch.slots)
            self._fetch(prefetch, found)

    def _fetch(self, prefetch: Prefetch, slots: Extent) -> None:
        pages = slots.pages
        prefetch.slots, prefetch.names, prefetch.hit_pages = slots, prefetch.names[:pages], pages
        self._note_deadline(prefetch)
        prefetch.fetch_op = self.ledger.new_op()
        self._track(prefetch, prefetch.fetch_op)
        self.cache.submit(Op(prefetch.fetch_op, OpKind.FETCH, pages, None, slots.indices, prefetch.names))
        if prefetch.cancelled:
            self.cache.cancel(prefetch.fetch_op)

    def _fetched(self, event: Completion | Progress) -> None:
        prefetch = self.ledger.fetching[event.op_id]
        if not prefetch.cancelled:
            prefetch.good_pages = event.pages_ok
            self._note_deadline(prefetch)
        if event.ends:
            self._end_fetch(prefetch, event)

    def _end_fetch(self, prefetch: Prefetch, event: Completion | Progress) -> None:
        del self.ledger.open[event.op_id]
        del self.ledger.fetching[event.op_id]
        assert prefetch.slots is not None and prefetch.hit_pages is not None
        counters = self.cache.counters
        if prefetch.cancelled:
            counters.prefetch_wasted += event.pages_ok - prefetch.good_pages
        elif event.pages_ok < prefetch.hit_pages:
            prefetch.over = True
            counters.prefetch_failed += prefetch.hit_pages - event.pages_ok
        rest, prefetch.slots = prefetch.slots, None
        if not prefetch.cancelled:
            prefetch.slots = rest.cut(prefetch.good_pages)
        if event.lingers:
            self.ledger.lingering[event.op_id] = rest
        else:
            self._release(rest)

    def let_go(self, op_id: int) -> bool:
        """An operation that lingered touches its pages no more; False if none of that number did."""
        slots = self.ledger.lingering.pop(op_id, None)
        store = self.ledger.lingering_stores.pop(op_id, None)
        self._release(slots)
        if store is not None:
            self.cache.release_hold(store.hold)
        return slots is not None or store is not None

    # Prefetch: the waiting request

    def poll(self, request: Any, now_s: float) -> bool:
        """May `request` go on? If so its prefetch ends here, with what has arrived (article 2.2)."""
        prefetch = self.ledger.prefetching.get(request)
        if prefetch is None:
            return True
        if not (prefetch.over or self.policy.may_stop(prefetch, now_s)):
            if prefetch.started_s is None:
                prefetch.started_s = now_s
                self._note_deadline(prefetch)
            return False
        self._land(prefetch)
        return True

    def ready(self, request: Any, now_s: float) -> bool:
        """Would `poll` let the request go on, or start its clock? A look."""
        prefetch = self.ledger.prefetching.get(request)
        return prefetch is None or prefetch.over or prefetch.started_s is None or self.policy.may_stop(prefetch, now_s)

    def next_deadline_s(self) -> float | None:
        """When the first of the prefetches that are waited for times out; None if none does."""
        deadlines = self._deadlines
        while deadlines:
            deadline_s, _, prefetch = deadlines[0]
            if not prefetch.cancelled and prefetch.deadline_s == deadline_s:
                return deadline_s
            heapq.heappop(deadlines)
        return None

    def _note_deadline(self, prefetch: Prefetch) -> None:
        """Something has changed that the deadline of `prefetch` may depend on."""
        deadline_s = self.policy.deadline_s(prefetch)
        if deadline_s == prefetch.deadline_s:
            return
        prefetch.deadline_s = deadline_s
        if deadline_s is not None:
            self._serial += 1
            heapq.heappush(self._deadlines, (deadline_s, self._serial, prefetch))

    def _land(self, prefetch: Prefetch) -> None:
        """Hang what has arrived below the anchor, as nodes that are on the host only."""
        counters = self.cache.counters
        good = prefetch.good_pages
        if prefetch.hit_pages is not None and not prefetch.over:
            counters.prefetched_late += prefetch.hit_pages - good
        self.limits.ended(prefetch.pages, good)
        # Upstream's clock: the anchor counts as used even where nothing has arrived.
        self.cache.tree.touch(prefetch.anchor)
        if prefetch.anchor.id in self.ledger.detached:
            self._give_up(prefetch)
        elif good:
            assert prefetch.slots is not None
            known = self._insert(prefetch, prefetch.atoms[: good * ATOM_BYTES], prefetch.slots.cut(good))
            counters.prefetched_duplicate += known
            counters.prefetched += good - known
            prefetch.inserted_pages = good - known
        self._end(prefetch)

    def abort(self, request: Any) -> None:
        """The request is gone: what has arrived is given back (upstream's `release_aborted_request`)."""
        prefetch = self.ledger.prefetching.get(request)
        if prefetch is not None:
            self._give_up(prefetch)
            self._end(prefetch)

    def _give_up(self, prefetch: Prefetch) -> None:
        """Give back what has arrived."""
        if prefetch.good_pages:
            assert prefetch.slots is not None
            self.cache.counters.prefetch_wasted += prefetch.good_pages
            self._release(prefetch.slots.cut(prefetch.good_pages))

    def _end(self, prefetch: Prefetch) -> None:
        """The request no longer waits. Pages still under way come back when their operation completes."""
        if prefetch.fetch_op in self.ledger.fetching:
            self.cache.cancel(prefetch.fetch_op)
        prefetch.cancelled = True
        self.ledger.end_prefetch(prefetch)
        self._let_anchor_go(prefetch)

    def _let_anchor_go(self, prefetch: Prefetch) -> None:
        if prefetch.hold is not None:
            hold, prefetch.hold = prefetch.hold, None
            self.cache.release_hold(hold)

    # Prefetch: into the tree

    def _insert(self, prefetch: Prefetch, atoms: bytes, slots: Extent) -> int:
        """Insert arrived pages; the pages the tree had already, whose slots are freed."""
        cache, tree, rules = self.cache, self.cache.tree, self.cache.rules
        refills = rules.prefetch_refills_device_only and not cache.write.copies_on_eviction
        node = prefetch.anchor
        namespace = node.namespace if rules.prefetch_root_drops_extra_key else prefetch.namespace
        at = known = 0
        while at * ATOM_BYTES < len(atoms):
            first = atoms[at * ATOM_BYTES : (at + 1) * ATOM_BYTES]
            child = node.children.get((namespace, first) if node.parent is None else first)
            if child is None:
                break
            before = tree.touch(child)
            pages = common_pages(child.key, 0, atoms, at * ATOM_BYTES)
            if pages < child.pages:
                child = tree.split(child, pages, before)
            own = slots.cut(pages)
            if refills and child.host is None and child.write is None:
                self._adopt(child, own, prefetch.names[at : at + pages])
            else:
                cache.l2.give_back(own, Owner.TRANSIT)
                known += pages
            node, at = child, at + pages
        cache.path_changed(node)
        if not slots.pages:
            return known
        if refills and node.host is None:
            cache.l2.give_back(slots, Owner.TRANSIT)
            return known + len(atoms) // ATOM_BYTES - at
        child = tree.add(node, namespace, atoms[at * ATOM_BYTES :], node.priority)
        if cache.facts is not None:
            cache.facts.append((None, child.key))
        self._adopt(child, slots, prefetch.names[at : at + child.pages])
        return known

    def _adopt(self, node: Node, slots: Extent, names: Any) -> None:
        """Fetched pages become the host copy of `node`."""
        cache = self.cache
        cache.l2.hand_over(slots, Owner.TRANSIT, Owner.TREE)
        cache.tree.put_on_host(node, slots)
        if node.names is None:
            node.names = names
        cache._enlist_duplicate(node)
        if node.is_host_leaf():
            cache.host_leaves.offer(node)

    # Once a step

    def tick(self) -> None:
        """Drain what workers have queued: revoked prefetches, finished stores, answers to allocate for, freed slots."""
        ledger = self.ledger
        if not (ledger.revoked or ledger.stored or ledger.answered or ledger.released):
            return
        for prefetch in _drained(ledger.revoked):
            if ledger.prefetching.get(prefetch.request) is prefetch:
                self.limits.ended(prefetch.pages, 0)
                self._end(prefetch)
        for store in _drained(ledger.stored):
            del ledger.storing[store.op_id]
            self.cache.release_hold(store.hold)
        for prefetch in _drained(ledger.answered):
            self._allocate_hit(prefetch)
        for slots in _drained(ledger.released):
            self.cache.l2.give_back(slots, Owner.TRANSIT)

    def _allocate_hit(self, prefetch: Prefetch) -> None:
        """0.5.23: L2 pages for what the store has, or for as much of it as fits, if that is worth it."""
        if prefetch.cancelled:
            return
        cache = self.cache
        hits = prefetch.promised_pages
        slots = cache.host_slots(hits, Owner.TRANSIT, whole=True)
        if slots is None and self.limits.worth(cache.l2.free * self.page_tokens):
            slots = cache.l2.alloc(min(hits, cache.l2.free), Owner.TRANSIT)
        if slots is None:
            self._refuse(prefetch, Refusal.HOST_SPACE)
            prefetch.hit_pages = 0
            self._end(prefetch)
        else:
            self._fetch(prefetch, slots)

    def _release(self, slots: Extent | None) -> None:
        if slots is not None and slots.pages:
            self.ledger.released.append(slots)


def _drained(queue: list[T]) -> list[T]:
    items = list(queue)
    queue.clear()
    return items
