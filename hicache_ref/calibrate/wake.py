"""What a batch takes longer when the device has been idle: caches are cold, clocks low, threads asleep.

Rules of this file
- The more, the longer the pause, up to a limit: `most_s * pause / (pause + half_s)`, as `hicache_sim.plane` has it.
- One batch of a common size, alone after pauses of several lengths, in turn: what it takes longer than without a pause.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from .rig import Batch, Rig
from .samples import rounds, spread

PAUSES_S = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
HALVES_S = tuple(float(half) for half in np.geomspace(0.003, 1.0, 25))


class Wake(NamedTuple):
    """most_s: after a long pause. half_s: the pause after which it is half of that."""

    most_s: float
    half_s: float
    extra_s: dict[float, float]
    """What was measured: by pause."""

    def at(self, pause_s: float) -> float:
        return self.most_s * pause_s / (pause_s + self.half_s)


def wake(rig: Rig, batch: Batch, budget_s: float) -> Wake:
    def after(pause_s: float) -> float:
        time.sleep(pause_s)
        return rig.busy_s(rig.compute(batch))

    taken = rounds({pause: partial(after, pause) for pause in PAUSES_S}, budget_s)
    times = {pause: spread(each).median for pause, each in taken.items()}
    return fitted({pause: max(0.0, times[pause] - times[0.0]) for pause in PAUSES_S if pause})


def fitted(extra_s: Mapping[float, float]) -> Wake:
    """The curve nearest to what was measured."""
    pauses, extra = np.array(list(extra_s)), np.array(list(extra_s.values()))
    best, least = Wake(0.0, HALVES_S[0], dict(extra_s)), float(np.square(extra).sum())
    for half_s in HALVES_S:
        shape = pauses / (pauses + half_s)
        most_s = float(extra @ shape / (shape @ shape))
        missed = float(np.square(most_s * shape - extra).sum())
        if missed < least:
            best, least = Wake(most_s, half_s, dict(extra_s)), missed
    return best
