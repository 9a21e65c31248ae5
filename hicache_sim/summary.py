"""The figures of a run, by name: what `summary.json` holds and the tables print.

Rules of this file
- Every figure is defined by the line that computes it; the schema below says it in words.
- Tokens are prompt tokens of admitted requests at their first admission, unless the name says otherwise: recomputation
  after a retraction is no miss.
"""

from __future__ import annotations

import platform
import sys
from array import array
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from hicache_ref.control.counters import Drop, Refusal
from hicache_ref.control.types import OpKind

from .build import Plan
from .metrics import Recorder
from .misses import Miss
from .plane import SimPlane
from .run import Simulation
from .untimed import Totals

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
    "simulation": "makespan, steps, SimPy events, CPU seconds of the replay",
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


def describe(made: Plan) -> dict[str, Any]:
    """The configuration, as it runs."""
    args = {name: value for name, value in vars(made.resolved.args).items() if value is not None}
    return {
        "flags": args,
        "profile": made.config.profile,
        "rules": dict(made.config.rules),
        "model": made.model.name,
        "hardware": made.hardware.name,
        "hardware_numbers": dict(made.config.hardware_numbers),
        "store": made.store.name if made.store else None,
        "store_numbers": dict(made.config.store_numbers),
        "faults": list(made.config.faults),
        "seed": made.config.seed,
        "page_tokens": made.page_tokens,
        "l1_tokens": made.resolved.l1_tokens,
        "l2_tokens": made.resolved.l2_tokens,
        "kv_bytes_per_token_per_rank": made.resolved.token_bytes,
    }


def changes(made: Plan) -> list[dict[str, Any]]:
    return [
        {"kind": c.kind, "flag": c.flag, "before": c.before, "after": c.after, "reason": c.reason}
        for c in made.resolved.changes
    ]


