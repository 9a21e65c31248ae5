"""Where two versions of SGLang's HiCache decide differently: one knob each, and the profiles that set them.

Rules of this file
- A field's default is what v0.5.7 does, the code the article dissects. `v0.5.23` and `article` name only what they
  change, so a diff between profiles is the list of upstream's changes, and each can be tried alone.
- Values, never behaviour: the code that reads a knob stands where the decision is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Rules:
    """Semantics of one upstream version. Source of each row: spec of the two wheels, `mem_cache/` and `managers/`."""

    # Eviction
    evict_shortfall_only: bool = False
    """Room for a load, a backup or a batch: evict what is missing (0.5.23), or the whole amount (0.5.7)."""
    reclaim_duplicates: bool = False
    """write_back under L2 pressure first frees host copies of nodes that are on both levels (0.5.23)."""

    write_back_waits_per_victim: bool = False
    """write_back's eviction waits after each victim (0.5.23); else once, after all."""

    # Writing
    backup_ancestors: bool = False
    """A backup first writes unbacked ancestors, so that backed-up nodes form a prefix (0.5.23)."""
    refill_counts_hit: bool = False
    """A node that gets device slots again by an insert counts a hit (0.5.23)."""
    count_chunked_hits: bool = False
    """Inserts of a chunked prefill count hits, once per request and node (0.5.23); 0.5.7 skips them."""
    split_publishes_upper: bool = False
    """A write in flight covers both halves of a split, and both go on to L3 (0.5.23); else only the lower."""
    split_raises_lower: bool = True
    """An insert that splits a node raises the priority of both halves (0.5.7); else of the upper one."""
    split_refreshes_lower: bool = True
    """A prompt that ends inside a node refreshes what lies behind its end too (both versions: the node is touched
    before it is split); else that keeps its recency, as LRU over pages has it."""
    split_keeps_creation: bool = False
    """The upper half of a split keeps the creation time (0.5.23); else it is new."""
    write_back_stores: bool = False
    """Finished write_back copies go on to L3 (the article's word, and 0.5.23); v0.5.7 forgets them."""

    # Loading
    load_locks_host: bool = False
    """Host copies stay locked until the load is acknowledged (0.5.23)."""

    # Prefetch
    prefetch_query_first: bool = False
    """L2 is allocated after the store has answered, at the size of the hit (0.5.23); else before, at full size."""
    prefetch_limit_of_l2: float | None = None
    """Tokens in flight are limited to this share of L2 (0.5.23: 0.5); None: 0.8 of what L2 has beyond L1."""
    prefetch_clock_from_poll: bool = False
    """The timeout runs from the first blocked admission poll (0.5.23); else from the issue."""
    prefetch_refills_device_only: bool = False
    """Fetched pages of device-only nodes become their host copies, and nothing is hung below a node without one
    (0.5.23, not under write_back); else they are duplicates, and are freed."""
    prefetch_root_drops_extra_key: bool = True
    """A prefetch anchored at the root inserts into the default namespace, whatever the request's (v0.5.7's bug)."""
    prefetch_retry_attempts: int = 0
    """How often a prefetch refused for load, or a miss, is tried again while the request waits (0.5.23: 8)."""
    prefetch_retry_passes: int = 8
    """Scheduler passes between two such tries (0.5.23)."""

    # Sizes and scheduling
    l2_must_exceed_l1: bool = True
    """v0.5.7 asserts it, 0.5.23 warns."""
    caches_output: bool = True
    """A finished request's output joins the tree. False reproduces v0.5.7's `cache_finished_req`, which cuts the key
    to `fill_ids`, the prompt, and so forgets what was decoded."""


PROFILES: dict[str, Rules] = {
    "v0.5.7": Rules(),
    "article": Rules(write_back_stores=True),
    "v0.5.23": Rules(
        evict_shortfall_only=True,
        reclaim_duplicates=True,
        write_back_waits_per_victim=True,
        backup_ancestors=True,
        refill_counts_hit=True,
        count_chunked_hits=True,
        split_publishes_upper=True,
        split_raises_lower=False,
        split_keeps_creation=True,
        write_back_stores=True,
        load_locks_host=True,
        prefetch_query_first=True,
        prefetch_limit_of_l2=0.5,
        prefetch_clock_from_poll=True,
        prefetch_refills_device_only=True,
        prefetch_root_drops_extra_key=False,
        prefetch_retry_attempts=8,
        l2_must_exceed_l1=False,
    ),
}


def rules_for(profile: str, **changes: object) -> Rules:
    """Rules of a profile, single knobs changed. KeyError-free: an unknown name lists the known ones."""
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}: known are {', '.join(PROFILES)}")
    return replace(PROFILES[profile], **changes)  # type: ignore[arg-type]
