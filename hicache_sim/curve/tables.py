"""A study for people: the tables that `hicache curve` prints. Only formatting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..report.units import COUNT

if TYPE_CHECKING:
    from .study import Study

LEAST_WAY = 0.001
"""From LRU to offline-best, in hit rate: of less, shares say nothing."""


def tables(study: Study) -> Iterator[RenderableType]:
    yield _head(study)
    yield _levels(study)
    if study.strategy_rows:
        yield _strategies(study)


def _head(study: Study) -> Text:
    facts = study.facts
    sampled = "" if facts["rate"] == 1 else f" · a sample of {facts['rate']:.3g} of the pages"
    return Text(
        f"{facts['requests']:,} requests · {facts['references']:,} prompt pages of {facts['page_tokens']} tokens, "
        f"{facts['distinct_pages']:,} distinct · an infinite cache hits {facts['ceiling_rate']:.1%}{sampled}"
    )


def _levels(study: Study) -> Table:
    """One row a size of L1 and of L2: LRU, and offline-best at the same sizes."""
    sampled = study.facts["rate"] < 1
    caption = (
        "LRU over pages; HiCache evicts whole nodes and hits a little less: --eviction lru.\n"
        "incl: L2 repeats what is in L1; excl: no page on both levels.\n"
        "link: best with L2 behind its link, data there when the request arrives;\n"
        "L3: the same with a store that keeps everything. *: too small for the longest prompt"
    )
    table = _table("Prompt pages hit, %", caption)
    names = ["L1 tokens", "L2/L1", "LRU:\nL1", *(["± 2\ns.e."] if sampled else []), "incl", "excl"]
    for name in (*names, "best:\nL1", "L1+L2", "link", "L3,\nlink"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = None
    for level, bound in zip(study.level_rows, study.bound_rows, strict=True):
        new = level["l1_pages"] != shown
        shown = level["l1_pages"]
        star = "" if level["fits_longest"] else " *"
        error = [f"{200 * level['error']:.1f}" if new else ""] if sampled else []
        table.add_row(
            f"{level['l1_tokens']:,}{star}" if new else "",
            f"{level['l2_ratio']:g}",
            _percent(level["l1_rate"]) if new else "",
            *error,
            _percent(level["inclusive_rate"]),
            _percent(level["exclusive_rate"]),
            _percent(bound["best_l1_rate"]) if new else "",
            _percent(bound["best_rate"]),
            _percent(bound["best_rate_bandwidth"]),
            _percent(bound["best_l3_rate_bandwidth"]),
        )
    return table


def _table(title: str, caption: str) -> Table:
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
    )


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


def _strategies(study: Study) -> Table:
    """One row a strategy, below the sizes that they share."""
    rate = study.strategy_rows[0]["sample_rate"]
    of = "" if rate == 1 else f" (replayed on a sample of {rate:.3g} of the pages)"
    caption = (
        "Beside the sizes: lru with write_through, offline-best. gap closed: of the way from the one to the other.\n"
        "L2 written, read: pages. †: reads the future"
    )
    table = _table(f"Strategies{of}", caption)
    table.add_column("", overflow="fold")
    for name in ("hit\n%", "of it\nL1", "gap\nclosed", "L2\nwritten", "L2\nread"):
        table.add_column(name, justify="right", no_wrap=True)
    for _, rows in groupby(study.strategy_rows, key=lambda row: (row["l1_tokens"], row["l2_ratio"])):
        for at, row in enumerate(rows):
            if at == 0:
                rates = f"{100 * row['lru_rate']:.2f} … {100 * row['best_rate']:.2f}"
                table.add_section()
                table.add_row(Text(f"L1 {COUNT(row['l1_tokens'])}, L2 {row['l2_ratio']:g} ×: {rates}", style="bold"))
            table.add_row(*_strategy(row))
    return table


def _strategy(row: Mapping[str, Any]) -> tuple[str, ...]:
    way = row["best_rate"] - row["lru_rate"]
    return (
        f"  {row['eviction']}{'†' if row['reads_future'] else ''}, {row['write']}",
        f"{100 * row['rate']:.2f}",
        f"{100 * row['l1_rate']:.2f}",
        f"{100 * row['gap_closed']:+.1f} %" if way >= LEAST_WAY else "",
        COUNT(row["l2_written_pages"]),
        COUNT(row["l2_read_pages"]),
    )
