"""From folders to a report: an HTML page, or figures for papers.

Rules of this file
- Runs come first, then sweeps; what several runs have in common stands before what each did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import run_figures, run_sections, sweep_figures, sweep_sections
from .compare import together
from .load import RunData, is_sweep, labels, load_run, load_sweep
from .page import render
from .plots import save
from .sweep_figures import SweepData


@dataclass(frozen=True)
class Report:
    """Runs and sweeps, read."""

    runs: Sequence[RunData]
    sweeps: Sequence[SweepData] = ()

    def page(self) -> str:
        """The HTML file."""
        sections = run_sections.sections(self.runs)
        for number, data in enumerate(self.sweeps):
            sections += sweep_sections.sections(data, number, len(self.runs) + len(self.sweeps) > 1)
        return render(*self._title(), sections)

    def save_figures(self, folder: Path) -> list[Path]:
        """PNG and PDF of every figure: a folder for each run or sweep, unless there is one only."""
        named = [(run.label, run_figures.all_of(run)) for run in self.runs]
        named += [(data.label, sweep_figures.all_of(data)) for data in self.sweeps]
        if len(named) == 1:
            return save(named[0][1], folder)
        written = save(together(self.runs), folder)
        for label, figures in named:
            written += save(figures, folder / label.replace("/", "-"))
        return written

    def _title(self) -> tuple[str, str]:
        names = ", ".join([*(run.label for run in self.runs), *(data.label for data in self.sweeps)])
        workloads = [run.summary["workload"]["name"] for run in self.runs]
        workloads += [trace for data in self.sweeps for trace in data.sweep.asked["traces"]]
        models = [str(run.summary["config"].get("model", "")) for run in self.runs]
        return f"HiCache: {names}", " · ".join(dict.fromkeys(filter(None, [*workloads, *models])))


def write_page(folders: Sequence[Path], at: Path | None = None) -> Path:
    """The page about `folders`; otherwise report.html in the first of them. ReportError, OSError."""
    page = at or folders[0] / "report.html"
    text = read(folders).page()
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return page


def read(folders: Sequence[Path]) -> Report:
    """ReportError: a folder that cannot be read."""
    runs, sweeps = [], []
    for folder, label in zip(folders, labels(folders), strict=True):
        if is_sweep(folder):
            sweeps.append(SweepData(label, load_sweep(folder)))
        else:
            runs.append(load_run(folder, label))
    return Report(runs, sweeps)
