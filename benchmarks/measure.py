"""Run a command, know what it took; and the tables that benchmarks return."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FAST_PYTHON = "HICACHE_FAST_PYTHON"
"""Environment variable: the interpreter of a compiled build, if there is one."""

OURS = "hicache"
"""Under `who`, rows of all tables say whose figures they are; ours begin like this."""

Row = dict[str, Any]


@dataclass
class Table:
    """What a benchmark found. Rows of one table have the same keys in the same order, None where there is no value.

    seeds: of everything random in it. commands: the lines that were run, from the root of the checkout.
    """

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    def ran(self, argv: Sequence[str]) -> None:
        line = show(argv)
        if line not in self.commands:
            self.commands.append(line)

    def find(self, **values: Any) -> Row | None:
        """The first row that has these values."""
        return next((row for row in self.rows if all(row.get(key) == values[key] for key in values)), None)


@dataclass(frozen=True)
class Usage:
    """What a process took. cpu_s: user and system, of all its threads."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    output: str

    @property
    def json(self) -> Any:
        return json.loads(self.output)


class TimedOut(RuntimeError):
    """A process was ended because it took too long."""


def run(argv: Sequence[str], timeout_s: float | None = None) -> Usage:
    """Run `argv` in the root of the checkout. RuntimeError: it failed, with the end of what it said."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began_s = time.perf_counter()
        process = subprocess.Popen(argv, stdout=output, stderr=errors, cwd=ROOT, env=_environment())
        timer = Timer(timeout_s or 1e6, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        late = not timer.is_alive()
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began_s
        output.seek(0)
        errors.seek(0)
        if late:
            raise TimedOut(f"ended after {timeout_s:.0f} s: {show(argv)}")
        if process.returncode:
            raise RuntimeError(f"{show(argv)}: exit code {process.returncode}: {errors.read()[-2000:]}")
        return Usage(usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss / 1024, output.read())


def _environment() -> dict[str, str]:
    """Ours, with one thread for every library and no path that could put other sources before an installed build."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | threads


@dataclass(frozen=True)
class Build:
    """An installed `hicache`."""

    name: str
    python: str

    def replay(self, *arguments: str) -> list[str]:
        """The command `hicache replay`, which prints its summary."""
        return [str(Path(self.python).parent / "hicache"), "replay", *arguments, "--json"]


def builds() -> list[Build]:
    """This one, and the compiled one if there is any; the fastest last."""
    fast = os.environ.get(FAST_PYTHON)
    own = Build(OURS, sys.executable)
    return [own, Build(OURS + ", compiled", str(Path(fast).absolute()))] if fast else [own]


def show(argv: Sequence[str]) -> str:
    """A command as one would type it in the root of the checkout, with the environment it lives in switched on."""
    words = [os.path.relpath(word, ROOT) if word.startswith(str(ROOT)) else word for word in argv]
    known = {"hicache": "hicache", "python": "python", "python3": "python"}
    words[0] = known.get(Path(argv[0]).name, words[0])
    return shlex.join(words)


def fresh(folder: Path) -> str:
    """An empty place for a run's files; whatever was there is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    return str(folder)


def spread(values: Iterable[float]) -> Row:
    """The median, and how far single runs were from it."""
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "low": ordered[0], "high": ordered[-1]}


def text(table: Table) -> str:
    """A table in Markdown, which a terminal shows just as well."""
    if not table.rows:
        return "(no rows)"
    names = list(table.rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(not isinstance(row[name], str) for row in table.rows) for name in names]
    lines = [
        "| "
        + " | ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True))
        + " |"
        for line in cells
    ]
    rule = "|" + "|".join("-" * (width + 1) + (":" if r else "-") for width, r in zip(widths, right, strict=True)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict) and value["low"] == value["high"]:
        return _cell(value["median"])
    if isinstance(value, dict):
        return f"{_cell(value['median'])} ({_cell(value['low'])} to {_cell(value['high'])})"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
