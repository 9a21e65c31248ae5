"""The curves as a picture: LRU over both levels and the bounds; strategies beside them where any were replayed."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.units import COUNT

if TYPE_CHECKING:
    from .study import Study


def draw(study: Study, path: Path) -> None:
    """Write a PNG or PDF, by the name's ending. ValueError: an ending that matplotlib does not know."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = 2 if study.strategy_rows else 1
    figure, axes = pyplot.subplots(1, panels, figsize=(6.4 * panels, 4.4), squeeze=False, layout="constrained")
    _levels(axes[0][0], study)
    if study.strategy_rows:
        _strategies(axes[0][1], study)
    try:
        figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def _levels(axes: Any, study: Study) -> None:
    levels, bounds = study.levels, study.bounds
    one = levels[levels.l2_ratio == levels.l2_ratio.iloc[0]]
    # Wide and pale: an inclusive L2 no larger than L1 adds nothing, and its curve lies on this one.
    axes.plot(one.l1_tokens, 100 * one.l1_rate, color="0.7", linewidth=5, label="L1 alone, LRU")
    if one.error.any():
        low, high = one.l1_rate - 2 * one.error, one.l1_rate + 2 * one.error
        axes.fill_between(one.l1_tokens, 100 * low, 100 * high, color="black", alpha=0.15, label="± 2 standard errors")
    top = bounds[bounds.l2_ratio == bounds.l2_ratio.iloc[0]]
    axes.plot(top.l1_tokens, 100 * top.best_l1_rate, color="black", linestyle=":", label="L1 alone, offline-best")
    for number, (ratio, rows) in enumerate(levels[levels.l2_ratio > 0].groupby("l2_ratio")):
        colour = f"C{number}"
        axes.plot(rows.l1_tokens, 100 * rows.inclusive_rate, color=colour, label=f"L2 = {ratio:g} L1, inclusive")
        axes.plot(rows.l1_tokens, 100 * rows.exclusive_rate, color=colour, linestyle="--", label="the same, exclusive")
    axes.axhline(100 * study.facts["ceiling_rate"], color="grey", linewidth=0.8)
    _axes(axes, "LRU and bounds")


def _strategies(axes: Any, study: Study) -> None:
    rows = study.strategies
    ratio = rows.l2_ratio.max()
    rows = rows[rows.l2_ratio == ratio]
    colours = {name: f"C{at}" for at, name in enumerate(rows.eviction.unique())}
    dashes = dict(zip(rows.write.unique(), cycle(("-", "--", "-.", (0, (1, 1)))), strict=False))
    for (eviction, write), each in rows.groupby(["eviction", "write"], sort=False):
        style = {"color": colours[eviction], "linestyle": dashes[write]}
        axes.plot(each.l1_tokens, 100 * each.rate, marker=".", label=f"{eviction}, {write}", **style)
    best = rows.drop_duplicates("l1_tokens")
    axes.plot(best.l1_tokens, 100 * best.best_rate, color="black", linestyle=":", label="offline-best")
    _axes(axes, f"Strategies, L2 = {ratio:g} L1")


def _axes(axes: Any, title: str) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda tokens, _: COUNT(tokens))
    axes.set_xlabel("L1, tokens")
    axes.set_ylabel("prompt pages hit, %")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
