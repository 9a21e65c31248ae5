"""What the simulator adds to a summary: the machine it stood for, and replays without time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hicache_ref.account.summary import Facts, drops, hit_rates, sizes

from .build import Plan
from .untimed import Totals


def facts(made: Plan, workload: Mapping[str, Any]) -> Facts:
    """What is known before a replay of `made`."""
    config = {
        "profile": made.config.profile,
        "rules": dict(made.config.rules),
        "model": made.model.name,
        "hardware": made.hardware.name,
        "hardware_numbers": dict(made.config.hardware_numbers),
        "store": made.store.name if made.store else None,
        "store_numbers": dict(made.config.store_numbers),
        "faults": list(made.config.faults),
        "seed": made.config.seed,
    }
    return Facts(made.resolved, sizes(made.resolved) | config, workload, made.node_page_bytes)


def untimed_summary(known: Facts, totals: Totals, cpu_s: float) -> dict[str, Any]:
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
        **known.head(),
        "requests": {
            "total": totals.requests + totals.skipped,
            "admitted": totals.requests - totals.rejected,
            "rejected": totals.rejected,
            "shorter_than_a_page": totals.skipped,
        },
        "tokens": tokens,
        "hit_rates": hit_rates(tokens),
        "drops": drops(totals.dropped, known.page_tokens),
        "run": {"replay_cpu_s": cpu_s},
    }
