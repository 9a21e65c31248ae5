"""All about one workload's capacity: LRU's curve over both levels, the bounds, and other strategies between the two.

    from hicache_sim.curve import Wanted, study
    done = study(open_workload("conversation").requests(None), 64, Wanted(evictions=("lru", "s3fifo")))
    done.levels, done.bounds, done.strategies      # DataFrames
    done.plot("curve.png")

Rules of this file
- Rates are shares of whole prompt pages, requests served one after the other without time: as `replay --untimed`.
- Every comparison is like with like: a strategy, its LRU and its bound are of the same sample and the same sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.write import WRITE
from workloads.request import Request

from .bounds import Links, bandwidth_bound, hits_left, offline_best
from .lru import LruCurve, error
from .references import References, gather
from .replays import ORACLES, WRITE_ORACLES, Outcome, Setting, replayed

if TYPE_CHECKING:
    import pandas as pd

Rows = list[dict[str, Any]]
Progress = Callable[[int, float], None]

REPLAYED = 5_000_000
"""References that all replays together may take, unless a rate is asked for."""


@dataclass(frozen=True)
class Wanted:
    """What is to be found out.

    sizes: of L1, in pages; none: `points` of them, from the longest prompt to all pages there are. ratios: sizes of L2
    over L1; 0 is L1 alone. evictions, writes: strategies to replay, by name. rate: sampled share of the pages, for the
    curve and bounds. replay_rate: for the replays, none: as many as `REPLAYED` allows. links: for bounds with
    bandwidth. profile: whose rules the replays follow.
    """

    sizes: tuple[int, ...] = ()
    points: int = 8
    ratios: tuple[float, ...] = (1.0, 2.0, 4.0)
    evictions: tuple[str, ...] = ()
    writes: tuple[str, ...] = ("write_through",)
    rate: float = 1.0
    replay_rate: float | None = None
    seed: int = 0
    links: Links = field(default_factory=Links)
    profile: str = "v0.5.7"

    def __post_init__(self) -> None:
        if self.points < 2 and not self.sizes:
            raise ValueError(f"{self.points} points make no curve: ask for two or more, or name sizes")
        if any(size < 1 for size in self.sizes):
            raise ValueError("L1 sizes: each must be at least a page")
        if any(not 0 <= ratio < math.inf for ratio in self.ratios):
            raise ValueError("L2 ratios: each must be finite, and 0 (no L2) or more")
        if self.replay_rate is not None and not 0 < self.replay_rate <= 1:
            raise ValueError(f"sampling rate {self.replay_rate}: give a share of the pages, above 0 and at most 1")
        _known("eviction policy", self.evictions, [*EVICTION, *ORACLES])
        _known("write policy", self.writes, [*WRITE, *WRITE_ORACLES])


def _known(what: str, names: Sequence[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}: known are {', '.join(known)}")


@dataclass
class Study:
    """What was found. Rates are shares of prompt pages, `error` is a standard error."""

    facts: dict[str, Any]
    curve: LruCurve
    level_rows: Rows
    bound_rows: Rows
    strategy_rows: Rows

    @cached_property
    def levels(self) -> pd.DataFrame:
        """LRU: one row a size of L1 and ratio of L2."""
        return _frame(self.level_rows)

    @cached_property
    def bounds(self) -> pd.DataFrame:
        """Offline-best: one row a size of L1 and ratio of L2."""
        return _frame(self.bound_rows)

    @cached_property
    def strategies(self) -> pd.DataFrame:
        """Replays: one row a strategy and size, with LRU's, the bound, and the share of the gap that it closes."""
        return _frame(self.strategy_rows)

    def plot(self, path: str | Path) -> None:
        """The curves as a picture."""
        from .plot import draw

        draw(self, Path(path))


def study(
    requests: Iterable[Request], page_tokens: int, wanted: Wanted | None = None, progress: Progress | None = None
) -> Study:
    """Read the workload once, and answer. ValueError: no whole page in it."""
    wanted = wanted or Wanted()
    references = gather(requests, page_tokens, wanted.rate, wanted.seed, progress)
    return of(references, wanted)


def of(references: References, wanted: Wanted, told: Callable[[Setting], None] = lambda setting: None) -> Study:
    """The same, of references already read. told: called before each replay."""
    if not len(references):
        kept = "" if references.rate == 1 else f" in a sample of {references.rate:g}"
        raise ValueError(
            f"no prompt has a whole page of {references.page_tokens} tokens{kept}: take smaller pages, or more of it"
        )
    curve = LruCurve.of(references)
    pages = math.ceil(references.distinct / references.rate)
    sizes = wanted.sizes or spaced(references.longest, pages, wanted.points)
    facts = {
        "page_tokens": references.page_tokens,
        "requests": len(references.starts) - 1,
        "references": references.total,
        "distinct_pages": pages,
        "longest_prompt_pages": references.longest,
        "ceiling_rate": curve.ceiling / max(references.total, 1),
        "rate": references.rate,
        "seed": references.seed,
    }
    levels = _levels(references, curve, sizes, wanted)
    bounds = _bounds(references, sizes, wanted)
    strategies = _strategies(references, sizes, wanted, told) if wanted.evictions else []
    return Study(facts, curve, levels, bounds, strategies)


