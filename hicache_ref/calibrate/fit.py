"""Prices from times: the nearest sum of terms that are not negative.

Rules of this file
- Errors count by their share of what was measured: a fit that is right to a tenth of a second is no use for calls of
  a millisecond. Distances count, not their squares: on a machine that others use some measurements are far off.
- Few terms: every subset is solved, and the best without a negative price is taken. That is exact, and needs no
  library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
NEAR = 0.03
"""Distances below this share are all alike."""


class FitError(ValueError):
    """Times that no price explains. One line."""


class Fit(NamedTuple):
    """What one of each term costs. error: the median distance from what was measured, as a share of it."""

    prices: dict[str, float]
    error: float
    worst: float

    def at(self, **amounts: float) -> float:
        return sum(self.prices[name] * amount for name, amount in amounts.items())

    def words(self) -> str:
        return f"fitted: off by {self.error:.0%} in the median, {self.worst:.0%} at worst"


def fit(rows: Sequence[Mapping[str, float]], times: Sequence[float]) -> Fit:
    """rows: how much of each term a measurement had, the same names in all. FitError: nothing to fit."""
    taken = np.asarray(times, dtype=float)
    if not len(rows) or taken.min() <= 0:
        raise FitError(f"{len(rows)} measurements, the shortest {min(times, default=0.0):g} s: nothing to fit")
    names = list(rows[0])
    amounts = np.array([[row[name] for name in names] for row in rows], dtype=float)
    weights, prices = 1 / taken, np.zeros(len(names))
    for _ in range(ROUNDS):
        prices = _solve(amounts * weights[:, None], taken * weights)
        found = np.maximum(amounts @ prices, 1e-3 * taken)
        # Twice too long and twice too short count the same, and a measurement that went wrong counts less.
        weights = (taken * found) ** -0.5 * np.maximum(np.abs(np.log(found / taken)), NEAR) ** -0.5
    errors = np.abs(amounts @ prices / taken - 1)
    return Fit(dict(zip(names, prices.tolist(), strict=True)), float(np.median(errors)), float(errors.max()))


def _solve(amounts: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 that brings `amounts @ x` nearest to `times`."""
    count = amounts.shape[1]
    scale = amounts.max(axis=0)
    scale[scale == 0] = 1.0
    best, least = np.zeros(count), np.inf
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            found, *_ = np.linalg.lstsq(amounts[:, chosen] / scale[chosen], times, rcond=None)
            if (found < 0).any():
                continue
            prices = np.zeros(count)
            prices[chosen] = found / scale[chosen]
            missed = float(np.square(amounts @ prices - times).sum())
            if missed < least:
                best, least = prices, missed
    return best
