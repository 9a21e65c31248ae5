"""Figures of a sweep, for notebooks and papers.

Rules of this file
- Every function returns a matplotlib figure of its own; nothing global is touched, nothing is shown or saved.
- What is drawn comes from the result's tables; no figure computes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .errors import SweepError, look_up
from .metrics import METRICS

if TYPE_CHECKING:
    from .api import Sweep

_GOOD, _PLAIN, _BAD = "#1b6ca8", "#9aa5b1", "#c8553d"


def pareto(swept: Sweep, x: str | None, y: str | None) -> Figure:
    """SweepError: unknown metrics, or only one goal and no other named."""
    goals = [goal.partition(":")[0] for goal in swept.asked["pareto"]]
    others = [name for name in goals if name != x]
    names = [x or goals[0], y or next((name for name in others if name != (x or goals[0])), None)]
    if names[1] is None:
        raise SweepError("one goal is no plane", "name the other metric: plot_pareto(y=...)")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    _plane(figure.add_subplot(), swept, *(look_up(METRICS, "metric", str(name)).name for name in names))
    return figure


def effects(swept: Sweep, metric: str | None) -> Figure:
    """SweepError: a metric that the sweep does not show."""
    name = metric or swept.asked["pareto"][0].partition(":")[0]
    look_up(dict.fromkeys(swept.effects["metrics"]), "metric of this sweep", name)
    knobs = swept.effects["knobs"]
    figure = Figure(figsize=(3.2 * max(len(knobs), 1), 3.4), layout="constrained")
    axes = figure.subplots(1, max(len(knobs), 1), sharey=True, squeeze=False)[0]
    for panel, (knob, effect) in zip(axes, knobs.items(), strict=False):
        _values(panel, knob, effect, name)
    axes[0].set_ylabel(_label(name))
    return figure


def overview(swept: Sweep) -> Figure:
    """The front of the first two goals that vary, and what each flag of the best is worth in hit rate and TTFT."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    goals = [goal.partition(":")[0] for goal in swept.asked["pareto"]]
    names = [*goals, "hit_rate", "host_bytes"]
    _plane(left, swept, names[0], next(name for name in names if name != names[0]))
    _worth(right, swept)
    return figure


def _plane(panel: Axes, swept: Sweep, x: str, y: str) -> None:
    settings = swept.settings.sort_values(x)
    across, up = _scaled(x, settings[x]), _scaled(y, settings[y])
    groups: list[tuple[Any, str, str, int]] = [
        (~settings.pareto, _PLAIN, "setting", 22),
        (settings.pareto, _GOOD, "Pareto front", 40),
    ]
    for chosen, colour, label, size in groups:
        panel.scatter(across[chosen], up[chosen], s=size, color=colour, label=label)
    panel.plot(across[settings.pareto], up[settings.pareto], color=_GOOD, linewidth=1, alpha=0.5)
    panel.scatter(
        across[settings.best],
        up[settings.best],
        s=140,
        facecolors="none",
        edgecolors=_BAD,
        linewidths=1.8,
        label="best",
    )
    if swept.asked["slo"]:
        broken = ~settings.qualifies
        panel.scatter(across[broken], up[broken], s=30, marker="x", color=_BAD, linewidths=1, label="breaks the SLO")
    panel.set_xlabel(_label(x))
    panel.set_ylabel(_label(y))
    panel.legend(frameon=False)


def _values(panel: Axes, knob: str, effect: Any, metric: str) -> None:
    words = ["not given" if each["value"] is None else str(each["value"]) for each in effect["values"]]
    figures = [_scaled(metric, each["figures"][metric]) for each in effect["values"]]
    joined = all(type(each["value"]) in (int, float) for each in effect["values"])
    panel.plot(range(len(words)), figures, "o-" if joined else "o", color=_GOOD)
    panel.set_xticks(range(len(words)), words, rotation=30, ha="right")
    panel.set_title(knob, fontsize=10)


def _worth(panel: Axes, swept: Sweep) -> None:
    rows = [row for row in swept.best.get("worth", []) if row["change"].get("hit_rate") is not None]
    panel.barh([row["flag"] for row in rows], [100 * row["change"]["hit_rate"] for row in rows], color=_GOOD)
    panel.invert_yaxis()
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_xlabel("hit rate it buys, percentage points")
    for at, row in enumerate(rows):
        change = row["change"].get("ttft_mean")
        if change is not None:
            words = f"TTFT {1e3 * change:+,.0f} ms"
            panel.annotate(words, (1.02, at), xycoords=("axes fraction", "data"), va="center", fontsize=9)


_UNITS = {"bytes": (1e9, "GB"), "share": (0.01, "%"), "tokens": (1e6, "M tokens")}


def _scaled(metric: str, values: Any) -> Any:
    """In the unit of `_label`; None stays."""
    return None if values is None else values / _UNITS.get(METRICS[metric].unit, (1.0, ""))[0]


def _label(metric: str) -> str:
    unit = METRICS[metric].unit
    words = _UNITS.get(unit, (1.0, unit))[1]
    return f"{metric} ({words})" if words else metric
