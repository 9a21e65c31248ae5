"""What a policy must be. Implementations live in `hicache_ref.policy`, and in users' own files.

Rules of this file
- A policy reads nodes and numbers and answers; it writes nothing, keeps no clock, allocates nothing.
- A policy that reads the future of the workload says so with `reads_future`, and runs only where that is allowed (L8).
"""

from __future__ import annotations

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


class WritePolicy(Protocol):
    """When pages are copied from L1 to L2 (article 3.5)."""

    name: str
    counts_hits: bool
    """Whether inserts count hits on nodes at all."""
    copies_on_eviction: bool
    """Whether a node without a host copy is copied when L1 evicts it, instead of dropped."""

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


class PrefetchPolicy(Protocol):
    """How long a waiting request waits for its prefetch (article 3.6)."""

    name: str

    def may_stop(self, fetch: FetchState, now_s: float) -> bool:
        """May the request go on with what has arrived?"""
        ...

    def deadline_s(self, fetch: FetchState) -> float | None:
        """When time alone will let the request go on; None if it will not."""
        ...
