"""What a validation looks like: tables for a terminal and for Markdown, a page with the curves of both worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..report.compare import together
from ..report.load import load_run
from ..report.page import Panel, Section, render
from ..report.plots import save
from ..report.run_sections import sections
from .compare import Row

COLUMNS = ("figure", "real, median", "real, lowest to highest", "simulated", "difference", "allowed", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""
    scale, real = row.figure.scale, row.real
    return (
        f"{row.figure.group}: {row.figure.name}",
        scale.value(row.median),
        f"{scale.value(min(real))} to {scale.value(max(real))}",
        scale.value(row.simulated),
        _signed(row),
        _allowed(row),
        "" if row.allowed is None else ("within" if row.passes else "BEYOND"),
    )


def _unit(row: Row) -> str:
    return " %" if row.figure.scale.relative else " points"


def _signed(row: Row) -> str:
    return f"{row.difference * 100:+.2f}{_unit(row)}"


def _allowed(row: Row) -> str:
    if row.allowed is None:
        return ""
    return f"{max(row.allowed, row.spread) * 100:.2f}{_unit(row)}" + (" (spread)" if row.spread > row.allowed else "")


def show(rows: Sequence[Row], console: Console) -> None:
    """In a terminal."""
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row), style=None if row.passes else "bold")
    console.print(table)


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    return "\n".join([*lines, *("| " + " | ".join(cells(row)) + " |" for row in rows)])


def write(folder: Path, rows: Sequence[Row], facts: Mapping[str, Any], real: Sequence[Path], simulated: Path) -> None:
    """`validation.html`, and its main figures as PNG. Reads the runs' folders."""
    runs = [load_run(each, f"real {at + 1}") for at, each in enumerate(real)] + [load_run(simulated, "simulated")]
    title = f"HiCache, real and simulated: {facts['workload']}"
    subtitle = f"{facts['machine']}; {facts['line']}"
    first = Section("validation", "Real and simulated", _help(rows), "validation.html", _table(rows))
    figures = [each for each in together(runs) if each.name in SHOWN]
    curves = Section("curves", "Both curves", panels=[Panel(each, f"both-{each.name}") for each in figures])
    rest = [section for section in sections(runs) if section.anchor != "together"]
    page = render(title, subtitle, [first, curves, *rest])
    (folder / "validation.html").write_text(page, encoding="utf-8")
    save(figures, folder, formats=("png",))


SHOWN = ("ttft", "hit-rates", "misses")


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    return {"table": {"columns": COLUMNS, "rows": [cells(row) for row in rows]}}


def _help(rows: Sequence[Row]) -> str:
    limited = [row for row in rows if row.allowed is not None]
    within = sum(row.passes for row in limited)
    return (
        f"{within} of {len(limited)} figures that have a tolerance are within it. The simulated figure is compared "
        "with the median of the real runs; allowed is the tolerance, or how far the real runs lie from their own "
        "median if that is more."
    )
