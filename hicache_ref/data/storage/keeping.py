"""What a store says of itself: how much it keeps, and what goes when that is full.

Rules of this file
- Names and units are those of `hicache_sim.hardware.StoreProfile`, whose numbers these become. What a store cannot tell
  is left out, and stands there as it is known of stores of its kind.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple


class Known(NamedTuple):
    """A number, or a word such as an eviction's, and how it came to be known."""

    value: float | str
    source: str


Keeping = dict[str, Known]
"""By name of `StoreProfile`: capacity_bytes (of pages, without what the store adds to each), eviction, high_watermark,
low_watermark, lease_s."""


def unlimited(source: str) -> Keeping:
    """Nothing goes, and there is room for everything that anybody has told this client of."""
    return {"eviction": Known("none", source), "capacity_bytes": Known(math.inf, source)}


def disk(folder: str, page_bytes: int, stored_bytes: int) -> Keeping:
    """What a disk still takes, a page of which is `stored_bytes` there. Nothing goes."""
    room = os.statvfs(folder)
    free_bytes = float(room.f_bavail * room.f_frsize)
    source = f"{free_bytes / 1e9:.1f} GB free on its disk"
    return {
        "eviction": Known("none", "no limit was set"),
        "capacity_bytes": Known(free_bytes * page_bytes / stored_bytes, source),
    }
