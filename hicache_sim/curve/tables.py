"""A study for people: the tables that `hicache curve` prints. Only formatting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .study import Study


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
    table = Table(
        title="Prompt pages hit, %", caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    names = ["L1 tokens", "L2/L1", "LRU: L1", *(["± 2 s.e."] if sampled else []), "incl", "excl"]
    for name in (*names, "best: L1", "L1+L2", "link", "L3, link"):
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


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


def _strategies(study: Study) -> Table:
    """One row a strategy and size."""
    rate = study.strategy_rows[0]["sample_rate"]
    of = "" if rate == 1 else f" (replayed on a sample of {rate:.3g} of the pages)"
    caption = "gap closed: of the way from lru with write_through to offline-best. †: reads the future"
    table = Table(
        title=f"Strategies{of}", caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    for name in ("eviction", "write"):
        table.add_column(name)
    for name in ("L1 tokens", "L2/L1", "hit %", "of it L1", "lru %", "best %", "gap closed", "L2 written", "read"):
        table.add_column(name, justify="right")
    for row in study.strategy_rows:
        closed = row["gap_closed"]
        table.add_row(
            row["eviction"] + ("†" if row["reads_future"] else ""),
            row["write"],
            f"{row['l1_tokens']:,}",
            f"{row['l2_ratio']:g}",
            f"{100 * row['rate']:.2f}",
            f"{100 * row['l1_rate']:.2f}",
            f"{100 * row['lru_rate']:.2f}",
            f"{100 * row['best_rate']:.2f}",
            "" if math.isnan(closed) else f"{100 * closed:+.1f} %",
            f"{row['l2_written_pages']:,.0f}",
            f"{row['l2_read_pages']:,.0f}",
        )
    return table
