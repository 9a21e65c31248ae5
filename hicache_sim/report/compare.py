"""Runs beside each other: figures that hold all of them."""

from __future__ import annotations

from collections.abc import Sequence

from .inks import series_ink
from .kinds import Figure, Lines, Series
from .load import RunData
from .run_figures import hit_rate, misses_of, shares_of, ttft_of
from .units import SHARE


def together(runs: Sequence[RunData]) -> list[Figure]:
    """One figure a question, all runs on it. Empty for a single run."""
    timed = [(run, series_ink(at)) for at, run in enumerate(runs) if run.timed]
    figures: list[Figure] = [shares_of(list(runs))] if len(runs) > 1 else []
    if len(timed) < 2:
        return figures
    figures += [
        hit_rates([run for run, _ in timed]),
        ttft_of([(run.label, ink, run.ttft_s) for run, ink in timed]),
        misses_of([(run.label, ink, run.summary["misses"]) for run, ink in timed]),
    ]
    return [figure for figure in figures if not figure.empty]


def hit_rates(runs: Sequence[RunData]) -> Lines:
    """Hit rate of all levels together, over the share of the run's prompt tokens: runs take different times."""
    series = []
    for at, run in enumerate(runs):
        total = hit_rate(run).series[-1]
        steps = len(total.y)
        series.append(Series(run.label, series_ink(at), [(step + 0.5) / steps for step in range(steps)], total.y))
    what = (
        "Share of prompt tokens that were not computed, over how much of the workload's prompt tokens had been "
        "admitted: the same work stands at the same place, however long each run took."
    )
    title = "Hit rate, run against run"
    labels = ("share of all prompt tokens", "share of prompt tokens")
    return Lines("hit-rates", title, what, *labels, tuple(series), x_unit=SHARE, y_top=1.0)
