"""The figures of a sweep: which settings are worth choosing between, and what each knob does.

Rules of this file
- Everything is drawn from the sweep's tables: settings are means over its conditions, effects are `sweeps.effects`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from ..sweeps.api import Sweep
from ..sweeps.metrics import METRICS
from .inks import BEST, COMPUTED, L1, SERIES, Ink, series_ink
from .kinds import Bars, Dimension, Figure, Parallel, Point, Points
from .units import BYTES, COUNT, SECONDS, SHARE, TOKENS, Unit

UNITS = {"share": SHARE, "s": SECONDS, "bytes": BYTES, "tokens": TOKENS, "/s": COUNT, "": COUNT}
MOST_CHOICES = 12
"""A knob with more numbers than these gets an axis of numbers, not of choices."""


@dataclass(frozen=True)
class SweepData:
    """A sweep, as figures need it."""

    label: str
    sweep: Sweep

    @cached_property
    def settings(self) -> list[dict[str, Any]]:
        """One a setting that ran: choices, `qualifies`, `pareto`, `best`, and means of all metrics."""
        frame = self.sweep.settings
        rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
        return rows

    @property
    def choices(self) -> list[str]:
        """Columns of what was varied to be chosen."""
        return [axis["column"] for axis in self.sweep.asked["vary"] if not axis["condition"]]

    @property
    def goals(self) -> list[str]:
        return [goal.partition(":")[0] for goal in self.sweep.asked["pareto"]]

    @property
    def shown(self) -> list[str]:
        """Metrics to draw: the goals, and the hit rate. One that is the same for all settings tells nothing."""
        names = dict.fromkeys([*self.goals, "hit_rate"])
        return [name for name in names if len({row[name] for row in self.settings}) > 1] or self.goals

    def groups(self) -> list[tuple[str, Ink, list[dict[str, Any]]]]:
        """Settings in groups that exclude each other, those that matter most last."""
        limits = bool(self.sweep.asked["slo"])
        broken = f"breaks {', '.join(self.sweep.asked['slo'])}"
        names: dict[str, tuple[Ink, list[dict[str, Any]]]] = {
            broken: (COMPUTED, []),
            "other settings": (SERIES[5], []),
            "Pareto front": (L1, []),
            "best": (BEST, []),
        }
        for row in self.settings:
            if row["best"]:
                name = "best"
            elif row["pareto"]:
                name = "Pareto front"
            else:
                name = broken if limits and not row["qualifies"] else "other settings"
            names[name][1].append(row)
        return [(name, ink, rows) for name, (ink, rows) in names.items() if rows]


def pareto(data: SweepData) -> list[Points]:
    """Every pair of goals, settings as points."""
    names = [name for name in data.goals if name in data.shown]
    pairs = list(combinations(names, 2)) or [(names[0] if names else data.goals[0], "hit_rate")]
    return [_plane(data, x, y) for x, y in pairs if x != y]


def parallel(data: SweepData) -> Parallel:
    """Choices and metrics side by side."""
    knobs = [_knob(name, [row[name] for row in data.settings]) for name in data.choices]
    metrics = [Dimension(spaced(name), _unit(name)) for name in data.shown]
    names = [*data.choices, *data.shown]
    groups = []
    for name, ink, rows in data.groups():
        lines = [
            tuple(
                row[key] if each.unit else word(row[key]) for key, each in zip(names, [*knobs, *metrics], strict=True)
            )
            for row in rows
            if all(row[key] is not None for key in data.shown)
        ]
        groups.append((name, ink, tuple(lines)))
    what = (
        "A line is a setting, an axis what was chosen or what came of it. Drag along an axis to keep only the settings "
        "that pass there; click the axis to let go."
    )
    return Parallel("parallel", "All settings", what, (*knobs, *metrics), tuple(groups))


def effects(data: SweepData) -> list[Bars]:
    """Mean of each shown metric by value of each knob."""
    return [figure for figure in (_effect(data, name) for name in data.shown) if not figure.empty]


def shares(data: SweepData) -> Bars:
    """How much of the differences each knob explains, by metric."""
    knobs: Mapping[str, Any] = data.sweep.effects["knobs"]
    parts = tuple(
        (spaced(name), series_ink(at), [round(effect["share"].get(name) or 0.0, 3) for effect in knobs.values()])
        for at, name in enumerate(data.shown)
    )
    what = (
        "Share of the variance of each metric, over all points, that a knob alone explains. What is left to 100 % "
        "comes of knobs together."
    )
    title = "What decides"
    return Bars("explained", title, what, "share of variance", tuple(map(spaced, knobs)), parts, SHARE, most=1.0)


def all_of(data: SweepData) -> list[Figure]:
    figures: list[Figure] = [*pareto(data), parallel(data), shares(data), *effects(data)]
    return [figure for figure in figures if not figure.empty]


def _plane(data: SweepData, x: str, y: str) -> Points:
    groups = tuple(
        (name, ink, tuple(Point(row[x], row[y], _words(data, row)) for row in rows if None not in (row[x], row[y])))
        for name, ink, rows in data.groups()
    )
    joined = "Pareto front" if len(data.goals) == 2 else None
    what = f"Each point is a setting: {_meaning(y)} against {_meaning(x)}, means over the sweep's conditions."
    if joined is None:
        what += f" The front is that of all goals together: {', '.join(data.goals)}."
    title = f"{spaced(y)} against {spaced(x)}"
    return Points(f"pareto-{x}-{y}", title, what, spaced(x), spaced(y), _unit(x), _unit(y), groups, joined)


def _effect(data: SweepData, metric: str) -> Bars:
    rows, means = [], []
    for knob, effect in data.sweep.effects["knobs"].items():
        for each in effect["values"]:
            if each["figures"].get(metric) is not None:
                rows.append(f"{spaced(knob)}: {word(each['value'])}")
                means.append(each["figures"][metric])
    what = (
        f"Mean of {_meaning(metric)} over the points with this value; where the grid is whole, over points that differ "
        "in this knob alone."
    )
    part = ((spaced(metric), L1, means),)
    return Bars(
        f"effect-{metric}", f"{spaced(metric)}, by value", what, spaced(metric), tuple(rows), part, _unit(metric)
    )


def _knob(name: str, values: Sequence[Any]) -> Dimension:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if numbers and len(set(values)) > MOST_CHOICES:
        return Dimension(spaced(name), COUNT)
    ordered = sorted(set(values), key=lambda value: (value is None, value if numbers else str(value)))
    return Dimension(spaced(name), choices=tuple(map(word, ordered)))


def _words(data: SweepData, row: Mapping[str, Any]) -> str:
    return ", ".join(f"{spaced(name)} {word(row[name])}" for name in data.choices)


def word(value: Any) -> str:
    """A value as one would type it."""
    if value is None:
        return "not given"
    return f"{value:g}" if isinstance(value, float) else str(value)


def spaced(name: str) -> str:
    """A column's name as words: those break into lines where there is little room. HiCache is what all is about."""
    return name.removeprefix("hicache_").replace("_", " ")


def _unit(metric: str) -> Unit:
    return UNITS[METRICS[metric].unit]


def _meaning(metric: str) -> str:
    return f"{metric} ({METRICS[metric].words})"
