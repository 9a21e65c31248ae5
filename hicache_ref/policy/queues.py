"""Eviction strategies with a memory of their own, made for a tree: SIEVE and S3-FIFO.

Flat, these break on prompts: they throw out roots, and count the blocks of one prompt as so many objects (peers: SIEVE
halves LRU's hits). Here a node is one object, and only leaves are in a queue. A node that ceases to be a leaf, because
somebody uses it or hangs something below it, leaves its queue; when it comes back it keeps its place by age, and what
was used through it, by any prompt below, counts as a visit.

Rules of this file
- A queue belongs to one level of one cache, and is a function of what it was offered and asked: no chance, no clock.
- A visit is a touch since the queue last looked: one bit, taken from `last_access`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..control.tree import Node
from .strategy import Strategy

IsLeaf = Callable[[Node], bool]
_SLACK = 64


def _gone(node: Node) -> bool:
    """Off the tree: on no level any more."""
    return node.device is None and node.host is None


class SieveLeaves:
    """One hand that goes from the oldest node to the newest and again: it spares what was visited since it last came
    by, and evicts the first that was not. Nothing moves: newer nodes join behind, before the hand turns."""

    def __init__(self, is_leaf: IsLeaf) -> None:
        self._is_leaf = is_leaf
        self._round = 0
        self._hand = -1
        """`created` of the node the hand has come by last, in this round."""
        self._heap: list[tuple[int, int, int, Node]] = []
        """(round, created, id, node): when the hand will come by."""
        self._queued: set[int] = set()
        self._seen: dict[int, int] = {}
        """`last_access` of a node when the hand came by, or when it joined."""
        self._compact_at = _SLACK

    def offer(self, node: Node) -> None:
        if node.id in self._queued:
            return
        self._queued.add(node.id)
        self._seen.setdefault(node.id, node.last_access)
        self._push(node)
        if len(self._seen) > self._compact_at:
            self._compact()

    def pop(self) -> Node | None:
        while self._heap:
            self._round, self._hand, _, node = heapq.heappop(self._heap)
            if not self._is_leaf(node):
                self._leave(node)
            elif node.last_access > self._seen[node.id]:
                self._seen[node.id] = node.last_access
                self._push(node)
            else:
                self._leave(node)
                del self._seen[node.id]
                return node
        return None

    def known(self) -> set[int]:
        return set(self._queued)

    def _push(self, node: Node) -> None:
        turn = self._round + (node.created <= self._hand)
        heapq.heappush(self._heap, (turn, node.created, node.id, node))

    def _leave(self, node: Node) -> None:
        self._queued.discard(node.id)
        if _gone(node):
            self._seen.pop(node.id, None)

    def _compact(self) -> None:
        """Forget nodes that are not waiting here: inner nodes start anew, when they come back, as any that joins."""
        self._seen = {node_id: stamp for node_id, stamp in self._seen.items() if node_id in self._queued}
        self._compact_at = _SLACK + 2 * len(self._seen)


class Sieve(Strategy):
    """Evict the oldest leaf that was not visited since the hand last came by.

    Source: Zhang et al., "SIEVE is Simpler than LRU" (NSDI '24); tree-aware as this file says.
    """

    name = "sieve"

    def rank(self, node: Node) -> Any:
        return node.created, node.id

    def leaves(self, is_leaf: IsLeaf) -> SieveLeaves:
        return SieveLeaves(is_leaf)


class S3FifoLeaves:
    """Three queues: new nodes wait in a small one, are evicted from it unless visited, and then wait in the main one,
    from whose end those visited go back to its beginning. Who was thrown out of the small one and comes back soon, a
    ghost, goes straight to the main one."""

    def __init__(self, is_leaf: IsLeaf, small_share: float) -> None:
        self._is_leaf = is_leaf
        self._small_share = small_share
        self._small: OrderedDict[int, Node] = OrderedDict()
        self._main: OrderedDict[int, Node] = OrderedDict()
        self._pages = {id(self._small): 0, id(self._main): 0}
        self._sizes: dict[int, int] = {}
        """Pages that a waiting node counts for: those it had when it joined."""
        self._seen: dict[int, int] = {}
        self._promoted: set[int] = set()
        """Nodes that were in the main queue, or belong there."""
        self._ghosts: OrderedDict[tuple[str | None, bytes], None] = OrderedDict()
        """First pages of nodes evicted from the small queue, the oldest first."""
        self._compact_at = _SLACK

    def offer(self, node: Node) -> None:
        if node.id in self._sizes:
            return
        if node.id not in self._seen:
            self._seen[node.id] = node.last_access
            if _first_page(node) in self._ghosts:
                del self._ghosts[_first_page(node)]
                self._promoted.add(node.id)
        self._join(self._main if node.id in self._promoted else self._small, node)
        if len(self._seen) > self._compact_at:
            self._compact()

    def pop(self) -> Node | None:
        while self._sizes:
            queue = self._next_queue()
            node = self._leave(queue)
            if not self._is_leaf(node):
                if _gone(node):
                    self._forget(node)
            elif node.last_access > self._seen[node.id]:
                self._seen[node.id] = node.last_access
                self._promoted.add(node.id)
                self._join(self._main, node)
            else:
                if queue is self._small:
                    self._haunt(node)
                self._forget(node)
                return node
        return None

    def known(self) -> set[int]:
        return set(self._sizes)

    def _next_queue(self) -> OrderedDict[int, Node]:
        """The small queue once it has its share, or if there is no other."""
        small, main = self._pages[id(self._small)], self._pages[id(self._main)]
        full = small >= self._small_share * (small + main)
        return self._small if self._small and (full or not self._main) else self._main

    def _join(self, queue: OrderedDict[int, Node], node: Node) -> None:
        queue[node.id] = node
        self._sizes[node.id] = node.pages
        self._pages[id(queue)] += node.pages

    def _leave(self, queue: OrderedDict[int, Node]) -> Node:
        node_id, node = queue.popitem(last=False)
        self._pages[id(queue)] -= self._sizes.pop(node_id)
        return node

    def _haunt(self, node: Node) -> None:
        """Remember who was thrown out young: as many as are waiting."""
        self._ghosts[_first_page(node)] = None
        while len(self._ghosts) > _SLACK + len(self._sizes):
            self._ghosts.popitem(last=False)

    def _forget(self, node: Node) -> None:
        self._seen.pop(node.id, None)
        self._promoted.discard(node.id)

    def _compact(self) -> None:
        """Forget nodes that are not waiting here; an inner node that comes back starts in the small queue."""
        self._seen = {node_id: stamp for node_id, stamp in self._seen.items() if node_id in self._sizes}
        self._promoted &= self._seen.keys()
        self._compact_at = _SLACK + 2 * len(self._seen)


def _first_page(node: Node) -> tuple[str | None, bytes]:
    return node.namespace, node.key[:8]


class S3Fifo(Strategy):
    """Evict quickly what is not seen a second time, and keep what is.

    small_share: of all waiting pages, the share of the queue for new nodes. Source: Yang et al., "FIFO Queues are All
    You Need for Cache Eviction" (SOSP '23); a visit is one bit here, tree-aware as this file says.
    """

    name = "s3fifo"

    def __init__(self, small_share: float = 0.1) -> None:
        if not 0 <= small_share <= 1:
            raise ValueError(f"s3fifo: small_share {small_share} is not between 0 and 1")
        self.small_share = small_share

    def rank(self, node: Node) -> Any:
        return node.created, node.id

    def leaves(self, is_leaf: IsLeaf) -> S3FifoLeaves:
        return S3FifoLeaves(is_leaf, self.small_share)
