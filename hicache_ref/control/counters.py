"""What the control plane counts: pages and events that no state remembers.

Everything here is a running sum of decisions. What can be read off the tree, the pools or the ledger is not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Drop(Enum):
    """Why pages left the tree, or never reached the next level."""

    __hash__ = object.__hash__  # Enum's own is a Python function, and this is counted by the million

    L1_UNBACKED = "evicted from L1 before its backup"
    L1_ORPHANED = "host copy below a node that L1 dropped"
    L2_EVICTED = "evicted from L2"
    L2_FULL = "write_back found L2 full"
    WRITE_FAILED = "write to L2 failed"


class Refusal(Enum):
    """Why a prefetch was not issued, or led to nothing (article 3.6)."""

    SHORT = "shorter than the threshold"
    RATE = "too many tokens in flight"
    HOST_SPACE = "no room in L2"
    ANCHOR = "last device node has no host copy"
    FEW_HITS = "store has less than the threshold"

    @property
    def worth_a_retry(self) -> bool:
        """Whether the same question may be answered otherwise a little later."""
        return self in (Refusal.RATE, Refusal.HOST_SPACE, Refusal.FEW_HITS)


@dataclass(slots=True)
class Counters:
    """Sums since the start, in pages unless the name says otherwise."""

    evicted_l1: int = 0
    evicted_l2: int = 0
    demoted: int = 0
    dropped: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))
    backed_up: int = 0
    backups: int = 0
    backups_refused: int = 0
    """Backups that found no room in L2."""
    loaded: int = 0
    loads_refused_small: int = 0
    """Chains below the load-back threshold."""
    loads_refused_room: int = 0
    """Chains for which L1 could not make room."""
    reclaimed_duplicates: int = 0
    prefetches_issued: int = 0
    prefetch_refusals: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))
    prefetched: int = 0
    """Pages that arrived in time and entered the tree."""
    prefetched_duplicate: int = 0
    """Pages that arrived and were in the tree already."""
    prefetched_late: int = 0
    """Pages the store had, given up by the request before they arrived."""
    prefetch_failed: int = 0
    """Pages the store had promised and did not deliver."""
    prefetch_wasted: int = 0
    """Pages that arrived for nobody: their prefetch was cancelled, or their request gone."""
    stored: int = 0
    stores: int = 0
    store_failed: int = 0
    """Pages a STORE did not write."""
