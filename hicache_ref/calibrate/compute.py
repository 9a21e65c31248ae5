"""Prefill and decode of the model at hand, over how much is new and how much was there before.

Rules of this file
- The formulas are those of `hicache_sim.compute.Fitted`: sums of terms that a batch has, at a price each.
- Sequences of a batch have unlike lengths, as they have in service: equal ones would be computed together.
- Points that would take long are left out; the fit is used beyond them, and says in what range it was made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .fit import Fit, fit
from .rig import Batch, Rig
from .samples import Spread, rounds, spread

NEW_TOKENS = (16, 48, 128, 384, 1024, 2048, 4096)
BEFORE_TOKENS = (0, 128, 512, 2048, 8192)
SEQUENCES = (1, 4)
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (64, 256, 1024, 4096)
STEPS = 4
"""Of a decode batch."""
MOST_S = 1.5
"""A point that takes longer is the last of its row."""

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Point:
    """One batch, and how long it took."""

    terms: dict[str, float]
    time: Spread


@dataclass(frozen=True)
class Curve:
    """A fit, what it was made of, and the measurements."""

    fit: Fit
    points: list[Point]

    def record(self) -> dict[str, Any]:
        ranges = {
            name: [min(p.terms[name] for p in self.points), max(p.terms[name] for p in self.points)]
            for name in self.points[0].terms
            if name != "a"
        }
        typical = sorted(point.time.share for point in self.points)[len(self.points) // 2]
        return {
            **self.fit.prices,
            "error": {"median": self.fit.error, "worst": self.fit.worst},
            "spread": typical,
            "points": len(self.points),
            "range": ranges,
        }


def prefill_terms(spans: Sequence[tuple[int, int]]) -> dict[str, float]:
    """a: the batch. b: new tokens. c: (query, key) pairs. d: tokens read. e: sequences."""
    return {
        "a": 1,
        "b": sum(new for _, new in spans),
        "c": sum(new * before + new * (new + 1) // 2 for before, new in spans),
        "d": sum(before + new for before, new in spans),
        "e": len(spans),
    }


def decode_terms(spans: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Of one step. a: the step. b: sequences. c: tokens of context."""
    return {"a": 1, "b": len(spans), "c": sum(before for before, _ in spans) + (STEPS - 1) / 2 * len(spans)}


class ComputeBench:
    """Batches on a rig."""

    def __init__(self, rig: Rig, page_tokens: int, pool_pages: int, longest: int) -> None:
        """longest: tokens of a sequence at most."""
        self._rig, self._page, self._pages = rig, page_tokens, pool_pages
        self._longest = min(longest, page_tokens * (pool_pages - 1) - STEPS)

    def prefill(self, budget_s: float) -> Curve:
        return self._curve(self._prefills(), prefill_terms, 1, budget_s)

    def decode(self, budget_s: float) -> Curve:
        return self._curve(self._decodes(), decode_terms, STEPS, budget_s)

    def _prefills(self) -> list[Spans]:
        rng = random.Random(0)
        found = []
        for new in NEW_TOKENS:
            for before in BEFORE_TOKENS:
                for count in SEQUENCES:
                    spans = tuple((_near(rng, before), max(1, _near(rng, new // count))) for _ in range(count))
                    found.append(spans)
        return self._fitting(found)

    def _decodes(self) -> list[Spans]:
        rng = random.Random(1)
        return self._fitting([tuple((_near(rng, c), 1) for _ in range(n)) for n in BATCHES for c in CONTEXTS])

    def _fitting(self, found: list[Spans]) -> list[Spans]:
        room = self._page * (self._pages - 1)
        return [
            spans
            for spans in found
            if max(sum(span) for span in spans) <= self._longest
            and sum(before + new + STEPS + self._page for before, new in spans) <= room
        ]

    def _curve(
        self, found: list[Spans], terms: Callable[[Spans], dict[str, float]], steps: int, budget_s: float
    ) -> Curve:
        batches = {spans: Batch(spans, self._page, self._pages, steps) for spans in self._affordable(found, steps)}
        ways = {spans: partial(self._seconds, batch) for spans, batch in batches.items()}
        times = rounds(ways, budget_s, warm=False)
        points = [Point(terms(spans), spread([t / steps for t in taken])) for spans, taken in times.items()]
        return Curve(fit([point.terms for point in points], [point.time.median for point in points]), points)

    def _affordable(self, found: list[Spans], steps: int) -> list[Spans]:
        """Once each, which warms up; cheap ones first, and none that must take longer than one that took too long."""
        kept: list[Spans] = []
        for spans in sorted(found, key=lambda spans: prefill_terms(spans)["c"]):
            kept.append(spans)
            if self._seconds(Batch(spans, self._page, self._pages, steps)) > MOST_S:
                break
        return kept

    def _seconds(self, batch: Batch) -> float:
        return self._rig.busy_s(self._rig.compute(batch))


def _near(rng: random.Random, mean: int) -> int:
    """A length around the mean: between half and one and a half."""
    return round(mean * rng.uniform(0.5, 1.5))
