"""What a policy must be. Implementations live in `hicache_ref.policy`, and in users' own files.

Rules of this file
- A policy reads nodes and numbers and answers; it writes nothing, keeps no clock, allocates nothing.
- What is not a rank alone (SIEVE's hand, S3-FIFO's queues) brings a queue of its own, one a level: `QueuePolicy`.
- A policy that reads the future of the workload says so with `reads_future`, and runs only where that is allowed (L8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .tree import Node


class EvictionPolicy(Protocol):
    """In which order leaves are evicted, on both levels (article 3.1, 3.4)."""

    name: str
    rises_only: bool
    """Whether the rank of a node can only rise while it is a leaf. If in doubt, False: it costs time, never order."""
    reads_future: bool

    def rank(self, node: Node) -> Any:
        """Sortable; the smallest is evicted first."""
        ...


class Leaves(Protocol):
    """The candidates of one level, in the order in which they are evicted."""

    def offer(self, node: Node) -> None:
        """`node` is a leaf of this level, newly so or touched."""
        ...

    def pop(self) -> Node | None:
        """The leaf to evict next, taken out; None only if there is none."""
        ...

    def known(self) -> set[int]:
        """Ids of the nodes waiting here, every leaf of the level among them. For the laws."""
        ...


class QueuePolicy(EvictionPolicy, Protocol):
    """An eviction policy that remembers: its memory is in its queues. `rank` only orders what is copied ahead."""

    def leaves(self, is_leaf: Callable[[Node], bool]) -> Leaves:
        """A new queue for one level, whose leaves `is_leaf` tells."""
        ...


class WritePolicy(Protocol):
    """When pages are copied from L1 to L2 (article 3.5)."""

    name: str
    counts_hits: bool
    """Whether inserts count hits on nodes at all."""
    copies_on_eviction: bool
    """Whether a node without a host copy is copied when L1 evicts it, instead of dropped."""
    exclusive: bool
    """Whether a node in use on the device gives its host copy back."""
    unwritten_share: float
    """Share of L1 that may be without a host copy: beyond it the next victims are copied ahead. 1: never."""
    reads_future: bool

    def wants_backup(self, node: Node) -> bool:
        """After a hit was counted on a node that has no host copy: is it written now?"""
        ...


class FetchState(Protocol):
    """What a prefetch policy may see of a prefetch."""

    pages: int
    """Pages asked for."""
    hit_pages: int | None
    """Pages the store has; None until it has answered."""
    good_pages: int
    """Pages that have arrived."""
    started_s: float | None
    """When its clock began."""


class FetchLimits(Protocol):
    """What is asked of L3 at all."""

    capacity_tokens: int
    """No new prefetch while this many tokens are in flight."""

    def asks(self, pages: int, tokens: int) -> bool:
        """Is the store asked for a span of this length? Asked once a span."""
        ...

    def worth(self, tokens: int) -> bool:
        """Is so much of what the store has worth fetching?"""
        ...

    def ended(self, pages: int, arrived: int) -> None:
        """A request that asked for so many pages goes on, with these."""
        ...


class PrefetchPolicy(Protocol):
    """How long a waiting request waits for its prefetch (article 3.6).

    One with a method `limits` makes of the given `FetchLimits` its own, which decide what is asked for, and may learn.
    """

    name: str

    def may_stop(self, fetch: FetchState, now_s: float) -> bool:
        """May the request go on with what has arrived?"""
        ...

    def deadline_s(self, fetch: FetchState) -> float | None:
        """When time alone will let the request go on; None if it will not."""
        ...
