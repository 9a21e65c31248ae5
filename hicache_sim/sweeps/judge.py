"""From points to settings: means over the conditions, what keeps the promises, the Pareto front, the best.

Rules of this file
- A setting is one combination of choices. It counts only if it ran under every condition.
- Goals are judged by means over the conditions, promises in every single one: a promise kept on average is broken.
- The best keeps the promises if any setting does. Then one goal after the other decides, in the order they were named,
  those that a promise bounds last: kept is good enough, and what it costs matters. Within TIE, two settings are equal.
  Of equals, the one with the fewest flags to set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ask import Ask
from .journal import Outcome
from .metrics import METRICS, Figures, Goal, Limit
from .search import Choice
from .worth import uses

TIE = 0.01
"""Of the better cost."""


@dataclass(frozen=True)
class Point:
    """One replay of a setting, under one condition."""

    key: str
    ask: Ask
    outcome: Outcome


@dataclass(frozen=True)
class Setting:
    """`choice`: values by knob. `figures`: means over the points; None: one of them failed."""

    choice: Choice
    points: tuple[Point, ...]
    figures: Figures | None
    qualifies: bool = False
    """Every limit holds in every point."""
    pareto: bool = False

    @property
    def error(self) -> str | None:
        return next((point.outcome.error for point in self.points if point.outcome.error), None)


def setting(choice: Choice, points: Sequence[Point], limits: Sequence[Limit]) -> Setting:
    found = [point.outcome.figures for point in points]
    complete = [each for each in found if each is not None]
    if len(complete) < len(found):
        return Setting(choice, tuple(points), None)
    kept = all(limit.holds(each) for each in complete for limit in limits)
    return Setting(choice, tuple(points), means(complete), kept)


def means(figures: Sequence[Figures]) -> dict[str, Any]:
    """Of every metric; None where one of them does not have it."""
    found: dict[str, Any] = {}
    for name in METRICS:
        values = [each.get(name) for each in figures]
        found[name] = None if None in values else float(np.mean(values))  # type: ignore[arg-type]
    return found


def judged(settings: Sequence[Setting], goals: Sequence[Goal]) -> list[Setting]:
    """The settings, with the Pareto front of all that ran marked."""
    able = [at for at, each in enumerate(settings) if _costs(each, goals) is not None]
    table = np.array([_costs(settings[at], goals) for at in able], dtype=float).reshape(len(able), len(goals))
    on_front = {at for at, good in zip(able, front(table), strict=True) if good}
    return [replace(each, pareto=at in on_front) for at, each in enumerate(settings)]


def _costs(each: Setting, goals: Sequence[Goal]) -> list[float] | None:
    costs = [goal.cost(each.figures or {}) for goal in goals]
    return None if None in costs else costs  # type: ignore[return-value]


def front(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[n, goals], less is better: which rows no other row beats in one goal without losing in another. [n]"""
    good = np.ones(len(costs), dtype=bool)
    for at, row in enumerate(costs):
        better = (costs <= row).all(axis=1) & (costs < row).any(axis=1)
        good[at] = not better.any()
    return good


def order(goals: Sequence[Goal], limits: Sequence[Limit], first: Goal | None) -> tuple[Goal, ...]:
    """In which order goals decide. `first`: goes before all."""
    bounded = {limit.metric.name for limit in limits}
    free = [goal for goal in goals if goal.metric.name not in bounded]
    rest = [goal for goal in goals if goal.metric.name in bounded]
    return tuple(dict.fromkeys([*([first] if first else []), *free, *rest]))


def best(settings: Sequence[Setting], goals: Sequence[Goal], limits: Sequence[Limit]) -> Setting | None:
    """The best by `goals`, in this order; None: nothing ran. Where no setting qualifies, the least broken promises
    come first."""
    able = [each for each in settings if each.figures is not None]
    kept = [each for each in able if each.qualifies] if limits else able
    if not kept:
        goals = (*(Goal(limit.metric, "<" in limit.relation) for limit in limits), *goals)
        kept = able
    for goal in goals:
        costs = [(goal.cost(each.figures or {}), each) for each in kept]
        known = [(cost, each) for cost, each in costs if cost is not None]
        if known:
            least = min(cost for cost, _ in known)
            kept = [each for cost, each in known if cost <= least + TIE * abs(least)]
    return min(kept, key=lambda each: len(uses(each.points[0].ask)), default=None)
