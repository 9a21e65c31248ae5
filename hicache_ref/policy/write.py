"""Write policies: when pages are copied from L1 to L2.

Source: article 3.5; `hiradix_cache.py` of 0.5.7, `_inc_hit_count` and `evict`. Those that SGLang has only as proposals
name theirs.
"""

from __future__ import annotations

from ..control.policies import WritePolicy
from ..control.tree import Node
from .registry import Registry

WRITE: Registry[WritePolicy] = Registry("write policy")


class Writing:
    """What a policy does unless it says otherwise: count hits, and write nothing by itself."""

    name = ""
    counts_hits = True
    copies_on_eviction = False
    exclusive = False
    unwritten_share = 1.0
    reads_future = False

    def wants_backup(self, node: Node) -> bool:
        return False


class _OnHits(Writing):
    """Write once a node has been inserted over `threshold` times."""

    def __init__(self, name: str, threshold: int) -> None:
        self.name = name
        self.threshold = threshold

    def wants_backup(self, node: Node) -> bool:
        return node.hits >= self.threshold


@WRITE.register("write_through")
def write_through() -> WritePolicy:
    """Copy at the first insert."""
    return _OnHits("write_through", 1)


@WRITE.register("write_through_selective")
def write_through_selective(threshold: int = 2) -> WritePolicy:
    """Copy what has been hit."""
    return _OnHits("write_through_selective", threshold)


@WRITE.register("write_back")
class WriteBack(Writing):
    """Copy when L1 evicts, and make the eviction wait for it."""

    name = "write_back"
    counts_hits = False
    copies_on_eviction = True


@WRITE.register("write_back_watermark")
class WriteBackWatermark(Writing):
    """write_back that begins before it must: once L1 holds more than `threshold` of its pages without a host copy, the
    next victims are copied in the background, so that evicting them is free. 1 is write_back, 0 writes everything.

    Source: SGLang PR #40576, "watermark-triggered asynchronous write-back" (`--hicache-write-back-threshold`).
    """

    name = "write_back_watermark"
    counts_hits = False
    copies_on_eviction = True

    def __init__(self, threshold: float = 0.7) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"write_back_watermark: threshold {threshold} is not between 0 and 1")
        self.unwritten_share = float(threshold)


@WRITE.register("boundary")
class Boundary(Writing):
    """L2 holds what L1 does not: pages are copied as they come to the boundary, the last `zone` of L1 before eviction,
    and the copy goes when L1 uses them again. So both levels together hold nearly the sum of their pages, and L2 may
    be the smaller one. For hit counts of lfu and slru, hits are counted.

    Source: SGLang PR #29049, "L1-L2-Boundary write policy"; its zone is read off its overlap of 6 to 17 % of L1.
    """

    name = "boundary"
    copies_on_eviction = True
    exclusive = True

    def __init__(self, zone: float = 0.05) -> None:
        if not 0 <= zone <= 1:
            raise ValueError(f"boundary: zone {zone} is not between 0 and 1")
        self.unwritten_share = 1.0 - zone


@WRITE.register("none")
class NoWrite(Writing):
    """No L2: hits are counted for lfu and slru, nothing is copied. What a server without HiCache does."""

    name = "none"
