"""Which settings to try next: a grid, chance, or Optuna.

Rules of this file
- A searcher is asked for a round of settings and told their figures, until it has no more. Rounds do not depend on how
  many workers there are: the same question and seed try the same settings, so a killed search finds its way again.
- It searches over choices only. Conditions are run in full for every setting, and figures are means over them.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .domains import Domain
from .errors import SweepError, look_up
from .metrics import Figures, Goal, Limit

Choice = Mapping[str, Any]
"""Values by knob."""

DEFAULT_POINTS = 32


@dataclass(frozen=True)
class Wanted:
    """What a search is for. `points`: settings to try; None: as the searcher likes."""

    goals: tuple[Goal, ...]
    limits: tuple[Limit, ...] = ()
    points: int | None = None
    seed: int = 0


class Searcher(ABC):
    """`size`: how many settings it will try at most."""

    size: int

    @abstractmethod
    def ask(self) -> Sequence[Choice]:
        """The next round; empty: the search is over. What was asked for before must have been told."""

    def tell(self, choices: Sequence[Choice], figures: Sequence[Figures | None]) -> None:  # noqa: B027
        """What came of a round, in its order; None: the setting failed."""


class Grid(Searcher):
    """Every combination, in one round."""

    def __init__(self, space: Mapping[str, Domain], wanted: Wanted) -> None:
        if wanted.points is not None:
            raise SweepError("--points: a grid runs every point", "take --search random or optuna")
        names, lists = list(space), [_counted(name, domain) for name, domain in space.items()]
        self._round: Sequence[Choice] = [dict(zip(names, values, strict=True)) for values in itertools.product(*lists)]
        self.size = len(self._round)

    def ask(self) -> Sequence[Choice]:
        choices, self._round = self._round, ()
        return choices


def _counted(name: str, domain: Domain) -> Sequence[Any]:
    try:
        return domain.values()
    except SweepError as error:
        raise SweepError(f"--vary {name}: {error}") from None


class Random(Searcher):
    """Settings drawn evenly, none twice, in one round. Fewer than asked for where there are no more."""

    def __init__(self, space: Mapping[str, Domain], wanted: Wanted) -> None:
        _something(space)
        rng, points = random.Random(wanted.seed), wanted.points or DEFAULT_POINTS
        drawn: dict[tuple[Any, ...], Choice] = {}
        for _ in range(50 * points):
            choice = {name: domain.draw(rng) for name, domain in space.items()}
            drawn.setdefault(tuple(choice.values()), choice)
            if len(drawn) == points:
                break
        self._round: Sequence[Choice] = list(drawn.values())
        self.size = len(drawn)

    def ask(self) -> Sequence[Choice]:
        choices, self._round = self._round, ()
        return choices


class Optuna(Searcher):
    """Optuna's TPE over all goals at once, with the limits as its constraints, ROUND settings at a time."""

    ROUND = 8

    def __init__(self, space: Mapping[str, Domain], wanted: Wanted) -> None:
        _something(space)
        try:
            import optuna
        except ImportError:
            raise SweepError("--search optuna: Optuna is not installed", "pip install 'hicache[optuna]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._failed = optuna.trial.TrialState.FAIL
        self._space, self._wanted = space, wanted
        self._study = optuna.create_study(
            directions=["minimize"] * len(wanted.goals), sampler=optuna.samplers.TPESampler(seed=wanted.seed)
        )
        self.size = self._left = wanted.points or DEFAULT_POINTS
        self._trials: list[Any] = []

    def ask(self) -> Sequence[Choice]:
        self._trials = [self._study.ask() for _ in range(min(self.ROUND, self._left))]
        self._left -= len(self._trials)
        return [{name: domain.suggest(trial, name) for name, domain in self._space.items()} for trial in self._trials]

    def tell(self, choices: Sequence[Choice], figures: Sequence[Figures | None]) -> None:
        for trial, found in zip(self._trials, figures, strict=True):
            costs = [None if found is None else goal.cost(found) for goal in self._wanted.goals]
            if found is None or None in costs:
                self._study.tell(trial, state=self._failed)
                continue
            for limit in self._wanted.limits:
                trial.set_constraint(str(limit), limit.excess(found))
            self._study.tell(trial, [cost for cost in costs if cost is not None])


def _something(space: Mapping[str, Domain]) -> None:
    if not space:
        raise SweepError("nothing to search: only conditions vary", "vary a flag too, or take --search grid")


SEARCHERS: dict[str, Callable[[Mapping[str, Domain], Wanted], Searcher]] = {
    "grid": Grid,
    "random": Random,
    "optuna": Optuna,
}


def make_searcher(name: str, space: Mapping[str, Domain], wanted: Wanted) -> Searcher:
    """SweepError: unknown, not installed, or a space it cannot search."""
    return look_up(SEARCHERS, "search", name)(space, wanted)
