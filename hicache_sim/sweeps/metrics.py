"""Figures of a point: what `points.parquet` holds of a replay's summary, and which way each is better.

Rules of this file
- A figure is where it stands in the summary, or a function beside; None where the replay does not have it (no times
  without time). Times are seconds, sizes bytes, rates shares of prompt tokens.
- The names are what `--pareto`, `--slo` and `--best` take.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hicache_ref.account.misses import Miss

from ..api import Result
from .errors import SweepError, look_up

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """One column. `low`: less is better. `path`: its place in the summary."""

    name: str
    path: tuple[str, ...]
    unit: str
    low: bool
    words: str


def _rates() -> list[Metric]:
    return [
        Metric("hit_rate", ("hit_rates", "total"), "share", False, "prompt tokens not computed"),
        *(
            Metric(f"hit_rate_{level}", ("hit_rates", level), "share", False, f"prompt tokens hit on the {level}")
            for level in ("device", "host", "storage")
        ),
        Metric("request_hit_rate", ("request_hit_rate",), "share", False, "mean hit rate of requests"),
    ]


def _times() -> list[Metric]:
    return [
        *(
            Metric(f"{what}_{which}", ("latency", what, f"{which}_s"), "s", True, f"{what.upper()}, {which}")
            for what in ("ttft", "tpot", "e2e")
            for which in ("mean", "p50", "p90", "p99")
        ),
        Metric("queue_mean", ("latency", "mean_queue_s"), "s", True, "wait for admission, mean"),
        *(
            Metric(f"{what}_per_s", ("throughput", f"{what}_per_s"), "/s", False, f"{what.replace('_', ' ')} a second")
            for what in ("requests", "input_tokens", "output_tokens")
        ),
        Metric("makespan", ("run", "makespan_s"), "s", True, "first arrival to last answer"),
    ]


def _costs() -> list[Metric]:
    def stall(name: str, words: str) -> Metric:
        return Metric(name.removesuffix("_s"), ("stalls", name), "s", True, words)

    def moved(name: str, level: str, way: str, words: str) -> Metric:
        return Metric(name, ("levels", level, f"{way}_bytes"), "bytes", True, words)

    return [
        Metric("host_bytes", ("own", "host_bytes"), "bytes", True, "L2 of all ranks"),
        Metric("device_bytes", ("own", "device_bytes"), "bytes", True, "L1 of all ranks"),
        Metric("l1_tokens", ("config", "l1_tokens"), "tokens", True, "L1"),
        Metric("l2_tokens", ("config", "l2_tokens"), "tokens", True, "L2"),
        moved("backed_up_bytes", "L2", "written", "written to L2"),
        moved("loaded_bytes", "L2", "read", "loaded from L2"),
        Metric("store_written_bytes", ("own", "store_written_bytes"), "bytes", True, "written to L3"),
        Metric("store_read_bytes", ("own", "store_read_bytes"), "bytes", True, "read from L3"),
        Metric("store_bytes", ("own", "store_bytes"), "bytes", True, "written to and read from L3"),
        Metric("store_held_bytes", ("own", "store_held_bytes"), "bytes", True, "held by L3 at the end"),
        stall("write_back_wait_s", "scheduler blocked by write_back"),
        stall("device_waited_for_loads_s", "device waited for loads"),
        stall("device_slowed_by_copies_s", "device slowed by copy kernels"),
        Metric("device_busy_share", ("stalls", "device_busy_share"), "share", False, "device busy"),
        Metric("retractions", ("requests", "retractions"), "", True, "requests thrown back to the queue"),
        Metric("requests_done", ("requests", "done"), "", False, "requests served"),
        Metric("requests_aborted", ("requests", "aborted"), "", True, "requests aborted"),
        Metric("requests_rejected", ("requests", "rejected"), "", True, "requests rejected"),
        Metric("computed_tokens", ("tokens", "computed"), "tokens", True, "prompt tokens computed"),
    ]


def _misses() -> list[Metric]:
    return [
        Metric(f"miss_{miss.name.lower()}", ("misses", miss.words), "tokens", True, f"missed: {miss.words}")
        for miss in Miss
    ]


METRICS: dict[str, Metric] = {each.name: each for each in (*_rates(), *_times(), *_costs(), *_misses())}

UNTIMED = {name for name in METRICS if name.startswith("hit_rate")} | {
    *("host_bytes", "device_bytes", "l1_tokens", "l2_tokens", "computed_tokens", "requests_rejected"),
}
"""What a replay without time has."""


def figures(result: Result) -> dict[str, Any]:
    """All of METRICS for one replay, and the CPU seconds it took."""
    whole = {**result.summary, "own": _own(result)}
    found = {metric.name: _at(whole, metric.path) for metric in METRICS.values()}
    return {**found, "replay_cpu_s": result.summary["run"]["replay_cpu_s"]}


def _at(whole: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        whole = whole.get(name)
        if whole is None:
            return None
    return whole


def _own(result: Result) -> dict[str, float | None]:
    """Sums that the summary does not have. Without L3 nothing travels to it; without time nobody counted."""
    resolved, levels = result.plan.resolved, result.summary.get("levels")
    token_bytes = resolved.token_bytes * resolved.attention_tp_size * resolved.attention_groups
    sizes: dict[str, float | None] = {
        "host_bytes": resolved.l2_tokens * token_bytes,
        "device_bytes": resolved.l1_tokens * token_bytes,
    }
    if levels is not None:
        store = levels.get("L3", {"written_bytes": 0, "read_bytes": 0, "held_tokens": 0})
        stored_token_bytes = result.plan.node_page_bytes / result.plan.page_tokens
        sizes["store_written_bytes"] = store["written_bytes"]
        sizes["store_read_bytes"] = store["read_bytes"]
        sizes["store_bytes"] = store["written_bytes"] + store["read_bytes"]
        sizes["store_held_bytes"] = store["held_tokens"] * stored_token_bytes
    return sizes


# --- Goals and limits -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """A metric to make small, or large."""

    metric: Metric
    low: bool

    def cost(self, figures: Figures) -> float | None:
        """Less is better; None: the figure is not there."""
        value = figures.get(self.metric.name)
        return None if value is None else (value if self.low else -value)

    def __str__(self) -> str:
        return f"{self.metric.name}:{'min' if self.low else 'max'}"


_WAYS = {"min": True, "max": False}


def read_goal(text: str) -> Goal:
    """`METRIC`, better as METRICS says, or `METRIC:min`, `METRIC:max`. SweepError: unknown."""
    name, colon, way = text.strip().partition(":")
    metric = look_up(METRICS, "metric", name.replace("-", "_"))
    return Goal(metric, look_up(_WAYS, "direction", way) if colon else metric.low)


_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_LIMIT = re.compile(r"\s*([\w-]+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*")


@dataclass(frozen=True)
class Limit:
    """What an operator has promised: `ttft_p99<2`."""

    metric: Metric
    relation: str
    bound: float

    def holds(self, figures: Figures) -> bool:
        """A figure that is not there keeps no promise."""
        value = figures.get(self.metric.name)
        return value is not None and _RELATIONS[self.relation](value, self.bound)

    def excess(self, figures: Figures) -> float:
        """How far beyond the bound; not above 0: it holds."""
        value: float | None = figures.get(self.metric.name)
        if value is None:
            return float("inf")
        return value - self.bound if "<" in self.relation else self.bound - value

    def __str__(self) -> str:
        return f"{self.metric.name}{self.relation}{self.bound:g}"


def read_limit(text: str) -> Limit:
    """SweepError: not METRIC<NUMBER, or an unknown metric."""
    parts = _LIMIT.fullmatch(text)
    try:
        if parts is None:
            raise ValueError
        bound = float(parts[3])
    except ValueError:
        raise SweepError(f"--slo {text}: not a limit", "write METRIC<NUMBER, seconds or bytes: ttft_p99<2") from None
    return Limit(look_up(METRICS, "metric", parts[1].replace("-", "_")), parts[2], bound)
