"""From a resolved configuration to a control plane: cache, scheduler, engine, and the requests it is given.

Both worlds are built here up to the plane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from workloads.request import Request

from .config.records import Resolved
from .config.server_args import ConfigError
from .control.active import Active
from .control.budget import SchedulerLimits
from .control.cache import CacheShape, HiCache
from .control.counters import Drop
from .control.engine import Engine
from .control.keys import AtomKeys, Keyspace
from .control.rules import Rules, rules_for
from .control.scheduler import Scheduler
from .control.storage import PrefetchLimits, StorageSide
from .policy.eviction import EVICTION
from .policy.prefetch import PREFETCH
from .policy.schedule import SCHEDULE
from .policy.write import WRITE

MOST_PAGES = 10_368_889
"""Of a request. Odd, and no sum of few powers of two: hash tables tell numbers apart by their last digits."""


def changed_rules(profile: str, changes: Mapping[str, Any]) -> Rules:
    """A profile's rules, single knobs changed. ConfigError for an unknown one, ValueError for an unknown profile."""
    rules = rules_for(profile)
    known = [each.name for each in fields(rules)]
    for name in changes:
        if name not in known:
            raise ConfigError(f"--rule {name}: unknown; known are {', '.join(known)}")
    return replace(rules, **changes)


def make_cache(
    resolved: Resolved, facts: list[tuple[Drop | None, bytes]] | None = None, keys: Keyspace | None = None
) -> HiCache:
    """The cache, with its L3 side if there is one. `keys`: how pages are named in L3; by their atoms unless given."""
    args = resolved.args
    write = (args.hicache_write_policy or "write_through") if resolved.l2_pages else "none"
    cache = HiCache(
        CacheShape(resolved.page_size, resolved.l1_pages, resolved.l2_pages),
        EVICTION.make(args.radix_eviction_policy or "lru", **resolved.eviction_options),
        WRITE.make(write, **_write_options(write, args.hicache_write_back_threshold)),
        resolved.rules,
        keys or AtomKeys(),
        facts,
    )
    storage = resolved.storage
    if storage is not None:
        name = args.hicache_storage_prefetch_policy or "best_effort"
        page_s = resolved.page_size / 1024 * storage.prefetch_timeout_per_ki_token
        of_request = resolved.rules.prefetch_clock_from_poll
        waits = {"base_s": storage.prefetch_timeout_base, "per_page_s": page_s, "of_request": of_request}
        parameters: dict[str, Mapping[str, object]] = {"timeout": waits, "learned": waits}
        policy = PREFETCH.make(name, **parameters.get(name, {}))
        threshold = max(storage.prefetch_threshold, resolved.page_size)
        StorageSide(cache, policy, PrefetchLimits(threshold, resolved.prefetch_limit_tokens))
    return cache


def _write_options(name: str, threshold: float | None) -> Mapping[str, object]:
    given = {} if threshold is None else {"threshold": threshold}
    return {"write_back_watermark": given}.get(name, {})


def make_engine(resolved: Resolved, cache: HiCache) -> Engine:
    """Scheduler and engine over `cache`."""
    args = resolved.args
    limits = SchedulerLimits(
        max_running_requests=resolved.max_running_requests,
        max_prefill_tokens=args.max_prefill_tokens or 16384,
        chunked_prefill_tokens=resolved.chunk_tokens if resolved.chunk_tokens > 0 else None,
        context_tokens=args.context_length,
        schedule_conservativeness=resolved.conservativeness,
        key_lag_tokens=int(resolved.bigram_keys),
    )
    return Engine(cache, Scheduler(cache, cache.storage, limits, SCHEDULE.make(args.schedule_policy or "fcfs")))


def activator(page_tokens: int) -> Callable[[Request], Active]:
    """Turns a workload's request into the engine's: names every page that it will compute.

    Its atoms are page ids. Pages that the workload does not name (answers, unnamed tails) get atoms of their own,
    negative, so that nobody else can hit them.
    """

    def activate(request: Request) -> Active:
        pages = (request.input_tokens + request.output_tokens) // page_tokens
        named = min(request.content_tokens // page_tokens, pages)
        key = request.content.page_ids(page_tokens, named)
        if named < pages:
            first = -1 - request.id * MOST_PAGES
            key += np.arange(first, first - (pages - named), -1, dtype=np.int64).tobytes()
        return Active(
            request.id,
            key,
            request.input_tokens,
            request.output_tokens,
            request.arrival_s,
            request.extra_key,
            request.priority,
        )

    return activate
