"""What compute loses while pages move: on a CPU all of it shares the same cores, on a GPU some of it does.

Rules of this file
- A batch is timed alone and, in turn, while copies or the store's calls follow each other without a pause. The share
  it lost is the difference, over the longer of the two.
"""

from __future__ import annotations

from collections.abc import Callable

from ..control.types import Op
from .rig import Batch, Rig
from .samples import Spread, rounds, spread

SIDE_OPS = 400
"""Given at most beside one batch."""


def lost(rig: Rig, batch: Batch, side: Callable[[], Op], budget_s: float) -> Spread:
    """Share of the batch's time that goes to operations made by `side`; 0 where it loses nothing."""
    ways = {
        "alone": lambda: rig.seconds(rig.compute(batch))[0],
        "beside": lambda: rig.beside(rig.compute(batch), [side() for _ in range(SIDE_OPS)]),
    }
    times = rounds(ways, budget_s)
    alone = spread(times["alone"]).median
    return spread([max(0.0, 1 - alone / each) for each in times["beside"]])