def spaced(least: int, most: int, points: int) -> tuple[int, ...]:
    """So many sizes, each as much larger than the one before."""
    return tuple(sorted({int(size) for size in np.geomspace(max(least, 1), max(most, least, 1), points).round()}))


def _levels(references: References, curve: LruCurve, sizes: Sequence[int], wanted: Wanted) -> Rows:
    pairs = [(size, ratio, round(size * ratio)) for size in sizes for ratio in wanted.ratios]
    first, below = np.array([pair[0] for pair in pairs]), np.array([pair[2] for pair in pairs])
    columns = zip(
        pairs,
        curve.rates(first).tolist(),
        curve.inclusive(first, below).tolist(),
        curve.exclusive(first, below).tolist(),
        error(references, first).tolist(),
        strict=True,
    )
    return [
        {
            **_size(references, size, ratio, l2),
            "l1_rate": alone,
            "inclusive_rate": inclusive,
            "exclusive_rate": exclusive,
            "error": wrong,
        }
        for (size, ratio, l2), alone, inclusive, exclusive, wrong in columns
    ]


def _size(references: References, l1: int, ratio: float, l2: int) -> dict[str, Any]:
    return {
        "l1_pages": l1,
        "l1_tokens": l1 * references.page_tokens,
        "l2_ratio": ratio,
        "l2_pages": l2,
        "fits_longest": l1 >= references.longest,
    }


def _bounds(references: References, sizes: Sequence[int], wanted: Wanted) -> Rows:
    """L1 alone, with L2, and with an L3 that keeps everything; each of the latter with bandwidth too."""
    total = max(references.total, 1)
    ceiling = hits_left(references, len(references) - references.distinct)
    pairs = [(size, ratio, round(size * ratio)) for size in sizes for ratio in wanted.ratios]
    held = sorted({total for size, _, l2 in pairs for total in (size, size + l2)})
    best = {
        total: hits_left(references, hits) for total, hits in zip(held, offline_best(references, held), strict=True)
    }
    rows: Rows = []
    for size, ratio, l2 in pairs:
        alone, both = best[size], best[size + l2]
        over_l2 = Links(wanted.links.l2_pages_per_s, 0.0)
        with_l2 = max(alone, min(both, bandwidth_bound(references, over_l2, size, l2))) if l2 else alone
        with_l3 = max(alone, min(ceiling, bandwidth_bound(references, wanted.links, size, l2)))
        rows.append(
            {
                **_size(references, size, ratio, l2),
                "best_l1_rate": alone / total,
                "best_rate": both / total,
                "best_rate_bandwidth": with_l2 / total,
                "best_l3_rate": ceiling / total,
                "best_l3_rate_bandwidth": with_l3 / total,
                "best_l2_reads_pages": both - alone,
            }
        )
    return rows


def _strategies(references: References, sizes: Sequence[int], wanted: Wanted, told: Callable[[Setting], None]) -> Rows:
    """Each strategy at each size, beside LRU with write_through (the usual), and the bound, all of the same sample."""
    settings = [
        Setting(eviction, size, round(size * ratio), write, wanted.profile)
        for size in sizes
        for ratio in wanted.ratios
        for write in (wanted.writes if ratio else wanted.writes[:1])
        for eviction in wanted.evictions
    ]
    sample = _thinned(references, wanted, len(settings))
    best: dict[int, float] = {}
    usual: dict[tuple[int, int], Outcome] = {}
    rows: Rows = []
    for setting in settings:
        told(setting)
        held = setting.l1_pages + setting.l2_pages
        if held not in best:
            best[held] = hits_left(sample, offline_best(sample, [held])[0])
        place = (setting.l1_pages, setting.l2_pages)
        if place not in usual:
            usual[place] = replayed(sample, Setting("lru", *place, profile=wanted.profile))
        rows.append(_strategy(sample, setting, replayed(sample, setting), usual[place], best[held]))
    return rows


def _thinned(references: References, wanted: Wanted, replays: int) -> References:
    rate = wanted.replay_rate or min(1.0, REPLAYED / max(len(references) * replays, 1))
    return references if rate == 1 else references.sample(rate * references.rate, references.seed)


def _strategy(sample: References, setting: Setting, found: Outcome, usual: Outcome, best: float) -> dict[str, Any]:
    total, gap = max(sample.total, 1), best - usual.hits
    ratio = setting.l2_pages / setting.l1_pages
    return {
        "eviction": setting.eviction,
        "write": setting.write if setting.l2_pages else "none",
        "reads_future": setting.eviction in ORACLES or setting.write in WRITE_ORACLES,
        **_size(sample, setting.l1_pages, round(ratio, 3), setting.l2_pages),
        "rate": found.hits / total,
        "l1_rate": found.l1_hits / total,
        "lru_rate": usual.hits / total,
        "best_rate": best / total,
        "gap_closed": (found.hits - usual.hits) / gap if gap > 0 else math.nan,
        "l2_written_pages": found.written,
        "l2_read_pages": found.read,
        "rejected": found.rejected,
        "sample_rate": sample.rate,
    }


def _frame(rows: Rows) -> pd.DataFrame:
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame
