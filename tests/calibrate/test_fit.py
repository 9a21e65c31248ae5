"""Fits: prices come back from the times they make, none is negative, and what went wrong once does not move them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.calibrate.fit import FitError, fit
from hicache_ref.calibrate.samples import LEAST_ROUNDS, rounds, spread

AMOUNTS = [{"a": 1.0, "b": float(b), "c": float(b * c)} for b in (1, 4, 16, 64) for c in (1, 10, 300)]
PRICE = st.one_of(st.just(0.0), st.floats(1e-7, 1e-2))


@settings(max_examples=60, deadline=None)
@given(PRICE, PRICE, PRICE)
def test_prices_come_back(a, b, c):
    prices = {"a": a, "b": b, "c": c}
    times = [sum(prices[name] * row[name] for name in row) for row in AMOUNTS]
    if min(times) <= 0:
        return
    found = fit(AMOUNTS, times)
    assert found.error < 1e-6 and found.worst < 1e-3
    assert all(price >= 0 for price in found.prices.values())
    assert [found.at(**row) for row in AMOUNTS] == pytest.approx(times, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-5, 10.0), min_size=len(AMOUNTS), max_size=len(AMOUNTS)))
def test_whatever_is_measured_no_price_is_negative(times):
    found = fit(AMOUNTS, times)
    assert all(price >= 0 for price in found.prices.values())
    assert 0 <= found.error <= found.worst


def test_what_went_wrong_once_counts_little():
    prices = {"a": 1e-3, "b": 1e-5, "c": 1e-7}
    times = [sum(prices[name] * row[name] for name in row) for row in AMOUNTS]
    times[4] *= 6
    found = fit(AMOUNTS, times)
    assert found.prices["a"] == pytest.approx(1e-3, rel=0.1)
    assert found.worst > 0.5


@pytest.mark.parametrize("times", [[], [0.0]])
def test_nothing_to_fit(times):
    with pytest.raises(FitError, match="nothing to fit"):
        fit(AMOUNTS[: len(times)], times)


def test_rounds_take_turns_and_the_first_does_not_count():
    calls: list[str] = []

    def way(name: str):
        def work() -> float:
            calls.append(name)
            return float(len(calls))

        return work

    found = rounds({"x": way("x"), "y": way("y")}, 0.0)
    assert len(found["x"]) == len(found["y"]) == LEAST_ROUNDS
    turns = [set(calls[at : at + 2]) for at in range(0, len(calls), 2)]
    assert turns == [{"x", "y"}] * (LEAST_ROUNDS + 1)
    assert min(found["x"] + found["y"]) == 3.0


def test_a_spread_says_how_far_apart_its_values_were():
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == (3.0, 2.0, 4.0, 5)
    assert found.share == pytest.approx(1 / 3)
    assert found.words() == "median of 5, quartiles within 33%"
