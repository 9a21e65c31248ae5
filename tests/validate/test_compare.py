"""The verdict: a tolerance, or the real runs' own spread where that is more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_sim.validate.compare import Row, compare, record
from hicache_sim.validate.figures import FIGURES, TOLERANCES, Figure

BY_NAME = {(each.group, each.name): each for each in FIGURES}
HITS, TTFT = BY_NAME["hits", "L1"], BY_NAME["TTFT", "p50"]
TIMES = st.floats(1e-4, 1e3)
SHARES = st.floats(0.0, 1.0)


def summary(figure: Figure, value: float | None) -> dict[str, Any]:
    found: Any = value
    for key in reversed(figure.path):
        found = {key: found}
    return found


def row(figure: Figure, real: list[float], simulated: float, allowed: float | None = None) -> Row:
    return Row(figure, tuple(real), simulated, allowed)


@settings(max_examples=80, deadline=None)
@given(st.lists(TIMES, min_size=3, max_size=5), TIMES, st.floats(0.0, 50.0))
def test_times_pass_within_a_share_or_within_the_spread(real, simulated, tolerance):
    (found,) = compare([summary(TTFT, each) for each in real], summary(TTFT, simulated), {"ttft": tolerance})
    assert found.allowed is not None
    near = abs(simulated / found.median - 1) <= max(tolerance / 100, found.spread)
    assert found.passes == (near or min(real) <= simulated <= max(real))


@settings(max_examples=80, deadline=None)
@given(st.lists(SHARES, min_size=3, max_size=3))
def test_a_real_run_is_never_beyond(real):
    for each in real:
        assert row(HITS, real, each, 0.0).passes


@pytest.mark.parametrize(
    ("simulated", "passes"), [(0.405, True), (0.4051, False), (0.395, True), (0.39, False), (0.4, True)]
)
def test_hits_are_compared_in_points(simulated, passes):
    real = [summary(HITS, each) for each in (0.4, 0.4, 0.4)]
    (found,) = compare(real, summary(HITS, simulated), {"hits": 0.5 + 1e-9})
    assert found.passes is passes
    assert found.difference == pytest.approx(simulated - 0.4)


def test_without_a_tolerance_nothing_is_beyond():
    found = row(TTFT, [1.0, 1.0, 1.0], 100.0)
    assert found.passes and found.difference == pytest.approx(99.0)
    assert record(found)["allowed"] is None


def test_nothing_against_nothing_is_no_difference():
    assert row(TTFT, [0.0, 0.0, 0.0], 0.0, 0.1).passes
    assert not row(TTFT, [0.0, 0.0, 0.0], 1.0, 0.1).passes


def test_figures_that_a_run_lacks_are_left_out():
    assert compare([summary(HITS, 0.5), summary(HITS, None), summary(HITS, 0.5)], summary(HITS, 0.5), {}) == []


def test_every_tolerance_is_some_figures():
    assert {each.tolerance for each in FIGURES if each.tolerance} == set(TOLERANCES)
    assert len({(each.group, each.name) for each in FIGURES}) == len(FIGURES)
