"""Times that repeat: what is kept of them, and how they are taken.

Rules of this file
- A figure is the median of its repetitions, and says how far apart these lay. Nothing is dropped: a busy machine shows.
- What is compared takes turns, in another order each round, so that whatever else the machine does strikes all alike.
- A round more while there is time; three at least.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

LEAST_ROUNDS = 3
MOST_ROUNDS = 200

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


class Spread(NamedTuple):
    """median, and the quartiles around it; of so many `times`."""

    median: float
    low: float
    high: float
    times: int

    @property
    def share(self) -> float:
        """Half the distance of the quartiles, of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0

    def words(self) -> str:
        """For the source of a number."""
        return f"median of {self.times}, quartiles within {self.share:.0%}"


def spread(values: Sequence[float]) -> Spread:
    low, median, high = (float(q) for q in np.percentile(values, (25, 50, 75)))
    return Spread(median, low, high, len(values))


def seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def rounds(ways: Mapping[_K, Callable[[], _T]], budget_s: float, warm: bool = True) -> dict[_K, list[_T]]:
    """What each way returned, round after round, for about `budget_s`. warm: a first round does not count."""
    end_s = time.monotonic() + budget_s
    found: dict[_K, list[_T]] = {name: [] for name in ways}
    for at in range(-1 if warm else 0, MOST_ROUNDS):
        if at >= LEAST_ROUNDS and time.monotonic() > end_s:
            break
        for name in random.Random(at).sample(list(ways), len(ways)):
            result = ways[name]()
            if at >= 0:
                found[name].append(result)
    return found