def timed_summary(
    made: Plan, workload: Mapping[str, Any], sim: Simulation, recorder: Recorder, cpu_s: float, events: int
) -> dict[str, Any]:
    """Everything about a timed run. Keys: `SCHEMA`."""
    makespan_s = sim.env.now
    tokens = _tokens(recorder)
    return {
        "hicache": about(),
        "workload": dict(workload),
        "config": describe(made),
        "changes": changes(made),
        "requests": {
            "total": sum(recorder.status),
            "done": recorder.status[0],
            "aborted": recorder.status[1],
            "rejected": recorder.status[2],
            "admitted": recorder.admitted_requests,
            "retractions": sim.engine.scheduler.retracted,
        },
        "tokens": tokens,
        "hit_rates": _hit_rates(tokens),
        "request_hit_rate": _ratio(recorder.summed_hit_rates, recorder.admitted_requests),
        "latency": {
            "ttft": quantiles(recorder.ttft_s),
            "tpot": quantiles(recorder.tpot_s),
            "e2e": quantiles(recorder.e2e_s),
            "mean_queue_s": _ratio(recorder.queued_s, len(recorder.ttft_s)),
        },
        "throughput": {
            "requests_per_s": _ratio(recorder.status[0], makespan_s),
            "input_tokens_per_s": _ratio(tokens["input"], makespan_s),
            "output_tokens_per_s": _ratio(tokens["output"], makespan_s),
        },
        "levels": _levels(made, sim, tokens),
        "links": _links(sim.plane, makespan_s),
        "prefetch": _prefetch(sim, made.page_tokens),
        "writes": _writes(made, sim, tokens),
        "drops": _drops(sim.engine.cache.counters.dropped, made.page_tokens),
        "misses": {miss.words: recorder.misses[miss] for miss in Miss},
        "stalls": {
            "write_back_waits": sim.stalls,
            "write_back_wait_s": sim.stalled_s,
            "device_waited_for_loads_s": sim.plane.device.waited_s,
            "device_slowed_by_copies_s": sim.plane.device.slowed_s,
            "device_busy_s": sim.plane.device.busy_s,
            "device_busy_share": _ratio(sim.plane.device.busy_s, makespan_s),
        },
        "simulation": {
            "makespan_s": makespan_s,
            "steps": sim.engine.steps,
            "events": events,
            "operations": {kind.name.lower(): sim.plane.op_counts[kind] for kind in OpKind},
            "replay_cpu_s": cpu_s,
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


def _hit_rates(tokens: Mapping[str, int]) -> dict[str, float]:
    total = tokens["input"]
    return {
        "device": _ratio(tokens["device_hit"], total),
        "host": _ratio(tokens["loaded"] - tokens["storage_hit"], total),
        "storage": _ratio(tokens["storage_hit"], total),
        "total": _ratio(tokens["device_hit"] + tokens["loaded"], total),
    }


def _levels(made: Plan, sim: Simulation, tokens: Mapping[str, int]) -> dict[str, Any]:
    page, counters, ranks = made.page_tokens, sim.engine.cache.counters, made.resolved.attention_tp_size
    page_bytes = made.rank_page_bytes * ranks
    levels: dict[str, Any] = {
        "L1": {
            "capacity_tokens": made.resolved.l1_tokens,
            "hit_tokens": tokens["device_hit"],
            "evicted_tokens": counters.evicted_l1 * page,
            "written_bytes": counters.loaded * page_bytes,
            "read_bytes": counters.backed_up * page_bytes,
        },
        "L2": {
            "capacity_tokens": made.resolved.l2_tokens,
            "hit_tokens": tokens["loaded"] - tokens["storage_hit"],
            "evicted_tokens": counters.evicted_l2 * page,
            "written_bytes": counters.backed_up * page_bytes,
            "read_bytes": counters.loaded * page_bytes,
        },
    }
    client = sim.plane.client
    if client is not None:
        store = client.store.store
        levels["L3"] = {
            "capacity_tokens": None if store.capacity_pages == float("inf") else int(store.capacity_pages) * page,
            "held_tokens": len(store.held) * page,
            "hit_tokens": tokens["storage_hit"],
            "evicted_tokens": store.evicted * page,
            "refused_tokens": store.refused * page,
            "failed_calls": client.store.failed_calls,
            "written_bytes": client.written_pages * made.node_page_bytes,
            "read_bytes": client.read_pages * page_bytes,
        }
    return levels


def _links(plane: SimPlane, makespan_s: float) -> dict[str, Any]:
    return {
        link.name: {"bytes": link.moved_bytes, "use": _ratio(link.moved_bytes, link.bytes_per_s * makespan_s)}
        for link in plane.machine.links
    }


def _prefetch(sim: Simulation, page: int) -> dict[str, Any]:
    c = sim.engine.cache.counters
    return {
        "issued": c.prefetches_issued,
        "refused": {refusal.value: c.prefetch_refusals[refusal] for refusal in Refusal},
        "useful_tokens": c.prefetched * page,
        "duplicate_tokens": c.prefetched_duplicate * page,
        "late_tokens": c.prefetched_late * page,
        "failed_tokens": c.prefetch_failed * page,
        "wasted_tokens": c.prefetch_wasted * page,
    }


def _writes(made: Plan, sim: Simulation, tokens: Mapping[str, int]) -> dict[str, Any]:
    c, page = sim.engine.cache.counters, made.page_tokens
    new = tokens["prefilled"] + tokens["output"]
    return {
        "backups": c.backups,
        "backed_up_tokens": c.backed_up * page,
        "backups_refused": c.backups_refused,
        "stores": c.stores,
        "stored_tokens": c.stored * page,
        "store_failed_tokens": c.store_failed * page,
        "l2_amplification": _ratio(c.backed_up * page, new),
        "l3_amplification": _ratio(c.stored * page, new),
        "loads_refused_small": c.loads_refused_small,
        "loads_refused_room": c.loads_refused_room,
        "reclaimed_duplicate_tokens": c.reclaimed_duplicates * page,
    }


def _drops(dropped: Mapping[Drop, int], page: int) -> dict[str, int]:
    return {drop.value: pages * page for drop, pages in dropped.items()}


def untimed_summary(made: Plan, workload: Mapping[str, Any], totals: Totals, cpu_s: float) -> dict[str, Any]:
    """A replay without time: hits and what was evicted. `tokens.input` counts whole pages only."""
    tokens = {
        "input": totals.input,
        "device_hit": totals.device_hit,
        "host_hit": totals.host_hit,
        "loaded": totals.loaded,
        "storage_hit": totals.storage_hit,
        "computed": totals.input - totals.device_hit - totals.loaded,
    }
    return {
        "hicache": about(),
        "workload": dict(workload),
        "config": describe(made),
        "changes": changes(made),
        "requests": {
            "total": totals.requests + totals.skipped,
            "admitted": totals.requests - totals.rejected,
            "rejected": totals.rejected,
            "shorter_than_a_page": totals.skipped,
        },
        "tokens": tokens,
        "hit_rates": _hit_rates(tokens),
        "drops": _drops(totals.dropped, made.page_tokens),
        "simulation": {"replay_cpu_s": cpu_s},
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
