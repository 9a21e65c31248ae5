"""HiCache's decisions on L1 and L2: match, lock, evict, back up, load back, insert.

Rules of this file
- A call changes state and appends operations to the outbox; `take_ops` hands them to a plane, and every operation
  comes back through `on` exactly once. What came back is acted on at the next `tick`, in order.
- Calls that may have to wait for copies (write_back's eviction) are generators of `Wait`; the driver sees to it that
  the completions have been given to `on` before it resumes. All others never wait.
- Sizes are pages. Tokens appear only where upstream's rule is in tokens.
- Source: `hiradix_cache.py`, `radix_cache.py`, `cache_controller.py` of 0.5.7; knobs of `rules` for what 0.5.23 does.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .counters import Counters, Drop
from .errors import ProtocolError
from .evictable import EvictableLeaves, leaves_of
from .keys import ATOM_BYTES, Keyspace, common_pages
from .ledger import Chain, Ledger, Load, Write
from .policies import EvictionPolicy, WritePolicy
from .rules import Rules
from .slots import Extent, Owner, SlotPool
from .tree import HostLock, Match, Node, RadixTree
from .types import Cancel, Completion, Op, OpKind, Progress, Released, Report, Wait

if TYPE_CHECKING:
    from .storage import StorageSide

Waits = Generator[Wait, None, int]


@dataclass(frozen=True)
class CacheShape:
    """Sizes of the two levels. `l2_pages` 0: no HiCache, a plain radix cache."""

    page_tokens: int
    l1_pages: int
    l2_pages: int
    load_back_threshold_tokens: int = 10
    """Shorter chains are not worth a load (article 2.3)."""


class HiCache:
    """The radix tree over two levels of slots."""

    def __init__(
        self,
        shape: CacheShape,
        eviction: EvictionPolicy,
        write: WritePolicy,
        rules: Rules,
        keys: Keyspace,
        facts: list[tuple[Drop | None, bytes]] | None = None,
        oracle: bool = False,
    ) -> None:
        for policy in (eviction, write):
            if policy.reads_future and not oracle:
                raise ValueError(
                    f"policy {policy.name!r} reads the future (law L8); it runs only where oracle=True says so"
                )
        self.shape = shape
        self.rules = rules
        self.eviction = eviction
        self.write = write
        # Read once: policies are not compiled.
        self._rises_only = eviction.rises_only
        self._copies_on_eviction = write.copies_on_eviction
        self._counts_hits = write.counts_hits
        self._exclusive = write.exclusive
        self.keys = keys
        self.tree = RadixTree(rules.split_keeps_creation, self._was_split, rules.split_refreshes_lower)
        self.l1 = SlotPool("L1", shape.l1_pages)
        self.l2 = SlotPool("L2", shape.l2_pages)
        self.ledger = Ledger()
        self.counters = Counters()
        self.facts = facts
        """Where pages that enter the tree (None) and leave it are noted, for whoever explains misses."""
        self.storage: StorageSide | None = None
        """L3, if there is one: then pages are named, and finished writes go on to it. Sets itself."""
        self.device_leaves = leaves_of(eviction, Node.is_device_leaf)
        self.host_leaves = leaves_of(eviction, Node.is_host_leaf)
        self._allowed_unwritten = shape.l1_pages
        self.unwritten_leaves: EvictableLeaves | None = None
        """Device leaves without a host copy, where the write policy copies ahead."""
        if write.unwritten_share < 1 and shape.l2_pages:
            self._allowed_unwritten = int(write.unwritten_share * shape.l1_pages)
            self.unwritten_leaves = EvictableLeaves(eviction.rank, eviction.rises_only, Node.is_unwritten_leaf)
        self._duplicates: dict[int, Node] = {}
        """Nodes on both levels with nothing in flight, in the order they became so; stale ones are found on use."""
        self._queued_load: Load | None = None
        self.acks_due = False
        """Whether a write or a load has come back since the last `tick`."""
        self._outbox: list[Op | Cancel] = []

    @property
    def feeds_store(self) -> bool:
        """Whether what is copied to L2 goes on to L3: not what eviction copies, in versions that forget that."""
        only_evicted = self._copies_on_eviction and self.unwritten_leaves is None
        return self.storage is not None and (self.rules.write_back_stores or not only_evicted)

    # The protocol

    def take_ops(self) -> list[Op | Cancel]:
        """Operations decided since the last call, and cancellations of earlier ones, in order."""
        ops, self._outbox = self._outbox, []
        return ops

    @property
    def has_ops(self) -> bool:
        """Whether operations wait to be taken."""
        return bool(self._outbox)

    def submit(self, op: Op) -> None:
        """Append an operation to the outbox."""
        self._outbox.append(op)

    def cancel(self, op_id: int) -> None:
        """Ask the plane to stop an operation early. Its completion comes all the same."""
        self._outbox.append(Cancel(op_id))

    def on(self, event: Report) -> None:
        """A plane's report. Only noted here; acted on at the next `tick`."""
        if isinstance(event, Released):
            self._let_go(event.op_id)
            return
        handler = self.ledger.open.get(event.op_id)
        if handler is None:
            raise ProtocolError(f"report on operation {event.op_id}, which is not in flight: {event}")
        if isinstance(event, Progress):
            prefetch = self.ledger.fetching.get(event.op_id)
            if prefetch is None or prefetch.fetch_op != event.op_id:
                raise ProtocolError(f"progress of operation {event.op_id}, which is no FETCH: {event}")
        handler(event)

    def _let_go(self, op_id: int) -> None:
        if self.storage is None or not self.storage.let_go(op_id):
            raise ProtocolError(f"release of operation {op_id}, which does not linger")

    def tick(self, now_s: float) -> None:
        """Act on what came back (upstream's `check_hicache_events`)."""
        self.acks_due = False
        self._reap_writes()
        self._reap_loads()
        if self.storage is not None:
            self.storage.tick()
        if self.unwritten_leaves is not None:
            self._write_ahead(self.unwritten_leaves)

    # Looking up and holding

    def match(self, namespace: str | None, key: bytes) -> Match:
        """The longest known prefix. Refreshes recency, and splits a node the prefix ends in."""
        match = self.tree.walk(namespace, key)
        self.path_changed(match.node)
        return match

    def lock(self, node: Node) -> int:
        """Keep `node` and all above it on the device."""
        return self.tree.lock(node)

    def unlock(self, node: Node) -> int:
        """Undo one `lock`."""
        moved = self.tree.unlock(node)
        self._offer_lowest(node)
        return moved

    def release_hold(self, hold: HostLock) -> None:
        """Let host copies go; those of nodes that have left the tree are free then."""
        detached = self.ledger.detached
        for node in hold.release():
            if node.id not in detached:
                self._offer_lowest(node)
            elif not node.host_locks:
                del detached[node.id]
                if node.host is not None:
                    self.l2.give_back(node.host, Owner.TRANSIT)
                    node.host = None

    # Room on L1

    def take(self, pages: int) -> Generator[Wait, None, Extent | None]:
        """`pages` device slots for a request, evicting exactly what is missing; None if that was not enough."""
        if pages > self.l1.free:
            yield from self.make_room(pages - self.l1.free)
        return self.l1.alloc(pages, Owner.REQUEST)

    def make_room(self, pages: int) -> Waits:
        """Evict leaves until `pages` more slots of L1 are free, or no leaf is left; the pages freed.

        A leaf with a host copy is demoted; one without is dropped, or under write_back copied first, which waits.
        """
        freed = 0
        pop = self.device_leaves.pop
        copies = self._copies_on_eviction
        victims: list[Write] = []
        while freed < pages:
            node = pop()
            if node is None:
                break
            if node.host is not None:
                freed += self._demote(node)
                continue
            write = self._back_up(node, locked=False) if copies else None
            if write is not None:
                freed += self._leave(node, write)
                victims.append(write)
                if self.rules.write_back_waits_per_victim:
                    yield from self._settle(victims)
            elif victims:
                # L2 is full, of copies under way perhaps, which can be neither evicted nor dropped before they end.
                self.device_leaves.offer(node)
                yield from self._settle(victims)
            else:
                freed += self._drop(node, Drop.L2_FULL if copies else Drop.L1_UNBACKED)
        if victims:
            yield from self._settle(victims)
        self.counters.evicted_l1 += freed
        return freed

    def _demote(self, node: Node) -> int:
        """L1 lets go of a node that has a host copy."""
        self.l1.give_back(self.tree.take_off_device(node), Owner.TREE)
        self.counters.demoted += node.pages
        self._offer(node)
        self._offer(node.parent)
        return node.pages

    def _drop(self, node: Node, reason: Drop) -> int:
        """Drop a device leaf without a host copy, and host copies below it, which nobody could reach any more.

        0.5.7 loses the latter for good. Host copies that somebody still reads keep their slots until he is done: a
        store that hangs must not keep L1 full.
        """
        below = [node]
        for known in below:
            below.extend(known.children.values())
        for orphan in below[:0:-1]:
            self._remove_from_host(orphan, Drop.L1_ORPHANED)
        self.l1.give_back(self.tree.take_off_device(node), Owner.TREE)
        if node.host_locks:
            self.ledger.detached[node.id] = node
        self._note(reason, node)
        self._remove(node)
        self._offer(node.parent)
        return node.pages

    def _leave(self, node: Node, write: Write) -> int:
        """Under write_back a victim leaves L1 at once for all decisions; its slots are free once it is copied."""
        write.leaving = self.tree.take_off_device(node)
        self._offer(node.parent)
        return node.pages

    def _settle(self, victims: list[Write]) -> Generator[Wait, None, None]:
        """Wait for the copies of `victims` and give their device slots back."""
        yield Wait(tuple(write.op_id for write in victims))
        for write in victims:
            if write.done_pages is None:
                raise ProtocolError(f"resumed before write {write.op_id} had completed")
            node = write.node
            assert write.leaving is not None
            del self.ledger.writing[write.op_id]
            if write.good:
                node.write = None
                self.l1.give_back(write.leaving, Owner.TREE)
                self.counters.demoted += node.pages
                self._enlist_duplicate(node)
                self._offer(node)
                self._offer(node.parent)
            else:
                self._write_failed(write)
                self.tree.put_on_device(node, write.leaving)
                self._drop(node, Drop.WRITE_FAILED)
        if self.rules.write_back_stores:
            # Only now: a node above it whose copy failed may have taken it out of the tree.
            for write in victims:
                if write.good and write.node.host is not None:
                    self._hand_on(write)
        victims.clear()

    # Room on L2

    def host_slots(self, pages: int, owner: Owner, whole: bool) -> Extent | None:
        """`pages` host slots, evicting from L2 if they are short: the whole amount, or what is missing."""
        slots = self.l2.alloc(pages, owner)
        if slots is not None or pages > self.l2.pages:
            return slots
        self.evict_host(pages if whole else pages - self.l2.free)
        return self.l2.alloc(pages, owner)

    def evict_host(self, pages: int) -> int:
        """Drop leaves that are on the host only until `pages` slots are freed, or none is left; the pages freed."""
        freed = 0
        if self.rules.reclaim_duplicates and self._copies_on_eviction:
            freed = self._reclaim_duplicates(pages)
        return freed + self._evict_host_leaves(pages - freed)

    def _evict_host_leaves(self, pages: int) -> int:
        freed = 0
        pop = self.host_leaves.pop
        while freed < pages:
            node = pop()
            if node is None:
                break
            freed += node.pages
            self._remove_from_host(node, Drop.L2_EVICTED)
            self.counters.evicted_l2 += node.pages
            self._offer(node.parent)
        return freed

    def _remove_from_host(self, node: Node, reason: Drop) -> None:
        assert node.host is not None
        if node.host_locks:
            self.l2.hand_over(node.host, Owner.TREE, Owner.TRANSIT)
            self.ledger.detached[node.id] = node
        else:
            self.l2.give_back(node.host, Owner.TREE)
            node.host = None
        self._note(reason, node)
        self._remove(node)

    def _reclaim_duplicates(self, pages: int) -> int:
        """Free host copies of nodes that are on the device too: first of those that will not be evicted soon, then of
        those that would, for whom the copy would have made eviction free."""
        freed = 0
        swept: list[int] = []
        for spare_leaves in (True, False):
            for node_id, node in self._duplicates.items():
                if freed >= pages:
                    break
                if node.device is None or node.host is None:
                    swept.append(node_id)
                elif not (node.host_locks or node.write or node.load or (spare_leaves and node.is_device_leaf())):
                    freed += node.pages
                    self._drop_copy(node)
                    swept.append(node_id)
        for node_id in swept:
            self._duplicates.pop(node_id, None)
        self.counters.reclaimed_duplicates += freed
        return freed

    def _drop_copy(self, node: Node) -> None:
        """The host copy of a node on the device goes."""
        self.l2.give_back(self.tree.take_off_host(node), Owner.TREE)
        self._rank_changed(node)
        if self.unwritten_leaves is not None and node.is_unwritten_leaf():
            self.unwritten_leaves.offer(node)

    def _keep_one(self, node: Node) -> None:
        """Under an exclusive policy, a node that is in use on the device needs no settled host copy."""
        if (
            self._exclusive
            and node.host is not None
            and not (node.device is None or node.write or node.load or node.host_locks)
        ):
            self.counters.reclaimed_duplicates += node.pages
            self._drop_copy(node)
            self._enlist_duplicate(node)

    # Writing to L2

    def _write_ahead(self, leaves: EvictableLeaves) -> None:
        """Copy the next victims while more of L1 than allowed has no host copy.

        Room for them comes from what is on the host only: to take it from other copies would go on for ever.
        """
        while self.tree.unwritten > self._allowed_unwritten and (node := leaves.pop()) is not None:
            if self.l2.free < node.pages:
                self._evict_host_leaves(node.pages - self.l2.free)
            if self.l2.free < node.pages:
                leaves.offer(node)
                break
            self._back_up(node, locked=True)

    def _count_hit(self, node: Node) -> None:
        """An insert ran over `node`, or made it."""
        node.hits += 1
        if node.host is None and self.write.wants_backup(node):
            self._write_through(node)

    def _write_through(self, node: Node) -> None:
        """Back up `node`; where the rules say so, first what is above it, root side first, as far as L2 goes."""
        chain = [node]
        if self.rules.backup_ancestors:
            while (above := chain[-1].parent) is not None and above.host is None:
                chain.append(above)
        for target in reversed(chain):
            if self._back_up(target, locked=True) is None:
                break

    def _back_up(self, node: Node, locked: bool) -> Write | None:
        """Copy a node to L2; None if L2 has no room for it."""
        whole = not self.rules.evict_shortfall_only
        slots = self.host_slots(node.pages, Owner.TREE, whole)
        if slots is None:
            self.counters.backups_refused += 1
            return None
        write = Write(self.ledger.new_op(), node, locked)
        self.ledger.writing[write.op_id] = write
        self.ledger.open[write.op_id] = self._written
        self.tree.put_on_host(node, slots)
        node.write = write
        if locked:
            self.tree.lock(node)
        self.counters.backups += 1
        self.counters.backed_up += node.pages
        assert node.device is not None, "there is nothing to copy"
        self._outbox.append(Op(write.op_id, OpKind.BACKUP, node.pages, node.device.indices, slots.indices))
        return write

    def _written(self, event: Completion | Progress) -> None:
        del self.ledger.open[event.op_id]
        self.ledger.writing[event.op_id].done_pages = event.pages_ok
        self.acks_due = True

    def _reap_writes(self) -> None:
        """Acknowledge finished writes in order, up to the first unfinished one."""
        done = []
        for write in self.ledger.writing.values():
            if write.done_pages is None or write.leaving is not None:
                break
            done.append(write)
        for write in done:
            del self.ledger.writing[write.op_id]
            if write.good:
                for node in write.fragments:
                    node.write = None
                    self._enlist_duplicate(node)
            else:
                self._write_failed(write)
            if write.locked:
                self.unlock(write.node)
            if write.good:
                self._hand_on(write)

    def _write_failed(self, write: Write) -> None:
        """The host copy is worth nothing: give it back. The node stays where it is on the device."""
        for node in write.fragments:
            node.write = None
            self.l2.give_back(self.tree.take_off_host(node), Owner.TREE)

    def _hand_on(self, write: Write) -> None:
        if self.storage is not None:
            self.storage.store_written(write)

    # Loading from L2

    def load_back(self, match: Match) -> Waits:
        """Bring the host part of a match back to L1: all of it or nothing. The pages loaded, 0 if refused.

        The nodes count as on the device from now on; `start_loading` sends the copies on their way, and the nodes
        stay locked until these are acknowledged.
        """
        pages = match.host_pages
        if not pages:
            return 0
        if pages * self.shape.page_tokens < self.shape.load_back_threshold_tokens:
            self.counters.loads_refused_small += 1
            return 0
        above = match.node if self.rules.load_locks_host else match.device_node
        self.tree.lock(above)
        # 0.5.7 protects only the device part, and its own eviction may throw out what it is about to load.
        hold = HostLock(match.node)
        slots = self.l1.alloc(pages, Owner.TREE)
        if slots is None:
            yield from self.make_room(pages - self.l1.free if self.rules.evict_shortfall_only else pages)
            slots = self.l1.alloc(pages, Owner.TREE)
        self.unlock(above)
        if slots is None:
            self.release_hold(hold)
            self.counters.loads_refused_room += 1
            return 0
        self._queue_load(match.node, slots, hold)
        self.counters.loaded += pages
        return pages

    def _queue_load(self, last: Node, slots: Extent, hold: HostLock) -> None:
        if self._queued_load is None:
            self._queued_load = Load(self.ledger.new_op())
        load = self._queued_load
        nodes = []
        node = last
        while node.device is None:
            nodes.append(node)
            node = node.parent  # type: ignore[assignment]
        pages, target = slots.pages, slots.indices
        sources = []
        for node in reversed(nodes):
            assert node.host is not None
            sources.append(node.host.indices)
            self.tree.put_on_device(node, slots.cut(node.pages))
            node.load = load
        self.tree.lock(last)
        if not self.rules.load_locks_host:
            self.release_hold(hold)
        load.chains.append(Chain(last, sources, target, hold if self.rules.load_locks_host else None))
        load.pages += pages

    def start_loading(self) -> int | None:
        """Merge what is queued into one LOAD; its operation id, None if there is nothing to load."""
        load, self._queued_load = self._queued_load, None
        if load is None:
            return None
        self.ledger.loading[load.op_id] = load
        self.ledger.open[load.op_id] = self._loaded
        src, dst = array("q"), array("q")
        for chain in load.chains:
            dst.extend(chain.slots)
            for source in chain.sources:
                src.extend(source)
        self._outbox.append(Op(load.op_id, OpKind.LOAD, load.pages, src, dst))
        return load.op_id

    @property
    def queued_load(self) -> Load | None:
        """Chains decided and not yet started."""
        return self._queued_load

    def _loaded(self, event: Completion | Progress) -> None:
        load = self.ledger.loading[event.op_id]
        if event.pages_ok < load.pages:
            # Requests compute on these pages already, and others match them: what they make would be garbage too.
            raise ProtocolError(f"LOAD {event.op_id} came back with {event.pages_ok} of {load.pages} pages")
        del self.ledger.open[event.op_id]
        load.done_pages = event.pages_ok
        self.acks_due = True

    def _reap_loads(self) -> None:
        done = []
        for load in self.ledger.loading.values():
            if load.done_pages is None:
                break
            done.append(load)
        for load in done:
            del self.ledger.loading[load.op_id]
            for chain in load.chains:
                self._end_chain(chain, load)

    def _end_chain(self, chain: Chain, load: Load) -> None:
        if chain.host_lock is not None:
            self.release_hold(chain.host_lock)
        node = chain.node
        while node.load is load:
            node.load = None
            self._enlist_duplicate(node)
            self._keep_one(node)
            node = node.parent  # type: ignore[assignment]
        self.unlock(chain.node)

    # Inserting

    def insert(
        self,
        namespace: str | None,
        key: bytes,
        start: int,
        slots: Extent,
        priority: int = 0,
        chunked: bool = False,
        counted: int = 0,
    ) -> int:
        """Give the pages `start` … of `key`, computed by a request into `slots`, to the tree.

        Pages before `start` are on the device already, held by the request. Pages the tree has meanwhile got on the
        device from somebody else are duplicates: their slots are freed. `counted`: pages whose hits this request has
        counted before (0.5.23). Returns the pages that were on the device before the call.
        """
        tree, l1 = self.tree, self.l1
        counts = self._counts_hits and (self.rules.count_chunked_hits or not chunked)
        if not self.rules.count_chunked_hits:
            counted = 0
        exclusive = self._exclusive
        at = prefix = 0
        node = tree.root
        child = node.children.get((namespace, key[:ATOM_BYTES]))
        while child is not None:
            before = tree.touch(child)
            if not key.startswith(child.key, at * ATOM_BYTES):
                if self.rules.split_raises_lower and child.priority < priority:
                    child.priority = priority
                child = tree.split(child, common_pages(child.key, 0, key, at * ATOM_BYTES), before)
            if child.priority < priority:
                child.priority = priority
            end = at + child.pages
            if child.device is None:
                own = slots.cut(end - at)
                l1.hand_over(own, Owner.REQUEST, Owner.TREE)
                tree.put_on_device(child, own)
                self._enlist_duplicate(child)
                hit = self.rules.refill_counts_hit
            else:
                if end > start:
                    l1.give_back(slots.cut(end - max(at, start)), Owner.REQUEST)
                prefix = end
                hit = True
            if hit and counts and end > counted:
                self._count_hit(child)
            if exclusive:
                self._keep_one(child)
            node, at = child, end
            child = node.children.get(key[at * ATOM_BYTES : (at + 1) * ATOM_BYTES])
        if at * ATOM_BYTES < len(key):
            node = self._add_leaf(node, namespace, key[at * ATOM_BYTES :], slots, priority)
            if counts:
                self._count_hit(node)
        if not node.lock and node.parent is not None:
            self._offer_lowest(node)
        self.path_changed(node)
        return prefix

    def _add_leaf(self, parent: Node, namespace: str | None, key: bytes, slots: Extent, priority: int) -> Node:
        node = self.tree.add(parent, namespace, key, priority)
        if self.facts is not None:
            self.facts.append((None, key))
        self.l1.hand_over(slots, Owner.REQUEST, Owner.TREE)
        self.tree.put_on_device(node, slots)
        if self.storage is not None:
            node.names = self.keys.chain(key, parent.names[-1] if parent.names else None)
        return node

    def free_request_slots(self, slots: Extent) -> None:
        """Give back device slots of a request that never reached the tree."""
        if slots.pages:
            self.l1.give_back(slots, Owner.REQUEST)

    # Housekeeping

    def _remove(self, node: Node) -> None:
        self._duplicates.pop(node.id, None)
        self.tree.remove(node)

    def _note(self, reason: Drop, node: Node) -> None:
        self.counters.dropped[reason] += node.pages
        if self.facts is not None:
            self.facts.append((reason, node.key))

    def _enlist_duplicate(self, node: Node) -> None:
        if self.rules.reclaim_duplicates:
            if node.device is not None and node.host is not None and node.write is None and node.load is None:
                self._duplicates.setdefault(node.id, node)
            else:
                self._duplicates.pop(node.id, None)

    def _offer(self, node: Node | None) -> None:
        """`node` may have become a leaf of one of the levels."""
        assert node is not None
        if node.is_device_leaf():
            self.device_leaves.offer(node)
            if self.unwritten_leaves is not None and node.host is None:
                self.unwritten_leaves.offer(node)
        elif node.is_host_leaf():
            self.host_leaves.offer(node)

    def _offer_lowest(self, node: Node) -> None:
        """Offer `node` if it is a leaf of a level, and the lowest node above it that is on the device."""
        while node.device is None:
            self._offer(node)
            node = node.parent  # type: ignore[assignment]
        self._offer(node)

    def _was_split(self, upper: Node, lower: Node) -> None:
        """Both halves are where the whole was. Whoever split it has touched it before, and may go on with `upper`."""
        self._enlist_duplicate(upper)
        self._rank_changed(lower)

    def path_changed(self, node: Node) -> None:
        """`node` and all above it have been touched: ranks that can fall may have."""
        if not self._rises_only:
            while node.parent is not None:
                self._rank_changed(node)
                node = node.parent

    def _rank_changed(self, node: Node) -> None:
        if not self._rises_only:
            self._offer(node)
