"""Scheduling policies: in which order waiting requests are considered.

Source: `managers/schedule_policy.py` of 0.5.7.
"""

from __future__ import annotations

from ..control.active import Active
from ..control.cache import HiCache
from ..control.keys import ATOM_BYTES
from ..control.scheduler import SchedulePolicy
from ..control.tree import RadixTree
from .registry import Registry

SCHEDULE: Registry[SchedulePolicy] = Registry("schedule policy")


@SCHEDULE.register("fcfs")
class Fcfs:
    """First come, first served."""

    name = "fcfs"
    reorders = False

    def order(self, waiting: list[Active], cache: HiCache) -> None:
        pass


@SCHEDULE.register("lof")
class LongestOutputFirst:
    """Most tokens to generate first."""

    name = "lof"
    reorders = True

    def order(self, waiting: list[Active], cache: HiCache) -> None:
        waiting.sort(key=lambda request: -request.max_new_tokens)


@SCHEDULE.register("lpm")
class LongestPrefixMatch:
    """Longest prefix on the device first.

    Of waiting requests that share an uncached prefix only one goes first: the others would compute it again. With
    more than `longest_queue` waiting, first come first served: matching them all would cost too much.
    """

    name = "lpm"
    reorders = True

    def __init__(self, longest_queue: int = 128, check_tokens: int = 32, share_tokens: int = 32) -> None:
        self.longest_queue = longest_queue
        self.check_tokens = check_tokens
        self.share_tokens = share_tokens

    def order(self, waiting: list[Active], cache: HiCache) -> None:
        if len(waiting) > self.longest_queue:
            return
        page = cache.shape.page_tokens
        queued = RadixTree()
        rank: dict[int, float] = {}
        for request in waiting:
            key = request.key[: request.fill_tokens // page * ATOM_BYTES]
            hit = cache.match(request.namespace, key).device_pages
            rank[request.id] = -hit
            if hit * page <= self.check_tokens:
                match = queued.walk(request.namespace, key)
                known = match.device_pages + match.host_pages
                if known * page >= self.share_tokens:
                    rank[request.id] = float("inf")
                elif len(key) > known * ATOM_BYTES:
                    queued.add(match.node, request.namespace, key[known * ATOM_BYTES :], 0)
        waiting.sort(key=lambda request: rank[request.id])
