"""Leaves that may be evicted, kept ready in order of their rank.

Rules of this file
- Upstream walks the whole tree on every eviction. Here a node is offered when it becomes a leaf, and the heap is
  checked only when it is asked: the same order, for the cost of what changed.
- A rank that only rises (lru, lfu, fifo, priority, slru) makes an entry too early, never too late: it is put back
  with its present rank when it surfaces. A rank that can fall (mru) must be offered again at every change.
- Ties between equal ranks go to the node offered first.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Any, Final

from .policies import EvictionPolicy, Leaves
from .tree import Node

_SLACK: Final = 64


def leaves_of(policy: EvictionPolicy, is_leaf: Callable[[Node], bool]) -> Leaves:
    """The candidates of one level: in the policy's own queue if it brings one, else in order of rank."""
    own: Callable[[Callable[[Node], bool]], Leaves] | None = getattr(policy, "leaves", None)
    return own(is_leaf) if own is not None else EvictableLeaves(policy.rank, policy.rises_only, is_leaf)


class EvictableLeaves:
    """Candidates of one level: nodes for which `is_leaf` holds, smallest `rank` first."""

    def __init__(self, rank: Callable[[Node], Any], rises_only: bool, is_leaf: Callable[[Node], bool]) -> None:
        self._rank = rank
        self._rises_only = rises_only
        self._is_leaf = is_leaf
        self._heap: list[tuple[Any, int, Node]] = []
        self._queued: set[int] = set()
        self._serial = 0
        self._compact_at = _SLACK

    def offer(self, node: Node) -> None:
        """`node` is a leaf of this level, newly so or touched."""
        if self._rises_only:
            if node.id in self._queued:
                return
            self._queued.add(node.id)
        self._push(node)

    def pop(self) -> Node | None:
        """The leaf to evict next, taken out; None if there is none."""
        heap = self._heap
        while heap:
            rank, serial, node = heap[0]
            if not self._is_leaf(node):
                heappop(heap)
                self._queued.discard(node.id)
                continue
            now = self._rank(node)
            if not rank < now:  # Not `==`: a rank that equals nothing (NaN) must not keep us here for ever.
                heappop(heap)
                self._queued.discard(node.id)
                return node
            heapreplace(heap, (now, serial, node))
        return None

    def known(self) -> set[int]:
        """Ids of the nodes in the heap, leaves or not. For the laws."""
        return {node.id for _, _, node in self._heap}

    def _push(self, node: Node) -> None:
        self._serial += 1
        heappush(self._heap, (self._rank(node), self._serial, node))
        if len(self._heap) > self._compact_at:
            self._compact()

    def _compact(self) -> None:
        """Forget nodes that have ceased to be leaves, so that the heap is bounded by the tree."""
        fresh = {node.id: (self._rank(node), serial, node) for _, serial, node in self._heap if self._is_leaf(node)}
        self._heap = sorted(fresh.values(), key=lambda entry: entry[:2])
        self._queued = set(fresh) if self._rises_only else set()
        self._compact_at = _SLACK + 2 * len(self._heap)
