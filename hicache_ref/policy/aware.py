"""Eviction strategies that look at more than recency and hits: size, time to live, place in a conversation.

Rules of this file
- Pure ranks, as in `eviction`. Time is the tree's clock of recency, which goes on by one at every node that a request
  touches or makes: a policy keeps no other.
"""

from __future__ import annotations

from typing import Any

from ..control.tree import Node
from .strategy import Strategy


class HitsPerToken(Strategy):
    """Fewest hits per page first, then least recently used: a long run that is rarely hit pays for many short ones.

    Under write_back no hits are counted, and it is lru. Source: SGLang PR #30300, "hits-per-token (HPT)".
    """

    name = "hpt"

    def rank(self, node: Node) -> Any:
        return node.hits / node.pages, node.last_access


class TimeToLive(Strategy):
    """What has been expired longest goes first; a node that was hit again lives longer, the more so the more often.

    ttl: touches that a node lives after its last use. reused: how many times that for each hit after the first, up to
    `most_hits`. With reused = 0 all live equally long, and it is lru. Hits are not counted under write_back.
    Source: providers' prompt caches keep what is used for a time after each use, longer for what is worth more
    (SGLang RFC #24656 asks for TTL classes; PR #24075 finds that hits without decay keep zombies: here they expire).
    """

    name = "ttl"

    def __init__(self, ttl: int = 300, reused: float = 0.5, most_hits: int = 2) -> None:
        if ttl < 0 or reused < 0 or most_hits < 1:
            raise ValueError(f"ttl: give ttl >= 0, reused >= 0 and most_hits >= 1, not {ttl}, {reused}, {most_hits}")
        self.ttl, self.reused, self.most_hits = ttl, reused, most_hits

    def rank(self, node: Node) -> Any:
        again = min(max(node.hits - 1, 0), self.most_hits)
        return node.last_access + self.ttl * (1 + self.reused * again)


class SessionAware(Strategy):
    """The ends of long conversations stay longer than the ends of short ones, which mostly never go on.

    A prompt that continues another hangs a node below it, so the nodes above a leaf count its turns (and the places
    where others have parted from it). Each turn, up to `most_turns`, is worth `patience` touches of recency.
    Source: after SGLang PR #29173 (prefixes of sessions that are still open go last) and RFC #24656; there the client
    says which sessions are open, here nobody has to.
    """

    name = "session"

    def __init__(self, patience: int = 50, most_turns: int = 8) -> None:
        if patience < 0 or most_turns < 0:
            raise ValueError(f"session: give patience >= 0 and most_turns >= 0, not {patience} and {most_turns}")
        self.patience, self.most_turns = patience, most_turns

    def rank(self, node: Node) -> Any:
        turns, above = 0, node.parent
        while turns < self.most_turns and above is not None and above.parent is not None:
            turns += 1
            above = above.parent
        return node.last_access + self.patience * turns
