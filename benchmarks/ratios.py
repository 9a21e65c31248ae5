"""Figures that are ratios, what was asked of them, and the folder in which a run of them is reported.

Rules of this file
- Every sentence and every figure comes from the tables of the run; nothing is written by hand.
- What cannot be measured here is a note in the report, not an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .machine import load, machine
from .measure import Row, Table, text
from .report import bullets, commands, lines
from .scale import tell

Tables = Mapping[str, Table]


@dataclass(frozen=True)
class Target:
    """ratios: of the rows that count. Each has to reach `wanted`."""

    figure: str
    wanted: float
    ratios: Callable[[Tables], list[float]]

    def row(self, tables: Tables) -> Row:
        values = sorted(self.ratios(tables))
        reached = sum(value >= self.wanted for value in values)
        return {
            "figure": self.figure,
            "wanted": f"at least {self.wanted:g}",
            "lowest": values[0],
            "median": values[len(values) // 2],
            "reached by": f"{reached} of {len(values)}",
            "verdict": "reached" if reached == len(values) else "falls short",
        }


@dataclass(frozen=True)
class Report:
    """A folder of results.json and report.md. head: its first lines; `{command}` is what was typed."""

    head: str
    command: str
    packages: Sequence[str] = ()
    """That a figure depends on, beside those of every report."""

    def run(self, folder: Path | None, measure: Callable[[], Tables], targets: Callable[[Tables], Table]) -> None:
        """Measure, tell and, in a folder, write."""
        about, before = self._about(), load()
        tables = measure()
        reached = targets(tables)
        if reached.rows:
            tell(reached)
        if folder is not None:
            about["load averages"] = f"{before} before; {load()} after"
            self.write(folder, tables, reached, about)
            print(f"\nwritten to {folder}")

    def write(self, folder: Path, tables: Tables, reached: Table, about: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        results = {"about": dict(about), "command": self.command, "targets": reached.rows}
        results |= {name: asdict(table) for name, table in tables.items()}
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        parts = [self.head.format(command=self.command), bullets(about)]
        parts += ["## Targets", text(reached), lines(reached.notes)] if reached.rows else []
        for table in tables.values():
            parts += [f"## {table.title}", text(table), lines(table.notes), commands(table) if table.commands else ""]
        (folder / "report.md").write_text("\n\n".join(part.rstrip() for part in parts if part) + "\n")

    def _about(self) -> dict[str, str]:
        about = machine()
        del about["compared with"], about["builds"]
        about["packages"] += "".join(f", {name} {found}" for name in self.packages if (found := _version(name)))
        return about


def verdicts(targets: Sequence[Target], tables: Tables) -> Table:
    """What of the targets was measured, and was reached."""
    return Table("targets", "Targets", [target.row(tables) for target in targets if target.ratios(tables)])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
