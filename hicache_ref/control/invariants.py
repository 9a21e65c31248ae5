"""The laws, checked on a cache as it stands. Numbers are those of ARCHITECTURE.md.

Everything is counted afresh from the tree, the pools and the ledger; nothing is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from .cache import HiCache
from .policies import Leaves
from .slots import Extent, Owner, SlotPool
from .tree import Node


class LawBroken(AssertionError):
    """A law does not hold: which, and where."""


def check(cache: HiCache) -> None:
    """Laws that hold between any two calls. Raises LawBroken."""
    nodes = list(cache.tree.nodes())
    _slots_conserved(cache, nodes)
    _device_is_prefix_closed(cache, nodes)
    _locked_nodes_keep_slots(nodes)
    _sums_are_true(cache, nodes)
    _leaves_are_known(cache, nodes)
    _duplicates_are_known(cache, nodes)
    _structure_is_sound(cache, nodes)
    _ledger_is_sound(cache)
    _holds_are_known(cache, nodes)


def check_at_rest(cache: HiCache) -> None:
    """L4: with no operation in flight and no request running, nothing is held."""
    check(cache)
    ledger = cache.ledger
    left = ledger.open or ledger.detached or ledger.lingering or ledger.lingering_stores or cache.queued_load
    _require(ledger.at_rest and not left, "L4: tables are not empty at rest")
    for node in cache.tree.nodes():
        _require(not node.lock and not node.host_locks, f"L4: node {node.id} is held at rest")
        _require(node.write is None and node.load is None, f"L4: node {node.id} has a transfer at rest")
    _require(not cache.l1.owned()[Owner.REQUEST], "L4: L1 slots belong to requests at rest")
    _require(not cache.l2.owned()[Owner.TRANSIT], "L4: L2 slots are in transit at rest")


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise LawBroken(words)


def _slots_conserved(cache: HiCache, nodes: list[Node]) -> None:
    """L1: free + owned = capacity on each level, and no slot twice."""
    device = [node.device for node in nodes if node.device is not None]
    device += [write.leaving for write in cache.ledger.writing.values() if write.leaving is not None]
    _pool(cache.l1, device)
    _pool(cache.l2, [node.host for node in nodes if node.host is not None])
    transit = cache.l2.owned()[Owner.TRANSIT]
    held = {id(p): p.slots for p in (*cache.ledger.fetching.values(), *cache.ledger.prefetching.values())}
    returning = sum(slots.pages for slots in cache.ledger.released)
    arriving = sum(slots.pages for slots in held.values() if slots is not None)
    arriving += sum(slots.pages for slots in cache.ledger.lingering.values())
    arriving += sum(node.host.pages for node in cache.ledger.detached.values() if node.host is not None)
    _require(transit == returning + arriving, f"L1: {transit} L2 slots in transit, not {returning + arriving}")


def _pool(pool: SlotPool, extents: list[Extent]) -> None:
    """Extents of the tree have each slot once, none that is free, and as many as the pool has given to the tree."""
    owned, free = pool.owned(), pool.free_slots()
    used = np.concatenate([np.empty(0, np.int64), *(extent.indices for extent in extents)])
    if np.bincount(np.concatenate([free, used])).max(initial=0) > 1:  # many times faster than to ask for each
        _require(len(np.unique(free)) == len(free), f"L1: {pool.name} lists a free slot twice")
        _require(len(np.unique(used)) == len(used), f"L1: a slot of {pool.name} belongs to two nodes")
        raise LawBroken(f"L1: a slot of {pool.name} is free, and belongs to a node")
    _require(len(used) == owned[Owner.TREE], f"L1: {pool.name} has {owned[Owner.TREE]} tree slots, nodes {len(used)}")
    for extent in extents:
        _require(extent.owner is Owner.TREE, f"L1: a node has slots of {pool.name} that are {extent.owner.name}'s")
        _require(extent.pages == len(extent.indices), f"L1: an extent of {pool.name} has not its length")


def _device_is_prefix_closed(cache: HiCache, nodes: list[Node]) -> None:
    """L2: a node on the device has its parent there; every node is somewhere."""
    for node in nodes:
        parent = node.parent
        on_device = node.device is not None
        _require(on_device or node.host is not None, f"L2: node {node.id} is nowhere")
        _require(
            not on_device or parent is cache.tree.root or (parent is not None and parent.device is not None),
            f"L2: node {node.id} is on the device below one that is not",
        )


def _locked_nodes_keep_slots(nodes: list[Node]) -> None:
    """L3: a locked node keeps its device slots, one with a transfer its host slots."""
    for node in nodes:
        for lock in node.host_locks:
            _require(node in lock.nodes, f"L3: node {node.id} has a host lock that does not know it")
        _require(node.write is None or node.host is not None, f"L3: node {node.id} lost the target of its write")
        _require(node.load is None or node.device is not None, f"L3: node {node.id} lost the target of its load")
        if node.lock and node.parent is not None:
            _require(node.parent.lock > 0, f"L3: node {node.id} is locked below one that is not")


def _sums_are_true(cache: HiCache, nodes: list[Node]) -> None:
    """L11: evictable + protected = pages of nodes on the device, each in its sum."""
    locked = sum(node.pages for node in nodes if node.device is not None and node.lock)
    loose = sum(node.pages for node in nodes if node.device is not None and not node.lock)
    _require(cache.tree.protected == locked, f"L11: protected {cache.tree.protected}, counted {locked}")
    doubled = sum(node.pages for node in nodes if node.device is not None and node.host is not None)
    _require(cache.tree.doubled == doubled, f"L11: doubled {cache.tree.doubled}, counted {doubled}")
    _require(cache.tree.evictable == loose, f"L11: evictable {cache.tree.evictable}, counted {loose}")


def _leaves_are_known(cache: HiCache, nodes: list[Node]) -> None:
    """Whatever may be evicted is in its heap: nothing can be forgotten there (part of L5)."""
    levels: list[tuple[str, Leaves, Callable[[Node], bool]]] = [
        ("L1", cache.device_leaves, Node.is_device_leaf),
        ("L2", cache.host_leaves, Node.is_host_leaf),
    ]
    if cache.unwritten_leaves is not None:
        levels.append(("L1 without a copy", cache.unwritten_leaves, Node.is_unwritten_leaf))
    for level, leaves, is_leaf in levels:
        known = leaves.known()
        for node in nodes:
            _require(
                not is_leaf(node) or node.id in known, f"L5: leaf {node.id} of {level} is not among the candidates"
            )


def _duplicates_are_known(cache: HiCache, nodes: list[Node]) -> None:
    """Whatever is on both levels with nothing in flight can be reclaimed, where the rules say so (part of L5)."""
    for node in nodes if cache.rules.reclaim_duplicates else ():
        settled = node.device is not None and node.host is not None and node.write is None and node.load is None
        _require(not settled or node.id in cache._duplicates, f"L5: duplicate {node.id} cannot be reclaimed")


def _structure_is_sound(cache: HiCache, nodes: list[Node]) -> None:
    counted = Counter(node.parent.id for node in nodes if node.device is not None and node.parent is not None)
    for node in [cache.tree.root, *nodes]:
        _require(node.device_children == counted[node.id], f"node {node.id} miscounts its children on the device")
        for name, child in node.children.items():
            _require(child.parent is node and child.child_key() == name, f"node {child.id} hangs under a wrong name")
    for node in nodes:
        _require(
            node.pages == len(node.key) // 8 > 0, f"node {node.id} has {node.pages} pages and a key of other length"
        )
        for extent in (node.device, node.host):
            _require(extent is None or extent.pages == node.pages, f"node {node.id}: an extent has not its length")
        _require(node.names is None or len(node.names) == node.pages, f"node {node.id} has not a name for each page")


def _ledger_is_sound(cache: HiCache) -> None:
    """L4: every operation without its completion is in exactly one table."""
    ledger = cache.ledger
    pages = sum(prefetch.pages for prefetch in ledger.prefetching.values())
    _require(pages == ledger.prefetch_pages, f"L4: {ledger.prefetch_pages} pages count as prefetching, not {pages}")
    waiting = [op for op, write in ledger.writing.items() if write.done_pages is None]
    waiting += [op for op, load in ledger.loading.items() if load.done_pages is None]
    waiting += [op for op, store in ledger.storing.items() if store not in ledger.stored]
    waiting += [*ledger.fetching, *ledger.clearing]
    foreign = set(ledger.open) - set(waiting) - ledger.computing
    _require(not foreign and len(waiting) == len(set(waiting)), f"L4: operations {foreign} are in no table")
    _require(set(waiting) <= set(ledger.open), "L4: an operation waits for a completion nobody expects")


def _holds_are_known(cache: HiCache, nodes: list[Node]) -> None:
    """L4: every hold on a host copy belongs to an operation or a waiting request, and will end with it."""
    ledger = cache.ledger
    loads = [*ledger.loading.values(), *([cache.queued_load] if cache.queued_load is not None else [])]
    holders = [store.hold for store in (*ledger.storing.values(), *ledger.lingering_stores.values())]
    holders += [prefetch.hold for prefetch in ledger.prefetching.values() if prefetch.hold is not None]
    holders += [chain.host_lock for load in loads for chain in load.chains if chain.host_lock is not None]
    known = {id(hold) for hold in holders}
    for node in nodes:
        _require(all(id(lock) in known for lock in node.host_locks), f"L4: node {node.id} is held by nobody")
    for node in ledger.detached.values():
        holds = [id(lock) in known for lock in node.host_locks]
        _require(bool(holds) and all(holds), f"L4: node {node.id} has left the tree, and is held by nobody")
        _require(node.device is None and node not in nodes, f"L4: node {node.id} has not left the tree")
