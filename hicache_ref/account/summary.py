"""The figures of a run, by name: what `summary.json` holds and the tables print.

Rules of this file
- Every figure is defined by the line that computes it; the schema below says it in words.
- Tokens are prompt tokens of admitted requests at their first admission, unless the name says otherwise: recomputation
  after a retraction is no miss.
"""

from __future__ import annotations

import math
import platform
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from workloads import Schedule, Workload

from ..config.records import Change, Resolved
from ..control.counters import Drop, Refusal
from ..control.types import OpKind
from ..drive.loop import Loop
from .meters import LinkMeter, Meters
from .metrics import Recorder
from .misses import Miss

SCHEMA: dict[str, str] = {
    "hicache": "version of this package, Python and numpy versions, machine",
    "workload": "what was replayed: name, format, verdict on its blocks, schedule",
    "config": "flags in effect, profile, knobs changed, model, hardware, store, faults, seed",
    "changes": "what resolving the flags rewrote or warned of, with reasons",
    "requests": "how many arrived, by how they ended, and how many were admitted",
    "tokens": "input: prompt tokens of admitted requests. device_hit: of those, matched on L1. host_hit: matched on L2 "
    "beyond L1. loaded: of those, loaded back. storage_hit: of those, prefetched from L3 for this very request. "
    "computed: input - device_hit - loaded. output: generated. prefilled: computed, again after retractions included",
    "hit_rates": "shares of tokens.input: device, host (loaded and not from storage), storage, total",
    "request_hit_rate": "mean over admitted requests of (device_hit + loaded) / input",
    "latency": "ttft, tpot, e2e in seconds: mean, p50, p90, p99, and over how many requests",
    "throughput": "requests, prompt and output tokens per second of makespan",
    "levels": "per level: capacity, hits, tokens evicted, bytes moved in and out",
    "links": "bytes carried, and share of the makespan at full rate",
    "prefetch": "issued; refused, by reason; pages useful, duplicate, late, failed, wasted",
    "writes": "backups and stores; write amplification: bytes written to L2 and L3 over bytes computed",
    "drops": "tokens that left the tree, by reason",
    "misses": "tokens computed, by reason; they add up to tokens.computed",
    "stalls": "write_back's waits; time the device waited for loads; time lost to copy kernels",
    "run": "makespan, steps, operations by kind; events of the simulation, CPU seconds of the replay",
}
"""Top-level keys of `summary.json`."""


def quantiles(values: array[float]) -> dict[str, float | int | None]:
    """Mean and quantiles in seconds (linear interpolation); null where there is nothing to average."""
    if not len(values):
        return {"count": 0, "mean_s": None, "p50_s": None, "p90_s": None, "p99_s": None}
    data = np.asarray(values)
    p50, p90, p99 = (float(q) for q in np.percentile(data, (50, 90, 99)))
    return {"count": len(values), "mean_s": float(data.mean()), "p50_s": p50, "p90_s": p90, "p99_s": p99}


