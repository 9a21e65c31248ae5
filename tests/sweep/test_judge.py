"""Settings, the Pareto front, promises, the best, and what knobs do: against brute force and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_sim.sweeps.ask import Ask
from hicache_sim.sweeps.effects import effects
from hicache_sim.sweeps.errors import SweepError
from hicache_sim.sweeps.journal import Outcome
from hicache_sim.sweeps.judge import Point, Setting, best, front, judged, order, setting
from hicache_sim.sweeps.metrics import METRICS, read_goal, read_limit

TIME, SIZE, HITS = read_goal("ttft_p99"), read_goal("host_bytes"), read_goal("hit_rate")


def made(name: str, *rows: dict[str, Any] | None, limits: Any = ()) -> Setting:
    points = [
        Point(name, Ask("chat"), Outcome(error="broke") if row is None else Outcome({**dict.fromkeys(METRICS), **row}))
        for row in rows
    ]
    return setting({"name": name}, points, limits)


def names(settings: list[Setting]) -> list[Any]:
    return [each.choice["name"] for each in settings]


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=25))
def test_the_front_is_what_nothing_dominates(rows: list[tuple[int, ...]]) -> None:
    table = np.array(rows, dtype=float).reshape(len(rows), 3)
    for at, row in enumerate(rows):
        dominated = any(all(a <= b for a, b in zip(other, row, strict=True)) and other != row for other in rows)
        assert front(table)[at] == (not dominated)


def test_directions_count() -> None:
    settings = [
        made("small", {"host_bytes": 1, "hit_rate": 0.2}),
        made("large", {"host_bytes": 2, "hit_rate": 0.9}),
        made("waste", {"host_bytes": 3, "hit_rate": 0.9}),
        made("failed", None),
        made("no figure", {"host_bytes": 0}),
    ]
    assert names([each for each in judged(settings, (SIZE, HITS)) if each.pareto]) == ["small", "large"]
    assert [e.pareto for e in judged(settings, (read_goal("hit_rate:min"),))] == [True, False, False, False, False]


def test_means_are_judged_but_promises_hold_in_every_point() -> None:
    limits = (read_limit("ttft_p99<2"),)
    unsteady = made("unsteady", {"ttft_p99": 0.5}, {"ttft_p99": 2.5}, limits=limits)
    assert unsteady.figures is not None
    assert unsteady.figures["ttft_p99"] == 1.5
    assert not unsteady.qualifies
    assert made("steady", {"ttft_p99": 1.9}, {"ttft_p99": 1.9}, limits=limits).qualifies
    assert made("half", {"ttft_p99": 1}, None, limits=limits).figures is None


def test_with_a_promise_the_cheapest_that_keeps_it_is_best() -> None:
    limits = (read_limit("ttft_p99<=2"),)
    rows = [("fast", 0.5, 100), ("enough", 2.0, 40), ("cheap", 3.0, 10)]
    settings = [made(n, {"ttft_p99": t, "host_bytes": b}, limits=limits) for n, t, b in rows]
    goals = (TIME, SIZE)
    assert order(goals, limits, None) == (SIZE, TIME)
    assert best(settings, order(goals, limits, None), limits).choice["name"] == "enough"  # type: ignore[union-attr]
    assert best(settings, order(goals, (), None), ()).choice["name"] == "fast"  # type: ignore[union-attr]
    assert best(settings, order(goals, limits, TIME), limits).choice["name"] == "fast"  # type: ignore[union-attr]


def test_a_hair_does_not_decide() -> None:
    settings = [made("hair", {"ttft_p99": 1.0, "host_bytes": 9}), made("lean", {"ttft_p99": 1.009, "host_bytes": 1})]
    assert best(settings, (TIME, SIZE), ()).choice["name"] == "lean"  # type: ignore[union-attr]


def test_where_nothing_keeps_the_promise_the_nearest_is_best() -> None:
    limits = (read_limit("ttft_p99<1"),)
    rows = [("near", 2.0, 90), ("far", 9.0, 10)]
    settings = [made(n, {"ttft_p99": t, "host_bytes": b}, limits=limits) for n, t, b in rows]
    assert best(settings, (SIZE, TIME), limits).choice["name"] == "near"  # type: ignore[union-attr]
    assert best([made("failed", None)], (SIZE,), limits) is None


@pytest.mark.parametrize(
    ("text", "value", "holds", "excess"),
    [("ttft_p99<2", 2.0, False, 0.0), ("ttft-p99 <= 2", 2.0, True, 0.0), ("hit_rate>0.5", 0.25, False, 0.25)],
)
def test_limits(text: str, value: float, holds: bool, excess: float) -> None:
    limit = read_limit(text)
    figures = {limit.metric.name: value}
    assert limit.holds(figures) == holds
    assert limit.excess(figures) == excess
    assert not limit.holds({})


@pytest.mark.parametrize("text", ["ttft_p99", "ttft_p99=2", "ttft_p99<fast", "ttft_p9<2", "ttft_p99<1.2.3"])
def test_bad_limits_end_in_one_line(text: str) -> None:
    with pytest.raises(SweepError):
        read_limit(text)


def test_effects_of_a_sum_are_its_terms() -> None:
    """ttft = 10·a + b + noise-free: each knob's means differ by its own term, and the shares add up to all."""
    grid = [({"a": a, "b": b}, {"ttft_mean": 10.0 * a + b}) for a in (0, 1) for b in (0, 1, 2)]
    found = effects(["a", "b"], grid, ["ttft_mean"])
    assert [each["figures"]["ttft_mean"] for each in found["a"]["values"]] == [1.0, 11.0]
    assert [each["value"] for each in found["b"]["values"]] == [0, 1, 2]
    assert found["a"]["spread"]["ttft_mean"] == 10.0
    assert found["b"]["spread"]["ttft_mean"] == 2.0
    assert found["a"]["share"]["ttft_mean"] == pytest.approx(25 / (25 + 2 / 3))
    assert found["a"]["share"]["ttft_mean"] + found["b"]["share"]["ttft_mean"] == pytest.approx(1)
    assert (found["a"]["matched"], found["b"]["matched"]) == (3, 2)


def test_a_failed_combination_tilts_nothing() -> None:
    grid = [({"a": a, "b": b}, {"ttft_mean": 10.0 * a + b}) for a in (0, 1) for b in (0, 1, 2) if (a, b) != (1, 2)]
    found = effects(["a"], grid, ["ttft_mean"])["a"]
    assert found["matched"] == 2
    assert found["spread"]["ttft_mean"] == 10.0


def test_drawn_numbers_are_grouped_and_constants_explain_nothing() -> None:
    drawn = [({"x": at / 7, "y": -at}, {"ttft_mean": float(at), "hit_rate": 0.5}) for at in range(40)]
    found = effects(["x"], drawn, ["ttft_mean", "hit_rate"])["x"]
    assert found["matched"] is None
    assert [each["points"] for each in found["values"]] == [10, 10, 10, 10]
    assert [each["figures"]["ttft_mean"] for each in found["values"]] == [4.5, 14.5, 24.5, 34.5]
    assert found["share"]["hit_rate"] is None


def test_of_equals_the_one_with_the_fewest_flags() -> None:
    figures = {**dict.fromkeys(METRICS), "ttft_p99": 1.0}
    rows = [("changed", {"hicache_write_policy": "write_back"}), ("plain", {"hicache_write_policy": "write_through"})]
    settings = [setting({"name": n}, [Point(n, Ask("chat", flags=f), Outcome(figures))], ()) for n, f in rows]
    assert best(settings, (TIME,), ()).choice["name"] == "plain"  # type: ignore[union-attr]
