"""Simulated figures beside real ones, and the verdict.

Rules of this file
- The simulated figure is compared with the median of the real ones.
- What is allowed is the tolerance, or how far the real runs lie from their own median if that is more: no simulator can
  be nearer to a machine than the machine is to itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .figures import FIGURES, Figure


@dataclass(frozen=True)
class Row:
    """One figure. real: of each run. allowed: the greatest difference that passes; None: it decides nothing."""

    figure: Figure
    real: tuple[float, ...]
    simulated: float
    allowed: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.real)

    @property
    def difference(self) -> float:
        """Points' worth of a share, or a share of the median; 0 where both are nothing."""
        return _difference(self.figure, self.simulated, self.median)

    @property
    def spread(self) -> float:
        """How far the farthest real run lies from their median, written as `difference` is."""
        return max(abs(_difference(self.figure, each, self.median)) for each in self.real)

    @property
    def inside(self) -> bool:
        """Between the least and the greatest real figure."""
        return min(self.real) <= self.simulated <= max(self.real)

    @property
    def passes(self) -> bool:
        return self.allowed is None or self.inside or abs(self.difference) <= max(self.allowed, self.spread)


def _difference(figure: Figure, value: float, base: float) -> float:
    if not figure.scale.relative:
        return value - base
    if base:
        return value / base - 1
    return 0.0 if value == base else float("inf")


def compare(
    real: Sequence[Mapping[str, Any]], simulated: Mapping[str, Any], tolerances: Mapping[str, float]
) -> list[Row]:
    """Every figure that all runs have. tolerances: points for hits, per cent for times, by name of `TOLERANCES`."""
    rows = []
    for figure in FIGURES:
        values, value = [figure.of(summary) for summary in real], figure.of(simulated)
        if value is None or None in values:
            continue
        allowed = tolerances.get(figure.tolerance) if figure.tolerance else None
        share = None if allowed is None else allowed / 100
        rows.append(Row(figure, tuple(each for each in values if each is not None), value, share))
    return rows


def record(row: Row) -> dict[str, Any]:
    """For `validation.json`."""
    return {
        "group": row.figure.group,
        "figure": row.figure.name,
        "real": list(row.real),
        "median": row.median,
        "simulated": row.simulated,
        "difference": row.difference,
        "relative": row.figure.scale.relative,
        "spread": row.spread,
        "allowed": row.allowed,
        "passes": row.passes,
    }