def about() -> dict[str, str]:
    try:
        own = version("hicache")
    except PackageNotFoundError:  # run from a checkout that was never installed
        own = "unknown"
    return {
        "version": own,
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


@dataclass(frozen=True)
class Facts:
    """What a summary says about a run before it ran."""

    resolved: Resolved
    config: Mapping[str, Any]
    """The configuration as it runs: model, machine, store, seed, beside `sizes(resolved)`."""
    workload: Mapping[str, Any]
    stored_page_bytes: int
    """A page in the store: of all ranks, or once where they hold the same."""

    @property
    def page_tokens(self) -> int:
        return self.resolved.page_size

    @property
    def page_bytes(self) -> int:
        """A page on all ranks."""
        return self.resolved.token_bytes * self.resolved.page_size * self.resolved.attention_tp_size

    def head(self) -> dict[str, Any]:
        return {
            "hicache": about(),
            "workload": dict(self.workload),
            "config": dict(self.config),
            "changes": changes(self.resolved.changes),
        }


def describe_workload(
    workload: Workload, schedule: Schedule | None, limit: int | None, sequential: bool
) -> dict[str, Any]:
    return {
        "name": workload.name,
        "format": workload.format,
        "verdict": workload.verdict,
        "block_tokens": workload.block_tokens,
        "schedule": repr(schedule or workload.schedule),
        "limit": limit,
        "sequential": sequential,
    }


def sizes(resolved: Resolved) -> dict[str, Any]:
    """Flags and sizes in effect: the part of `config` that both worlds share."""
    return {
        "flags": {name: value for name, value in vars(resolved.args).items() if value is not None},
        "page_tokens": resolved.page_size,
        "l1_tokens": resolved.l1_tokens,
        "l2_tokens": resolved.l2_tokens,
        "kv_bytes_per_token_per_rank": resolved.token_bytes,
        "attention_ranks": resolved.attention_tp_size,
    }


def changes(made: Sequence[Change]) -> list[dict[str, Any]]:
    return [{"kind": c.kind, "flag": c.flag, "before": c.before, "after": c.after, "reason": c.reason} for c in made]


def timed_summary(
    facts: Facts, loop: Loop, recorder: Recorder, meters: Meters, makespan_s: float, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything about a timed run. Keys: `SCHEMA`. `more`: what else to say under `run`."""
    tokens = _tokens(recorder)
    return {
        **facts.head(),
        "requests": {
            "total": sum(recorder.status),
            "done": recorder.status[0],
            "aborted": recorder.status[1],
            "rejected": recorder.status[2],
            "admitted": recorder.admitted_requests,
            "retractions": loop.engine.scheduler.retracted,
        },
        "tokens": tokens,
        "hit_rates": hit_rates(tokens),
        "request_hit_rate": ratio(recorder.summed_hit_rates, recorder.admitted_requests),
        "latency": {
            "ttft": quantiles(recorder.ttft_s),
            "tpot": quantiles(recorder.tpot_s),
            "e2e": quantiles(recorder.e2e_s),
            "mean_queue_s": ratio(recorder.queued_s, len(recorder.ttft_s)),
        },
        "throughput": {
            "requests_per_s": ratio(recorder.status[0], makespan_s),
            "input_tokens_per_s": ratio(tokens["input"], makespan_s),
            "output_tokens_per_s": ratio(tokens["output"], makespan_s),
        },
        "levels": _levels(facts, loop, meters, tokens),
        "links": _links(meters.links, makespan_s),
        "prefetch": _prefetch(loop, facts.page_tokens),
        "writes": _writes(facts, loop, tokens),
        "drops": drops(loop.engine.cache.counters.dropped, facts.page_tokens),
        "misses": {miss.words: recorder.misses[miss] for miss in Miss},
        "stalls": {
            "write_back_waits": loop.stalls,
            "write_back_wait_s": loop.stalled_s,
            "device_waited_for_loads_s": meters.waited_s,
            "device_slowed_by_copies_s": meters.slowed_s,
            "device_busy_s": meters.busy_s,
            "device_busy_share": ratio(meters.busy_s, makespan_s),
        },
        "run": {
            "makespan_s": makespan_s,
            "steps": loop.engine.steps,
            "operations": {kind.name.lower(): meters.op_counts[kind] for kind in OpKind},
            **more,
        },
    }


def _tokens(recorder: Recorder) -> dict[str, int]:
    return {
        "input": recorder.prompt_tokens,
        "device_hit": recorder.device_hit_tokens,
        "host_hit": recorder.host_hit_tokens,
        "loaded": recorder.loaded_tokens,
        "storage_hit": recorder.storage_hit_tokens,
        "computed": recorder.prompt_tokens - recorder.device_hit_tokens - recorder.loaded_tokens,
        "output": recorder.output_tokens,
        "prefilled": recorder.recomputed_tokens,
    }


def hit_rates(tokens: Mapping[str, int]) -> dict[str, float]:
    total = tokens["input"]
    return {
        "device": ratio(tokens["device_hit"], total),
        "host": ratio(tokens["loaded"] - tokens["storage_hit"], total),
        "storage": ratio(tokens["storage_hit"], total),
        "total": ratio(tokens["device_hit"] + tokens["loaded"], total),
    }


def _levels(facts: Facts, loop: Loop, meters: Meters, tokens: Mapping[str, int]) -> dict[str, Any]:
    page, page_bytes, counters = facts.page_tokens, facts.page_bytes, loop.engine.cache.counters
    levels: dict[str, Any] = {
        "L1": {
            "capacity_tokens": facts.resolved.l1_tokens,
            "hit_tokens": tokens["device_hit"],
            "evicted_tokens": counters.evicted_l1 * page,
            "written_bytes": counters.loaded * page_bytes,
            "read_bytes": counters.backed_up * page_bytes,
        },
        "L2": {
            "capacity_tokens": facts.resolved.l2_tokens,
            "hit_tokens": tokens["loaded"] - tokens["storage_hit"],
            "evicted_tokens": counters.evicted_l2 * page,
            "written_bytes": counters.backed_up * page_bytes,
            "read_bytes": counters.loaded * page_bytes,
        },
    }
    store = meters.store
    if store is not None:
        levels["L3"] = {
            "capacity_tokens": None if store.capacity_pages == float("inf") else int(store.capacity_pages) * page,
            "held_tokens": store.held_pages * page,
            "hit_tokens": tokens["storage_hit"],
            "evicted_tokens": store.evicted_pages * page,
            "refused_tokens": store.refused_pages * page,
            "failed_calls": store.failed_calls,
            "written_bytes": store.written_pages * facts.stored_page_bytes,
            "read_bytes": store.read_pages * page_bytes,
        }
    return levels


def _links(links: Sequence[LinkMeter], makespan_s: float) -> dict[str, Any]:
    return {link.name: {"bytes": link.moved_bytes, "use": _use(link, makespan_s)} for link in links}


def _use(link: LinkMeter, makespan_s: float) -> float | None:
    """Share of what it could have carried; None where nobody knows how much that is."""
    return None if math.isinf(link.bytes_per_s) else ratio(link.moved_bytes, link.bytes_per_s * makespan_s)


def _prefetch(loop: Loop, page: int) -> dict[str, Any]:
    c = loop.engine.cache.counters
    return {
        "issued": c.prefetches_issued,
        "refused": {refusal.value: c.prefetch_refusals[refusal] for refusal in Refusal},
        "useful_tokens": c.prefetched * page,
        "duplicate_tokens": c.prefetched_duplicate * page,
        "late_tokens": c.prefetched_late * page,
        "failed_tokens": c.prefetch_failed * page,
        "wasted_tokens": c.prefetch_wasted * page,
    }


def _writes(facts: Facts, loop: Loop, tokens: Mapping[str, int]) -> dict[str, Any]:
    c, page = loop.engine.cache.counters, facts.page_tokens
    new = tokens["prefilled"] + tokens["output"]
    return {
        "backups": c.backups,
        "backed_up_tokens": c.backed_up * page,
        "backups_refused": c.backups_refused,
        "stores": c.stores,
        "stored_tokens": c.stored * page,
        "store_failed_tokens": c.store_failed * page,
        "l2_amplification": ratio(c.backed_up * page, new),
        "l3_amplification": ratio(c.stored * page, new),
        "loads_refused_small": c.loads_refused_small,
        "loads_refused_room": c.loads_refused_room,
        "reclaimed_duplicate_tokens": c.reclaimed_duplicates * page,
    }


def drops(dropped: Mapping[Drop, int], page: int) -> dict[str, int]:
    return {drop.value: pages * page for drop, pages in dropped.items()}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
