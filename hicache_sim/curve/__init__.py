"""Capacity curves and bounds: what any size of L1 and L2 would hit, without a replay for each.

references   the pages that requests touch, as arrays; or a spatially hashed sample of them
stack        LRU stack distances of all of them at once
lru          the whole curve: L1 alone, with an inclusive and with an exclusive L2, and a sample's error
replays      other strategies, replayed on the (sampled) prompts
oracle       policies that read the future, for those replays
bounds       what no policy can exceed, on one level and on the hierarchy, with and without bandwidth
study        all of it for one workload, as tables; `hicache curve` prints them
"""

from .bounds import Links, bandwidth_bound, offline_best
from .lru import LruCurve, error
from .references import References, gather
from .study import Study, Wanted, study

__all__ = [
    "Links",
    "LruCurve",
    "References",
    "Study",
    "Wanted",
    "bandwidth_bound",
    "error",
    "gather",
    "offline_best",
    "study",
]
