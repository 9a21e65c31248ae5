"""What each knob does, over all points: mean figures by value, and how much of the differences it explains.

Rules of this file
- Where the points allow, only whole rows are compared: points that differ in the knob alone, with every value there. So
  a combination that failed tilts nothing. Otherwise (a search by chance) means are over all points with the value.
- `spread` is the largest mean less the smallest. `share` is the part of the variance that the knob alone explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .metrics import Figures

GROUPS = 4
"""Numbers that were drawn, not listed, are put in so many equal groups."""

Tried = tuple[Mapping[str, Any], Figures]
"""Values of all knobs, and what came of it."""


def effects(knobs: Sequence[str], tried: Sequence[Tried], metrics: Sequence[str]) -> dict[str, Any]:
    """By knob: `matched` (rows compared; null: all points), `values` with mean figures, `spread`, `share`."""
    return {knob: _effect(knob, tried, metrics) for knob in knobs}


def _effect(knob: str, tried: Sequence[Tried], metrics: Sequence[str]) -> dict[str, Any]:
    rows, matched = _matched(knob, tried)
    labels = [values[knob] for values, _ in rows]
    if matched is None:
        labels = _grouped(labels)
    groups: dict[Any, list[Figures]] = {}
    for label, (_, figures) in sorted(zip(labels, rows, strict=True), key=lambda pair: _rank(pair[0])):
        groups.setdefault(label, []).append(figures)
    values = [
        {"value": label, "points": len(members), "figures": {name: _mean(members, name) for name in metrics}}
        for label, members in groups.items()
    ]
    return {
        "matched": matched,
        "values": values,
        "spread": {name: _spread([each["figures"][name] for each in values]) for name in metrics},
        "share": {name: _share(list(groups.values()), name) for name in metrics},
    }


def _matched(knob: str, tried: Sequence[Tried]) -> tuple[Sequence[Tried], int | None]:
    """Points of complete rows, and how many rows there are; all points where there is none."""
    rows: dict[Any, dict[Any, Tried]] = {}
    for values, figures in tried:
        others = tuple(value for name, value in values.items() if name != knob)
        rows.setdefault(others, {})[values[knob]] = (values, figures)
    every = len({values[knob] for values, _ in tried})
    whole = [row for row in rows.values() if len(row) == every]
    if not whole:
        return tried, None
    return [each for row in whole for each in row.values()], len(whole)


def _grouped(values: list[Any]) -> list[Any]:
    """The group that each value is in; the values themselves where they are few, or no numbers."""
    numbers = {value for value in values if type(value) in (int, float)}
    if len(numbers) <= GROUPS or len(numbers) < len(set(values) - {None}):
        return values
    cuts = np.quantile(sorted(numbers), np.linspace(0, 1, GROUPS + 1))
    names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(cuts)]
    at = np.clip(np.searchsorted(cuts, [-np.inf if v is None else v for v in values], side="right") - 1, 0, GROUPS - 1)
    return [None if value is None else names[group] for value, group in zip(values, at, strict=True)]


def _rank(label: Any) -> tuple[bool, float, str]:
    """Numbers by size and groups by their lower end, then words as they came, then what was not given."""
    try:
        return label is None, float(str(label).split(" to ")[0]), ""
    except ValueError:
        return label is None, 0.0, ""


def _mean(members: Sequence[Figures], name: str) -> float | None:
    values = [each[name] for each in members if each[name] is not None]
    return float(np.mean(values)) if values else None


def _spread(found: Sequence[float | None]) -> float | None:
    known = [value for value in found if value is not None]
    return max(known) - min(known) if known else None


def _share(groups: Sequence[Sequence[Figures]], name: str) -> float | None:
    """Squares between the groups over all squares; None: nothing varies."""
    lists = [[each[name] for each in group if each[name] is not None] for group in groups]
    every = np.array([value for values in lists for value in values], dtype=float)
    total = float(((every - every.mean()) ** 2).sum()) if len(every) else 0.0
    if total <= 1e-18 * float((every**2).sum()):
        return None
    between = sum(len(values) * (float(np.mean(values)) - every.mean()) ** 2 for values in lists if values)
    return float(between) / total
