"""What every searcher keeps to, as one suite to inherit.

class TestMine(SearcherContract):
    name = "mine"
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hicache_sim.sweeps.domains import Choices, Domain, Real, Whole
from hicache_sim.sweeps.errors import SweepError
from hicache_sim.sweeps.metrics import read_goal, read_limit
from hicache_sim.sweeps.search import SEARCHERS, Choice, Wanted, make_searcher

COUNTED: dict[str, Domain] = {"policy": Choices(("a", "b", None)), "pages": Whole(1, 4)}
GOALS = (read_goal("ttft_p99"), read_goal("hit_rate"))
LIMITS = (read_limit("ttft_p99<3"),)


def figures(choice: Choice) -> dict[str, Any] | None:
    """Of a made-up machine: more pages are better and slower, policy b fails."""
    if choice["policy"] == "b":
        return None
    return {"ttft_p99": float(choice["pages"]), "hit_rate": 1 - 1 / choice["pages"]}


class SearcherContract:
    name: str
    space: Mapping[str, Domain] = COUNTED
    points: int | None = None

    def wanted(self, seed: int = 0, points: int | None = None) -> Wanted:
        return Wanted(GOALS, LIMITS, points or self.points, seed)

    def rounds(self, seed: int = 0) -> list[Sequence[Choice]]:
        searcher = make_searcher(self.name, self.space, self.wanted(seed))
        found = []
        while choices := searcher.ask():
            found.append(list(choices))
            searcher.tell(choices, [figures(choice) for choice in choices])
            assert len(found) < 1000
        assert sum(map(len, found)) <= searcher.size
        assert not searcher.ask()
        return found

    def test_every_choice_names_all_knobs_at_values_they_have(self) -> None:
        for choice in (choice for each in self.rounds() for choice in each):
            assert list(choice) == list(self.space)
            assert choice["policy"] in ("a", "b", None)
            assert 1 <= choice["pages"] <= 4

    def test_it_tries_what_it_said(self) -> None:
        expected = self.points or 12
        assert sum(map(len, self.rounds())) == expected

    def test_same_question_same_settings(self) -> None:
        assert self.rounds(seed=3) == self.rounds(seed=3)


class ChanceContract(SearcherContract):
    """Of those that take ranges, a seed, and a number of points."""

    space = COUNTED | {"ratio": Real(1.5, 8.0), "size": Real(1, 1000, log=True)}
    points = 11

    def test_another_seed_other_settings(self) -> None:
        assert self.rounds(seed=1) != self.rounds(seed=2)

    def test_without_choices_there_is_nothing_to_search(self) -> None:
        with pytest.raises(SweepError, match="only conditions vary"):
            make_searcher(self.name, {}, self.wanted())


class TestGrid(SearcherContract):
    name = "grid"

    def test_every_combination_once(self) -> None:
        tried = [tuple(choice.values()) for choice in self.rounds()[0]]
        assert len(tried) == len(set(tried)) == 12

    def test_nothing_varied_is_one_setting(self) -> None:
        assert make_searcher("grid", {}, self.wanted()).ask() == [{}]

    def test_a_range_has_no_grid(self) -> None:
        with pytest.raises(SweepError, match=r"--vary ratio.*STEP"):
            make_searcher("grid", {"ratio": Real(1.5, 8)}, self.wanted())

    def test_it_does_not_take_a_number_of_points(self) -> None:
        with pytest.raises(SweepError, match="every point"):
            make_searcher("grid", COUNTED, self.wanted(points=5))


class TestRandom(ChanceContract):
    name = "random"

    def test_no_setting_twice_and_no_more_than_there_are(self) -> None:
        choices = make_searcher("random", COUNTED, self.wanted(points=50)).ask()
        assert len({tuple(choice.values()) for choice in choices}) == len(choices) == 12


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="Optuna is not installed")
class TestOptuna(ChanceContract):
    name = "optuna"

    def test_it_learns_from_what_it_is_told(self) -> None:
        """A bowl around 5: later rounds lie closer to it than the first."""
        searcher = make_searcher("optuna", {"x": Real(0, 100)}, Wanted((read_goal("ttft_p99"),), points=48))
        means = []
        while choices := searcher.ask():
            means.append(sum(abs(choice["x"] - 5) for choice in choices) / len(choices))
            searcher.tell(choices, [{"ttft_p99": (choice["x"] - 5) ** 2} for choice in choices])
        assert means[-1] < 0.5 * means[0]


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(SweepError, match="did you mean random"):
        make_searcher("randon", COUNTED, Wanted(GOALS))
    assert set(SEARCHERS) == {"grid", "random", "optuna"}
