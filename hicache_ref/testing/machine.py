"""The control plane with everything that happens to it in a test's hands; the laws are checked after every step.

Rules of this file
- A method is one thing that can happen: a request arrives, is admitted, computes, ends; an operation makes progress
  or ends, well or not; time passes. Any order of them is legal unless the method says otherwise.
- After each, L1 to L4 and L11 are checked, L10 on shadow memory, and each eviction against a walk of the whole tree.
- `drain` ends everything and checks L4, L5 and L6: nothing is stuck, nothing has leaked, and the log replays.
- The machine keeps no randomness. What it leaves open, the hooks `reads_early` and `on_wait` decide.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..control import invariants
from ..control.cache import HiCache
from ..control.counters import Drop
from ..control.evictable import EvictableLeaves
from ..control.invariants import LawBroken
from ..control.keys import ATOM_BYTES, TokenPages
from ..control.lease import Admission, Lease
from ..control.policies import Leaves
from ..control.slots import Owner
from ..control.tree import Node
from ..control.types import Op, OpKind, Wait
from .memory import GARBAGE, Identities, ShadowMemory
from .plane import ManualPlane, ModelStore
from .session import Session, Setup, replay, words
from .story import happens

FOREVER_S = 1e9
"""Longer than any policy waits."""
STRANGER = 1 << 20
"""Symbols from here on are in no other prompt."""
MOST_ROUNDS = 100
"""Ticks after which whatever is in flight has ended, if it ever will."""


class WatchedLeaves:
    """The leaves of one level, each eviction checked against a walk of the whole tree, which is what upstream does.

    Where the order is that of a rank it is checked too; of a policy's own queue only that a leaf goes if there is one.
    """

    def __init__(self, leaves: Leaves, is_leaf: Callable[[Node], bool], cache: HiCache) -> None:
        self._leaves, self._is_leaf, self._cache = leaves, is_leaf, cache
        self._ranked = leaves if isinstance(leaves, EvictableLeaves) else None
        self.offer, self.known = leaves.offer, leaves.known

    def pop(self) -> Node | None:
        free = [node for node in self._cache.tree.nodes() if self._is_leaf(node)]
        node = self._leaves.pop()
        if node is None:
            _require(not free, f"L5: nothing to evict, although {len(free)} leaves are free")
            return None
        _require(node in free, f"node {node.id} is no leaf, and was to be evicted")
        if self._ranked is not None:
            first = min(map(self._ranked._rank, free))
            _require(not first < self._ranked._rank(node), f"node {node.id} evicted before one of rank {first}")
        return node

    def check(self) -> None:
        """A policy that says its ranks only rise has to keep to it: else its leaves are evicted in a stale order."""
        ranked = self._ranked
        if ranked is None or not ranked._rises_only:
            return
        for rank, _, node in ranked.entries():
            now = ranked._rank(node)
            honest = not self._is_leaf(node) or not now < rank
            _require(honest, f"rank of node {node.id} fell from {rank} to {now}, but `rises_only` is True")


def watch_leaves(cache: HiCache) -> tuple[WatchedLeaves, WatchedLeaves]:
    """Have the evictions of both levels watched."""
    device = WatchedLeaves(cache.device_leaves, Node.is_device_leaf, cache)
    host = WatchedLeaves(cache.host_leaves, Node.is_host_leaf, cache)
    cache.device_leaves, cache.host_leaves = device, host
    return device, host


class Request:
    """A request of the test: one symbol a page of what it wants computed."""

    __slots__ = ("key", "namespace", "priority", "symbols")

    def __init__(self, symbols: Sequence[int], key: bytes, namespace: str | None, priority: int) -> None:
        self.symbols = list(symbols)
        self.key = key
        self.namespace = namespace
        self.priority = priority


class Machine:
    """A cache, its plane and its store, and requests in all stages.

    `waiting` are requests that have arrived, `running` those that hold a lease; both by request id.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.session = Session(setup)
        self.cache = self.session.cache
        self.identities = Identities()
        self.memory = ShadowMemory(setup.l1_pages, setup.l2_pages, self.identities)
        self.store = ModelStore(lambda name: self._page_called[name])
        self.plane = ManualPlane(self.memory, self.store)
        self.waiting: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self.admission: Admission | None = None
        """How the last request to be admitted got on."""
        self.now_s = 0.0
        self.story: list[str] = []
        """What has happened, in words."""
        self.broken = False
        """The last thing that happened has raised."""
        self.reads_early: Callable[[Op], bool] = lambda op: op.id % 2 == 0
        """When sources are read: at once, or when the operation ends."""
        self.on_wait: Callable[[tuple[int, ...]], None] = self._complete_all
        """Sees to it that the operations have ended which a step waits for; may do so badly, and end others too."""
        self._page_called: dict[Any, int] = {}
        self._atoms = Identities()
        self._next_rid = 0
        self._device_leaves, self._host_leaves = watch_leaves(self.cache)

    # Requests

    def key(self, symbols: Sequence[int]) -> bytes:
        """The key of a prompt; the names of its pages are known from now on."""
        keys = self.cache.keys
        if isinstance(keys, TokenPages):
            key = keys.key([symbol for symbol in symbols for _ in range(self.setup.page_tokens)])
        else:
            key = array("q", self._atoms.of(array("q", symbols).tobytes())).tobytes()
        self._page_called.update(zip(keys.chain(key, None), self.identities.of(key), strict=True))
        return key

    @happens
    def arrive(self, symbols: Sequence[int], namespace: str | None = None, priority: int = 0) -> int:
        """A request, one symbol a page (of EAGLE's pairs one page fewer); its prefetch is issued. Its id."""
        rid = self._next_rid
        self._next_rid += 1
        self.waiting[rid] = request = Request(symbols, self.key(symbols), namespace, priority)
        self.session.call("prefetch", rid, namespace, request.key, self.now_s)
        return rid

    def may_ask_again(self, rid: int) -> bool:
        """Has the request's prefetch ended, or never begun?"""
        return rid not in self.cache.ledger.prefetching

    @happens
    def ask_again(self, rid: int) -> None:
        """A waiting request's prefetch is issued anew, as 0.5.23 does. Legal if `may_ask_again`."""
        request = self.waiting[rid]
        self.session.call("prefetch", rid, request.namespace, request.key, self.now_s)

    @happens
    def poll(self, rid: int) -> bool:
        """May a waiting request go on?"""
        return bool(self.session.call("poll", rid, self.now_s))

    @happens
    def abort(self, rid: int) -> None:
        """A waiting request goes away."""
        self.session.call("abort", rid)
        del self.waiting[rid]

    @happens
    def admit(self, rid: int, pages: int | None = None) -> bool:
        """Take a lease for a waiting request's first `pages` pages. Legal once its `poll` has said yes."""
        request = self.waiting[rid]
        self.admission = admission = self._drive("admit", rid, request.namespace, _first(request.key, pages))
        if admission.lease is None:
            self._check_refusal(admission.match.node)
            return False
        self.running[rid] = self.waiting.pop(rid)
        self._spoil(admission.lease)
        return True

    @happens
    def start_loading(self) -> None:
        """A batch starts: what was decided to be loaded is sent on its way."""
        self.session.call("start_loading")

    def may_compute(self, rid: int) -> bool:
        """Has all arrived that the request's pages are computed from?"""
        node: Node | None = self.session.leases[rid].node
        while node is not None and (node.load is None or node.load.done_pages == node.load.pages):
            node = node.parent
        return node is None

    @happens
    def prefill(self, rid: int, chunked: bool = False) -> None:
        """Compute what the lease covers and give it to the tree. Legal if `may_compute`."""
        self._compute(rid)
        self.session.call("commit", rid, self.running[rid].priority, chunked)

    @happens
    def grow(self, rid: int, pages: int, output: Sequence[int] = ()) -> bool:
        """Take slots for the next pages of a running request, whose prompt becomes longer by its output."""
        request, held = self.running[rid], self.session.leases[rid]
        request.symbols += output
        request.key = self.key(request.symbols)
        key = _first(request.key, len(held.key) // ATOM_BYTES + pages)
        ok = bool(self._drive("extend", rid, key))
        if not ok:
            self._check_refusal(self.cache.tree.root)
        self._spoil(held)
        return ok

    @happens
    def finish(self, rid: int) -> None:
        """A request ends, and what it has computed stays. Legal if `may_compute`."""
        self._compute(rid)
        self.session.call("release", rid, self.running.pop(rid).priority)

    @happens
    def discard(self, rid: int) -> None:
        """A running request is aborted or retracted."""
        self.session.call("discard", rid)
        del self.running[rid]

    def serve(self, symbols: Sequence[int], namespace: str | None = None, priority: int = 0) -> Admission:
        """A whole life at once, in which all goes well. What is decided meanwhile is left in flight, but for loads."""
        rid = self.arrive(symbols, namespace, priority)
        self.poll_until_done(rid)
        if self.admit(rid):
            self.start_loading()
            self.pump()
            for op_id in self.in_flight(OpKind.LOAD):
                self.complete(op_id)
            self.finish(rid)
        self.pump()
        assert self.admission is not None
        return self.admission

    # Operations in flight, and time

    def in_flight(self, *kinds: OpKind) -> list[int]:
        """Operations the plane has, oldest first."""
        return [op_id for op_id, flight in self.plane.in_flight.items() if not kinds or flight.op.kind in kinds]

    def pump(self) -> None:
        """Give the plane what has been decided."""
        for op in self.session.take_ops():
            self.story.append(f"  {words(op)}")
            if isinstance(op, Op):
                self.plane.submit(op, self.reads_early(op))
            else:
                self.plane.cancel(op.op_id)

    @happens
    def progress(self, op_id: int, pages: int) -> None:
        """Some leading pages of a FETCH in flight have arrived."""
        self.session.on(self.plane.progress(op_id, pages))

    @happens
    def complete(self, op_id: int, pages: int | None = None, lingers: bool = False) -> None:
        """An operation ends: with `pages` good ones, or as well as it can. `lingers`: its call hangs on."""
        self.session.on(self.plane.complete(op_id, pages, lingers))

    @happens
    def release(self, op_id: int) -> None:
        """A hanging call returns."""
        self.session.on(self.plane.release(op_id))

    @happens
    def tick(self) -> None:
        """The engine acts on what has been reported."""
        self.session.call("tick", self.now_s)

    @happens
    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    # The store

    @happens
    def store_has(self, symbols: Sequence[int]) -> None:
        """Somebody else has stored a prompt."""
        key = self.key(symbols)
        for name, page in zip(self.cache.keys.chain(key, None), self.identities.of(key), strict=True):
            self.store.put(name, page)

    @happens
    def store_drops(self, count: int) -> None:
        """The store forgets its oldest pages."""
        self.store.drop(count)

    @happens
    def store_refuses(self, refusing: bool) -> None:
        """From now on writes fail, or succeed again."""
        self.store.refusing = refusing

    @happens
    def store_lies(self, symbols: Sequence[int]) -> None:
        """From now on the store claims to have all pages of a prompt."""
        self.store.lies.update(self.cache.keys.chain(self.key(symbols), None))

    # Checks

    def check(self) -> None:
        """The laws that hold between any two calls. Raises LawBroken."""
        invariants.check(self.cache)
        self.memory.check(self.cache, self._page_called)
        self._device_leaves.check()
        self._host_leaves.check()
        self._check_locks()
        self._check_deadline()

    def _check_counters(self) -> None:
        """What has left a level has gone somewhere, and what was decided has been told to the plane."""
        counters, dropped = self.cache.counters, self.cache.counters.dropped
        told: Counter[str] = Counter()
        for kind, _, *rest in self.session.ops:
            told[kind] += rest[0] if rest else 1
        lost = dropped[Drop.L1_UNBACKED] + dropped[Drop.L2_FULL] + dropped[Drop.WRITE_FAILED]
        for what, pages, others in (
            ("left L1", counters.evicted_l1, counters.demoted + lost),
            ("left L2", counters.evicted_l2, dropped[Drop.L2_EVICTED]),
            ("backed up", counters.backed_up, told["BACKUP"]),
            ("loaded", counters.loaded, told["LOAD"]),
            ("stored or not", counters.stored + counters.store_failed, told["STORE"]),
        ):
            _require(pages == others, f"L12: {pages} pages {what}, but {others} are accounted for")

    def _check_deadline(self) -> None:
        """L5: an engine with nothing to do sleeps until the first deadline, and must not miss one."""
        storage = self.cache.storage
        if storage is not None:
            waiting = self.cache.ledger.prefetching.values()
            deadlines = [storage.policy.deadline_s(prefetch) for prefetch in waiting]
            first = min((deadline_s for deadline_s in deadlines if deadline_s is not None), default=None)
            _require(storage.next_deadline_s() == first, f"L5: the next deadline is {first}")

    def _check_locks(self) -> None:
        """L3: a node is locked once for every lease, write and load at it or below it, and for nothing else."""
        ledger, queued = self.cache.ledger, self.cache.queued_load
        users = [held.node for held in self.session.leases.values()]
        users += [write.node for write in ledger.writing.values() if write.locked]
        users += [chain.node for load in ledger.loading.values() for chain in load.chains]
        users += [chain.node for chain in queued.chains] if queued is not None else []
        locks: Counter[int] = Counter()
        for user in users:
            node: Node | None = user
            while node is not None:
                locks[node.id] += 1
                node = node.parent
        for node in self.cache.tree.nodes():
            _require(node.lock == locks[node.id], f"L3: {node.lock} locks on node {node.id}, {locks[node.id]} users")

    def settle(self) -> None:
        """End everything in flight, and act on it, until all that is left is for waiting requests to be polled."""
        for _ in range(MOST_ROUNDS):
            self.start_loading()
            self.pump()
            for op_id in self.in_flight():
                self.complete(op_id)
            self.tick()
            self.pump()
            ledger = self.cache.ledger
            tables = (ledger.writing, ledger.loading, ledger.storing, ledger.released, ledger.answered, ledger.revoked)
            if not (self.plane.in_flight or ledger.open or any(tables)):
                return
        raise LawBroken(f"L5: not at rest after {MOST_ROUNDS} ticks: {self.cache.ledger.open}")

    def poll_until_done(self, rid: int) -> None:
        """Everything in flight ends, and time passes, until a waiting request may go on."""
        for _ in range(MOST_ROUNDS):
            if self.poll(rid):
                return
            self.advance(FOREVER_S)
            self.pump()
            for op_id in self.in_flight():
                self.complete(op_id)
            self.tick()
        raise LawBroken(f"L5: request {rid} waits for ever")

    def drain(self) -> None:
        """End every request in its own way, then see that nothing is held, lost or forgotten."""
        for rid in list(self.waiting):
            self.poll_until_done(rid)
            del self.waiting[rid]
        self.settle()
        self._take_l1(self.cache.l1.free + self.cache.tree.evictable)
        for at, rid in enumerate(list(self.running)):
            self.finish(rid) if at % 2 else self.discard(rid)
        self.settle()
        for op_id in list(self.plane.lingering):
            self.release(op_id)
        self.settle()
        self.check_at_rest()

    def check_at_rest(self) -> None:
        """L4 to L6, once nothing runs: all memory can be had again, on both levels, and the log replays."""
        invariants.check_at_rest(self.cache)
        self._take_l1(self.setup.l1_pages)
        invariants.check_at_rest(self.cache)
        again = replay(self.setup, self.session.log, self.cache.keys)
        _require(again.ops == self.session.ops, "L6: the log replays to other operations")
        everything = self.cache.host_slots(self.setup.l2_pages, Owner.TRANSIT, whole=False)
        _require(everything is not None, "L5: L2 cannot be emptied although nothing is held")
        self._check_counters()

    def _take_l1(self, pages: int) -> None:
        """A request of `pages` unheard-of pages is admitted, and goes away."""
        strangers = [STRANGER + len(self.story) * self.setup.l1_pages + page for page in range(pages)]
        rid = self.arrive([*strangers, STRANGER] if self.setup.keyspace == "pairs" else strangers)
        self.poll_until_done(rid)
        self.settle()
        _require(self.admit(rid), f"L5: {pages} pages of L1 cannot be had, {self.cache.tree.protected} are held")
        self.discard(rid)
        self.settle()

    def _check_refusal(self, last: Node) -> None:
        """L5: who is refused room has had everything evicted that nobody uses, but the path to `last` he was to share.
        No transfer in flight can keep L1 full."""
        shared = set()
        node: Node | None = last
        while node is not None:
            shared.add(node.id)
            node = node.parent
        for node in self.cache.tree.nodes():
            used = node.device is None or node.lock or node.id in shared
            _require(bool(used), f"L5: refused, although node {node.id} could have been evicted")

    # Within

    def _drive(self, name: str, *args: Any) -> Any:
        """A call that may wait. What it waits for has ended when it goes on."""
        answer = self.session.call(name, *args)
        while isinstance(answer, Wait):
            self.pump()
            self.on_wait(answer.op_ids)
            answer = self.session.call("resume")
        return answer

    def _complete_all(self, op_ids: tuple[int, ...]) -> None:
        for op_id in op_ids:
            self.session.on(self.plane.complete(op_id))

    def _compute(self, rid: int) -> None:
        """A batch runs: what it reads must be there, what it writes will be."""
        held = self.session.leases[rid]
        pages = self.identities.of(held.key)
        end, node = held.held, held.node
        while node.parent is not None:
            assert node.device is not None
            self.memory.check_device(
                node.device.indices, pages[end - node.pages : end], f"node {node.id}, read by a request,"
            )
            end, node = end - node.pages, node.parent
        self.memory.l1[held.slots] = pages[held.held :]

    def _spoil(self, held: Lease) -> None:
        """What a request has not computed is whatever the last owner of its slots has left."""
        self.memory.l1[held.slots] = GARBAGE


def _first(key: bytes, pages: int | None) -> bytes:
    return key if pages is None else key[: pages * ATOM_BYTES]


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise LawBroken(words)
