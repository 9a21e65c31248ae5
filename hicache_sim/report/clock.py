"""Time as figures show it: in a unit that gives short numbers, and without the hours in which nothing happened.

Rules of this file
- A pause in which the device has nothing to do is cut to a hundredth of the time in which something happens, but only
  if so much is won that the axis should say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .units import SPAN

WORTH_CUTTING = 0.3
"""Share of the makespan that must go."""
_UNITS = (
    (2 * 86_400.0, 86_400.0, "days"),
    (3 * 3600.0, 3600.0, "hours"),
    (600.0, 60.0, "minutes"),
    (0.0, 1.0, "seconds"),
)


@dataclass(frozen=True)
class Clock:
    """times_s: of the timeline's samples, pauses cut. divisor_s: seconds of the axis' unit."""

    times_s: NDArray[np.float64]
    divisor_s: float
    label: str


def clock_of(timeline: Mapping[str, NDArray[np.float64]]) -> Clock:
    """The axis of a run's timeline ([samples] of `time_s` and `compute_busy_s`)."""
    times_s, busy_s = timeline["time_s"], timeline["compute_busy_s"]
    steps_s = np.diff(times_s, prepend=0.0)
    worked_s = np.clip(np.diff(busy_s, prepend=0.0), 0.0, steps_s)
    pauses_s = steps_s - worked_s
    kept_s = worked_s + np.minimum(pauses_s, max(float(worked_s.sum()), 1.0) / 100)
    cut_s = float(steps_s.sum() - kept_s.sum())
    if cut_s < WORTH_CUTTING * float(times_s[-1]):
        return _named(times_s, "time")
    return _named(np.cumsum(kept_s), "time", f", {SPAN(cut_s)} of pauses cut out")


def _named(times_s: NDArray[np.float64], what: str, more: str = "") -> Clock:
    last_s = float(times_s[-1])
    divisor_s, name = next((divisor, name) for least, divisor, name in _UNITS if last_s >= least)
    return Clock(times_s, divisor_s, f"{what} ({name}{more})")
