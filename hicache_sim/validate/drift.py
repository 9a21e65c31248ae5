"""A machine that is measured again before every real run, since it is not the same from minute to minute.

Rules of this file
- The machine that is simulated is the median of all calibrations, number by number; words are those of the first.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def median(calibrations: Sequence[Any]) -> Any:
    """Of contents with the same keys. Lists are the first's: they are records of single measurements."""
    first = calibrations[0]
    if isinstance(first, dict):
        return {name: median([each[name] for each in calibrations]) for name in first}
    if isinstance(first, float):
        return statistics.median(calibrations)
    return first
