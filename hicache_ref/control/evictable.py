"""Leaves that may be evicted, kept ready in order of their rank.

Rules of this file
- Upstream walks the whole tree on every eviction. Here a node is offered when it becomes a leaf, and is looked at
  again only when it would be next: the same order, for the cost of what changed.
- A rank that only rises (lru, lfu, fifo, priority, slru) makes an entry too early, never too late: it is put back
  with its present rank when it surfaces. A rank that can fall (mru) must be offered again at every change.
- Most are offered in order: under lru whoever is let go was just used, and what L1 evicts comes to L2 as it aged. They
  wait in a line; only the others need a heap.
- Ties between equal ranks go to the node offered first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from .policies import EvictionPolicy, Leaves
from .tree import Node

_SLACK: Final = 64

Entry = tuple[Any, int, Node]
"""(rank when it was offered, number of the offer, node)."""


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
        self._line: deque[Any] = deque()
        """Entries that came in order."""
        self._heap: list[Any] = []
        """Those that did not, and those put back: on the line these would hold up who comes after them."""
        self._queued: set[int] = set()
        self._serial = 0
        self._compact_at = _SLACK

    def offer(self, node: Node) -> None:
        """`node` is a leaf of this level, newly so or touched."""
        if self._rises_only:
            if node.id in self._queued:
                return
            self._queued.add(node.id)
        self._serial += 1
        rank, line = self._rank(node), self._line
        if not line or line[-1][0] < rank:
            line.append((rank, self._serial, node))
        else:
            heappush(self._heap, (rank, self._serial, node))
        if len(self._line) + len(self._heap) > self._compact_at:
            self._compact()

    def pop(self) -> Node | None:
        """The leaf to evict next, taken out; None if there is none."""
        line, heap = self._line, self._heap
        while line or heap:
            entry: Entry = line.popleft() if line and not (heap and heap[0] < line[0]) else heappop(heap)
            rank, serial, node = entry
            if self._is_leaf(node):
                now = self._rank(node)
                if rank < now:  # Not `!=`: a rank that equals nothing (NaN) must not keep us here for ever.
                    heappush(heap, (now, serial, node))
                    continue
                self._queued.discard(node.id)
                return node
            self._queued.discard(node.id)
        return None

    def entries(self) -> list[Entry]:
        """All that wait, of nodes that are leaves or were. For the laws."""
        return [*self._line, *self._heap]

    def known(self) -> set[int]:
        """Ids of the nodes that wait, leaves or not. For the laws."""
        return {node.id for _, _, node in self.entries()}

    def _compact(self) -> None:
        """Forget nodes that have ceased to be leaves, so that what waits is bounded by the tree."""
        fresh = {node.id: (self._rank(node), serial, node) for _, serial, node in self.entries() if self._is_leaf(node)}
        self._line = deque(sorted(fresh.values(), key=lambda entry: entry[:2]))
        self._heap = []
        self._queued = set(fresh) if self._rises_only else set()
        self._compact_at = _SLACK + 2 * len(fresh)
