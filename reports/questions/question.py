"""What a question is: replays to run, figures to keep, a drawing, an answer.

Rules of this file
- A case is an `Ask`, so that it can be run here, by a sweep, or from the command line; `command` writes that line.
- Figures are rounded to nine digits before anyone sees them: what is stored is what is drawn and said.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure

from hicache_ref.config.server_args import FLAGS
from hicache_sim.api import Options, Result, replay
from hicache_sim.sweeps.ask import Ask
from hicache_sim.sweeps.metrics import figures

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

Found = Mapping[str, Mapping[str, Any]]
"""Figures by case."""


class Question(ABC):
    """One folder. `cheap`: cases that the tests rerun. `columns`: figure to (heading, format) in answer.md."""

    name: str
    title: str
    asked: str
    """Who asked, where, with what numbers."""
    setting: str
    """What is replayed, and what was left out or scaled."""
    cases: ClassVar[Mapping[str, Ask]]
    cheap: tuple[str, ...]
    columns: ClassVar[Mapping[str, tuple[str, str]]]
    size_in: tuple[float, float] = (9.0, 3.8)
    tables: bool = False
    """`measure` looks at the requests one by one."""

    def measure(self, result: Result) -> dict[str, Any]:
        """What is kept of one case; by default the figures that `columns` names."""
        known = figures(result)
        return {name: known[name] for name in self.columns}

    @abstractmethod
    def draw(self, found: Found, canvas: Figure) -> None:
        """The figure."""

    @abstractmethod
    def answer(self, found: Found) -> str:
        """Two sentences. AssertionError: the results no longer say so."""

    def rows(self, found: Found) -> Mapping[str, Mapping[str, Any]]:
        """What the table shows: cases, unless a question has shorter ones."""
        return found

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def run(self, case: str) -> dict[str, Any]:
        """Replay one case. Deterministic."""
        ask = self.cases[case]
        if (ROOT / ask.trace).is_file():  # named from the root, so that its command can be typed there
            ask = replace(ask, trace=str(ROOT / ask.trace))
        workload, schedule = ask.workload()
        options = Options(limit=ask.limit, sequential=ask.sequential, keep=self.tables)
        measured: dict[str, Any] = rounded(self.measure(replay(workload, schedule, options, ask.config())))
        return measured


def rounded(value: Any) -> Any:
    """Floats to nine digits, in lists and mappings too."""
    match value:
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {name: rounded(each) for name, each in value.items()}
        case list():
            return [rounded(each) for each in value]
    return value


_FLAG_NAMES = {flag.field: flag for flag in FLAGS}


def command(ask: Ask) -> str:
    """The line that replays `ask`, to be typed in the repository."""
    words = ["hicache", "replay", ask.trace]
    for name, value in ask.flags.items():
        flag = _FLAG_NAMES[name]
        words += [flag.name] if value is True else [flag.name, str(value)]
    defaults = Ask(ask.trace)
    for name in ("profile", "hardware", "store", "seed", "limit", "schedule", "speed", "arrivals", "block_tokens"):
        if getattr(ask, name) != getattr(defaults, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(ask, name))]
    words += [f"--{name}" for name in ("untimed", "sequential") if getattr(ask, name)]
    numbers = {
        "--set": ask.parameters,
        "--rule": ask.rules,
        "--hardware-set": ask.hardware_numbers,
        "--store-set": ask.store_numbers,
    }
    for option, given in numbers.items():
        for name, value in given.items():
            words += [option, f"{name}={value}"]
    return shlex.join(words)
