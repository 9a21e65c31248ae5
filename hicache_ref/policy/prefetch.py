"""Prefetch policies: how long a request waits for pages from L3.

Source: article 3.6; `hiradix_cache.py` of 0.5.7, `can_terminate_prefetch`.
"""

from __future__ import annotations

from ..control.policies import FetchLimits, FetchState, PrefetchPolicy
from .learned import LearnedLimits
from .registry import Registry

PREFETCH: Registry[PrefetchPolicy] = Registry("prefetch policy")


def complete(fetch: FetchState) -> bool:
    """Everything the store has is here. While it has not answered, nothing is complete, not even nothing of nothing."""
    return bool(fetch.hit_pages) and fetch.good_pages == fetch.hit_pages


@PREFETCH.register("best_effort")
class BestEffort:
    """Go on at the first chance with what has arrived."""

    name = "best_effort"

    def may_stop(self, fetch: FetchState, now_s: float) -> bool:
        return True

    def deadline_s(self, fetch: FetchState) -> float | None:
        return None


@PREFETCH.register("wait_complete")
class WaitComplete:
    """Wait until everything the store has is here."""

    name = "wait_complete"

    def may_stop(self, fetch: FetchState, now_s: float) -> bool:
        return complete(fetch)

    def deadline_s(self, fetch: FetchState) -> float | None:
        return None


@PREFETCH.register("timeout")
class Timeout:
    """Wait, but no longer than `base_s` and `per_page_s` for each page: of the hit once it is known (0.5.7), or of the
    span asked for (0.5.23, `of_request`)."""

    name = "timeout"

    def __init__(self, base_s: float = 1.0, per_page_s: float = 0.25 / 1024, of_request: bool = False) -> None:
        self.base_s = base_s
        self.per_page_s = per_page_s
        self.of_request = of_request

    def may_stop(self, fetch: FetchState, now_s: float) -> bool:
        deadline_s = self.deadline_s(fetch)
        return complete(fetch) or (deadline_s is not None and now_s >= deadline_s)

    def deadline_s(self, fetch: FetchState) -> float | None:
        if fetch.started_s is None:
            return None
        pages = fetch.pages if self.of_request else fetch.hit_pages or 0
        return fetch.started_s + self.base_s + pages * self.per_page_s


@PREFETCH.register("learned")
class Learned(Timeout):
    """Waits like `timeout`, and learns which spans to ask for at all: see `learned`.

    worth_pages: pages of a span that must arrive, on the mean. memory: weight of the newest span in that mean. tries:
    of the spans not worth it, one in so many is asked for all the same.
    """

    name = "learned"

    def __init__(
        self,
        base_s: float = 1.0,
        per_page_s: float = 0.25 / 1024,
        of_request: bool = False,
        worth_pages: float = 1.0,
        memory: float = 0.1,
        tries: int = 16,
    ) -> None:
        super().__init__(base_s, per_page_s, of_request)
        self.worth_pages, self.memory, self.tries = worth_pages, memory, tries

    def limits(self, given: FetchLimits) -> FetchLimits:
        """New limits, for one cache; they learn."""
        return LearnedLimits(given, self.worth_pages, self.memory, self.tries)
