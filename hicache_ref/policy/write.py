"""Write policies: when pages are copied from L1 to L2.

Source: article 3.5; `hiradix_cache.py` of 0.5.7, `_inc_hit_count` and `evict`.
"""

from __future__ import annotations

from ..control.policies import WritePolicy
from ..control.tree import Node
from .registry import Registry

WRITE: Registry[WritePolicy] = Registry("write policy")


class _OnHits:
    """Write once a node has been inserted over `threshold` times."""

    counts_hits = True
    copies_on_eviction = False

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
class WriteBack:
    """Copy when L1 evicts, and make the eviction wait for it."""

    name = "write_back"
    counts_hits = False
    copies_on_eviction = True

    def wants_backup(self, node: Node) -> bool:
        return False


@WRITE.register("none")
class NoWrite:
    """No L2: hits are counted for lfu and slru, nothing is copied. What a server without HiCache does."""

    name = "none"
    counts_hits = True
    copies_on_eviction = False

    def wants_backup(self, node: Node) -> bool:
        return False
