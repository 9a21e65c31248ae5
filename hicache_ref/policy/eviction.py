"""Eviction strategies: which leaf goes first, on both levels.

Source: article 3.1 and 3.4; `evict_policy.py` of 0.5.7 (lru to priority) and 0.5.23 (slru). All are pure: a rank is
a function of the node as it is now. Beyond upstream's: what looks at more of a node (`aware`), and what keeps queues
(`queues`).
"""

from __future__ import annotations

from typing import Any

from ..control.policies import EvictionPolicy
from ..control.tree import Node
from .aware import HitsPerToken, SessionAware, TimeToLive
from .queues import S3Fifo, Sieve
from .registry import Registry
from .strategy import Strategy

EVICTION: Registry[EvictionPolicy] = Registry("eviction policy")


@EVICTION.register("lru")
class Lru(Strategy):
    """Least recently used first."""

    name = "lru"

    def rank(self, node: Node) -> Any:
        return node.last_access


@EVICTION.register("lfu")
class Lfu(Strategy):
    """Fewest hits first, then least recently used. Under write_back no hits are counted, and it is lru."""

    name = "lfu"

    def rank(self, node: Node) -> Any:
        return node.hits, node.last_access


@EVICTION.register("fifo")
class Fifo(Strategy):
    """Oldest first; halves that share a creation time (0.5.23), least recently used first."""

    name = "fifo"

    def rank(self, node: Node) -> Any:
        return node.created, node.last_access


@EVICTION.register("mru")
class Mru(Strategy):
    """Most recently used first."""

    name = "mru"
    rises_only = False

    def rank(self, node: Node) -> Any:
        return -node.last_access


@EVICTION.register("filo")
class Filo(Strategy):
    """Newest first."""

    name = "filo"

    def rank(self, node: Node) -> Any:
        return -node.created, node.last_access


@EVICTION.register("priority")
class Priority(Strategy):
    """Lowest priority first, then least recently used."""

    name = "priority"

    def rank(self, node: Node) -> Any:
        return node.priority, node.last_access


@EVICTION.register("slru")
class Slru(Strategy):
    """Segmented: nodes with fewer than `protected_hits` hits first, least recently used first within each segment."""

    name = "slru"

    def __init__(self, protected_hits: int = 2) -> None:
        self.protected_hits = protected_hits

    def rank(self, node: Node) -> Any:
        return node.hits >= self.protected_hits, node.last_access


for _more in (HitsPerToken, TimeToLive, SessionAware, Sieve, S3Fifo):
    EVICTION.register(_more.name)(_more)
