"""Real memory: copies, files and fences in one run, into `reports/memory/`: `python -m benchmarks.memory [--quick]`.

Rules of this file
- Every figure is a ratio to what the machine can do, taken in the same run, or a time of its own; each benchmark says
  how. Nothing in the report is written by hand.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from hicache_ref.data.storage.file import FileClient

from . import storage
from .copies import TARGET, copies
from .fences import fences
from .machine import load, machine
from .measure import ROOT, Row, Table, text
from .report import bullets, lines
from .scale import QUICK, WHOLE, Scale, options, tell

HEAD = """# Real memory

Measured by `{command}`, as `make bench` does; the programs are in `benchmarks/`.
"""
QUICK_ROUNDS, ROUNDS = 3, 15


@dataclass(frozen=True)
class Target:
    """ratios: of the rows that count. Each has to reach `wanted`."""

    figure: str
    wanted: float
    ratios: Callable[[Mapping[str, Table]], list[float]]

    def row(self, tables: Mapping[str, Table]) -> Row:
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


def _copies(way: str) -> Callable[[Mapping[str, Table]], list[float]]:
    def ratios(tables: Mapping[str, Table]) -> list[float]:
        rows = [row for row in tables["copies"].rows if row["page KiB"] >= 64 and row["pages"] != "scattered"]
        return [row[way] for row in rows]

    return ratios


def _files(column: str, call: str) -> Callable[[Mapping[str, Table]], list[float]]:
    def ratios(tables: Mapping[str, Table]) -> list[float]:
        return [row[column]["median"] for row in tables["storage"].rows if row["call"] == call]

    return ratios


TARGETS = (
    Target("L2 to L1 over memcpy, pages adjacent on one side at least", TARGET, _copies("load")),
    Target("L1 to L2 over memcpy, pages adjacent on one side at least", TARGET, _copies("backup")),
    Target("files written, over bare files", storage.BARE_SHARE, _files("vs bare", "put")),
    Target("files read, over bare files", storage.BARE_SHARE, _files("vs bare", "get")),
    Target("files written, times HiCacheFile's way", storage.UPSTREAM_TIMES, _files("vs upstream", "put")),
    Target("files read, times HiCacheFile's way", storage.UPSTREAM_TIMES, _files("vs upstream", "get")),
)


def verdicts(tables: Mapping[str, Table]) -> Table:
    return Table("targets", "Targets", [target.row(tables) for target in TARGETS])


def measure(scale: Scale, rounds: int) -> dict[str, Table]:
    """All tables, by name."""
    tables = {"copies": copies(scale)}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scale.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scale.work) as folder:
            tables["storage"] = storage.measure(Path(folder) / "pages", rounds, FileClient.THREADS)
    finally:
        torch.set_num_threads(before)
    tables["fences"] = fences(scale)
    return tables


def write(folder: Path, tables: Mapping[str, Table], about: Mapping[str, str], command: str) -> None:
    """results.json and report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    reached = verdicts(tables)
    results = {"about": dict(about), "command": command, "targets": reached.rows}
    results |= {name: asdict(table) for name, table in tables.items()}
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    parts = [HEAD.format(command=command), bullets(about), "## Targets", text(reached)]
    for table in tables.values():
        parts += [f"## {table.title}", text(table), lines(table.notes)]
    (folder / "report.md").write_text("\n\n".join(part.rstrip() for part in parts if part) + "\n")


def run(folder: Path, quick: bool) -> None:
    """Measure, tell, and write the report."""
    about, before = machine(), load()
    about["packages"] += f", torch {torch.__version__}"
    del about["compared with"], about["builds"]
    tables = measure(QUICK if quick else WHOLE, QUICK_ROUNDS if quick else ROUNDS)
    for table in [*tables.values(), verdicts(tables)]:
        tell(table)
    about["load averages"] = f"{before} before; {load()} after"
    write(folder, tables, about, "python -m benchmarks.memory" + " --quick" * quick)
    print(f"\nwritten to {folder}")


def main() -> None:
    parser = options(argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__))
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "memory", metavar="FOLDER")
    arguments = parser.parse_args()
    run(arguments.out, arguments.quick)


if __name__ == "__main__":
    main()
