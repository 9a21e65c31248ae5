"""Policies nobody would run, which ask more of the control plane than those of SGLang do.

Rules of this file
- Each is pure and keeps its contract: the laws must hold under it.
"""

from __future__ import annotations

from typing import Any

from ..control.policies import EvictionPolicy, FetchState, PrefetchPolicy, WritePolicy
from ..control.tree import Node
from ..policy.prefetch import complete
from ..policy.write import Writing


class SmallestFirst:
    """A rank that falls when a node is split."""

    name = "smallest_first"
    rises_only = False
    reads_future = False

    def rank(self, node: Node) -> Any:
        return node.pages, node.last_access


class BackedUpFirst:
    """A rank that falls when a node gets a host copy."""

    name = "backed_up_first"
    rises_only = False
    reads_future = False

    def rank(self, node: Node) -> Any:
        return node.host is None, node.last_access


class UnbackedFirst:
    """A rank that falls when a host copy is lost: its write failed, or L2 took it back."""

    name = "unbacked_first"
    rises_only = False
    reads_future = False

    def rank(self, node: Node) -> Any:
        return node.host is not None, node.last_access


class AllEqual:
    """A rank that leaves everything to the order in which leaves were offered."""

    name = "all_equal"
    rises_only = True
    reads_future = False

    def rank(self, node: Node) -> Any:
        return 0


class Both(Writing):
    """Writes through what is hit again, and copies the rest when it is evicted."""

    name = "both"
    copies_on_eviction = True

    def wants_backup(self, node: Node) -> bool:
        return node.hits >= 2


class EverySecondHit(Writing):
    """Wants a backup, then does not want it, then wants it again."""

    name = "every_second_hit"

    def wants_backup(self, node: Node) -> bool:
        return node.hits % 2 == 0


class AllAtOnce(Writing):
    """Writes through, copies ahead, copies on eviction, and gives copies back as soon as they are in use."""

    name = "all_at_once"
    copies_on_eviction = True
    exclusive = True
    unwritten_share = 0.0

    def wants_backup(self, node: Node) -> bool:
        return node.hits >= 2


class ByTheRest:
    """A deadline that comes nearer with every page that arrives."""

    name = "by_the_rest"

    def may_stop(self, fetch: FetchState, now_s: float) -> bool:
        deadline_s = self.deadline_s(fetch)
        return complete(fetch) or (deadline_s is not None and now_s >= deadline_s)

    def deadline_s(self, fetch: FetchState) -> float | None:
        if fetch.started_s is None or not fetch.hit_pages:
            return None
        return fetch.started_s + 0.25 * (fetch.hit_pages - fetch.good_pages)


ODD_EVICTION: list[EvictionPolicy] = [SmallestFirst(), BackedUpFirst(), UnbackedFirst(), AllEqual()]
ODD_WRITE: list[WritePolicy] = [Both(), EverySecondHit(), AllAtOnce()]
ODD_PREFETCH: list[PrefetchPolicy] = [ByTheRest()]
