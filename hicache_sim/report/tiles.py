"""The key figures of a run: what they are called, where they stand in the summary, what they mean.

Rules of this file
- A figure is defined once, here, in words that a reader of the page sees; `summary.SCHEMA` is the fuller version.
- Runs that lack a figure (no L3, no time) do not show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .load import RunData
from .units import BYTES, COUNT, SECONDS, SHARE, SPAN, Unit


@dataclass(frozen=True)
class KeyFigure:
    """path: keys in the summary. better: +1 more is better, -1 less is better, 0 neither."""

    label: str
    path: tuple[str, ...]
    unit: Unit
    better: int
    help: str

    def of(self, run: RunData) -> float | None:
        value: Any = run.summary
        for key in self.path:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        return value  # type: ignore[no-any-return]


KEY_FIGURES = (
    KeyFigure("Hit rate", ("hit_rates", "total"), SHARE, 1, "share of prompt tokens that were not computed"),
    KeyFigure("from L1", ("hit_rates", "device"), SHARE, 0, "share of prompt tokens matched in device memory"),
    KeyFigure("from L2", ("hit_rates", "host"), SHARE, 0, "share loaded back from host memory"),
    KeyFigure("from L3", ("hit_rates", "storage"), SHARE, 0, "share prefetched from the store for the request itself"),
    KeyFigure(
        "TTFT, median", ("latency", "ttft", "p50_s"), SECONDS, -1, "arrival to first token, half of the requests"
    ),
    KeyFigure("TTFT, p99", ("latency", "ttft", "p99_s"), SECONDS, -1, "arrival to first token, 99 % of the requests"),
    KeyFigure("Time per token", ("latency", "tpot", "p50_s"), SECONDS, -1, "median gap between output tokens"),
    KeyFigure(
        "End to end, p99", ("latency", "e2e", "p99_s"), SECONDS, -1, "arrival to last token, 99 % of the requests"
    ),
    KeyFigure("Requests/s", ("throughput", "requests_per_s"), COUNT, 1, "finished requests over the makespan"),
    KeyFigure("Device busy", ("stalls", "device_busy_share"), SHARE, 0, "share of the makespan with a batch running"),
    KeyFigure(
        "Waited for loads",
        ("stalls", "device_waited_for_loads_s"),
        SECONDS,
        -1,
        "device idle in a batch until L2 delivered",
    ),
    KeyFigure("Written to L2", ("levels", "L2", "written_bytes"), BYTES, -1, "backed up from device to host memory"),
    KeyFigure("Written to L3", ("levels", "L3", "written_bytes"), BYTES, -1, "stored from host memory"),
    KeyFigure("Read from L3", ("levels", "L3", "read_bytes"), BYTES, 0, "fetched into host memory"),
    KeyFigure("Requests", ("requests", "total"), COUNT, 0, "that arrived"),
    KeyFigure("Rejected", ("requests", "rejected"), COUNT, -1, "prompts longer than L1"),
    KeyFigure("Makespan", ("run", "makespan_s"), SPAN, -1, "first arrival to last event"),
)


SAME = 0.002
"""Differences below this share are none worth a colour."""


@dataclass(frozen=True)
class Tile:
    """A key figure of one run, ready to be shown."""

    label: str
    value: str
    help: str


@dataclass(frozen=True)
class Difference:
    """A key figure of several runs: each value, and how it differs from the first run's."""

    label: str
    help: str
    values: tuple[str, ...]
    changes: tuple[str, ...]
    verdicts: tuple[str, ...]
    """better, worse or nothing; in words, for who sees no colours."""


def tiles(run: RunData) -> list[Tile]:
    shown = ((each, each.of(run)) for each in KEY_FIGURES)
    return [Tile(each.label, each.unit(value), each.help) for each, value in shown if value is not None]


def differences(runs: Sequence[RunData]) -> list[Difference]:
    """The first run is what the others are compared with."""
    rows = []
    for each in KEY_FIGURES:
        values = [each.of(run) for run in runs]
        if all(value is None for value in values):
            continue
        pairs = [_change(each, values[0], value) for value in values]
        words = tuple(map(each.unit, values))
        rows.append(Difference(each.label, each.help, words, *(tuple(column) for column in zip(*pairs, strict=True))))
    return rows


def _change(figure: KeyFigure, base: float | None, value: float | None) -> tuple[str, str]:
    """How `value` differs from `base`, and whether that is good."""
    if base is None or value is None or base == value:
        return "", ""
    delta = value - base
    share = figure.unit is SHARE
    if abs(delta) < (0.0005 if share else SAME * abs(base)):
        return "as good as equal", ""
    if share:
        words = f"{100 * delta:+.1f} points"
    elif base and value / base > 3:
        words = f"{COUNT(value / base)} times"
    else:
        words = f"{delta / base:+.1%}" if base else f"+{figure.unit(delta)}"
    return words, {1: "better", 0: "", -1: "worse"}[figure.better * (1 if delta > 0 else -1)]
