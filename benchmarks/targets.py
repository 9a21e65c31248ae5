"""What was asked for, and what of it was reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import flat, match_insert, timed, untimed
from .measure import OURS, Row, Table

Tables = Mapping[str, Table]
FLAT = 1.25
"""Costs that differ by less count as equal, on a machine that others use too."""
FULL, MILLION = 10_000, 1_000_000
"""Lengths of streams that are compared; after the first, the caches are full."""


@dataclass(frozen=True)
class Target:
    """figure: what is asked for. measured: each of our builds' figures, of which the best counts. most: a limit."""

    figure: str
    wanted: float
    measured: Callable[[Tables], list[float]]
    most: bool = False

    def row(self, tables: Tables) -> Row:
        values = self.measured(tables)
        value = (min if self.most else max)(values, default=None)
        reached = value is not None and (value <= self.wanted if self.most else value >= self.wanted)
        return {
            "figure": self.figure,
            "wanted": ("at most " if self.most else "at least ") + f"{self.wanted:,g}",
            "measured": value,
            "verdict": "not measured" if value is None else "reached" if reached else "falls short",
        }


def column(table: str, name: str, **values: Any) -> Callable[[Tables], list[float]]:
    """Our builds' figures (medians) in the rows that have these values."""

    def measured(tables: Tables) -> list[float]:
        rows = [row for row in tables[table].rows if row["who"].startswith(OURS)]
        figures = [row[name] for row in rows if all(row[key] == values[key] for key in values)]
        return [figure["median"] if isinstance(figure, dict) else figure for figure in figures if figure is not None]

    return measured


def growth(kind: str, name: str) -> Callable[[Tables], list[float]]:
    """A figure of the stream of a million over that of a stream which just fills the caches."""

    def measured(tables: Tables) -> list[float]:
        rows = [row for row in tables["flat"].rows if row["replay"] == kind and row[name] is not None]
        figures = {row["requests"]: row[name] for row in rows}
        return [figures[MILLION] / figures[FULL]] if {FULL, MILLION} <= figures.keys() else []

    return measured


FILES = timed.FILES.name
TARGETS = (
    Target("timed: requests per CPU second of the replay", 5000, column("timed", timed.REPLAY, case=FILES)),
    Target("the same, as an aim", 10_000, column("timed", timed.REPLAY, case=FILES)),
    Target("timed: requests per CPU second of the process", 3500, column("timed", timed.PROCESS, case=FILES)),
    Target("timed: peak memory, MiB", 300, column("timed", "peak MiB", case=FILES), most=True),
    Target("untimed: requests per CPU second of the replay", 12_000, column("untimed", timed.REPLAY, trace="speed")),
    Target("untimed: times the real HiRadixCache", 30, column("untimed", untimed.TIMES, trace="conversation")),
    Target("match + insert, page 1: times the real RadixCache", 3, column("match_insert", match_insert.TIMES, page=1)),
    Target(
        "match + insert, page 64: times the real RadixCache", 3, column("match_insert", match_insert.TIMES, page=64)
    ),
    Target(
        f"untimed: CPU of a request, of {MILLION:,} over of {FULL:,}", FLAT, growth("untimed", flat.COST), most=True
    ),
    Target(f"untimed: peak memory, {MILLION:,} over {FULL:,}", FLAT, growth("untimed", "peak MiB"), most=True),
    Target(f"timed: CPU of a request, of {MILLION:,} over of {FULL:,}", FLAT, growth("timed", flat.COST), most=True),
    Target(f"timed: peak memory, {MILLION:,} over {FULL:,}", FLAT, growth("timed", "peak MiB"), most=True),
)


def verdicts(tables: Tables) -> Table:
    """What of the targets this run has measured."""
    return Table("targets", "Targets", [target.row(tables) for target in TARGETS])
