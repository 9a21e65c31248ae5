"""What is compared: figures of a summary, by name.

Rules of this file
- A figure says where it stands in a summary, how a difference is written, and which tolerance it has, if any.
- Figures without a tolerance are shown, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scale:
    """How values and differences are written. relative: a difference is a share of the real figure."""

    factor: float
    unit: str
    relative: bool
    digits: int = 2

    def value(self, value: float | None) -> str:
        return "–" if value is None else f"{value * self.factor:,.{self.digits}f}{self.unit}"


POINTS = Scale(100, " %", relative=False)
MILLISECONDS = Scale(1000, " ms", relative=True, digits=1)
MEGABYTES = Scale(1e-6, " MB", relative=True)
TOKENS = Scale(1, " tok", relative=True, digits=0)
COUNT = Scale(1, "", relative=True, digits=0)


@dataclass(frozen=True)
class Figure:
    """path: keys in the summary. tolerance: the name of the flag that limits its difference; None: none does."""

    group: str
    name: str
    path: tuple[str, ...]
    scale: Scale
    tolerance: str | None = None

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """None: this run has no such figure."""
        value: Any = summary
        for key in self.path:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        return None if value is None else float(value)


def _latencies() -> list[Figure]:
    toleranced = {("ttft", "mean_s"): "ttft", ("ttft", "p50_s"): "ttft"}
    toleranced |= {(what, at): what for what in ("tpot", "e2e") for at in ("mean_s", "p50_s")}
    return [
        Figure(name, at.removesuffix("_s"), ("latency", what, at), MILLISECONDS, toleranced.get((what, at)))
        for what, name in (("ttft", "TTFT"), ("tpot", "time per token"), ("e2e", "end to end"))
        for at in ("mean_s", "p50_s", "p90_s", "p99_s")
    ]


FIGURES: tuple[Figure, ...] = (
    Figure("hits", "L1", ("hit_rates", "device"), POINTS, "hits"),
    Figure("hits", "L2", ("hit_rates", "host"), POINTS, "hits"),
    Figure("hits", "L3", ("hit_rates", "storage"), POINTS, "hits"),
    Figure("hits", "all levels", ("hit_rates", "total"), POINTS, "hits"),
    *_latencies(),
    Figure("bytes", "L1 to L2", ("levels", "L2", "written_bytes"), MEGABYTES, "bytes"),
    Figure("bytes", "L2 to L1", ("levels", "L2", "read_bytes"), MEGABYTES, "bytes"),
    Figure("bytes", "L2 to L3", ("levels", "L3", "written_bytes"), MEGABYTES, "bytes"),
    Figure("bytes", "L3 to L2", ("levels", "L3", "read_bytes"), MEGABYTES, "bytes"),
    Figure("prefetch", "issued", ("prefetch", "issued"), COUNT),
    *(
        Figure("prefetch", name, ("prefetch", f"{name}_tokens"), TOKENS)
        for name in ("useful", "duplicate", "late", "failed", "wasted")
    ),
    Figure("device", "busy", ("stalls", "device_busy_s"), MILLISECONDS),
    Figure("device", "makespan", ("run", "makespan_s"), MILLISECONDS),
)
"""In the order in which they are shown."""

TOLERANCES: dict[str, str] = {
    "hits": "points of the hit rate of each level",
    "bytes": "% of the bytes moved between two levels",
    "ttft": "% of mean and median TTFT",
    "tpot": "% of mean and median time per token",
    "e2e": "% of mean and median end-to-end time",
}
"""What may be limited, and in what unit."""
