"""What the page says of runs: key figures, what was asked, and their figures beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from . import asked, tiles
from .compare import together
from .kinds import Figure
from .kinds.base import share_scale
from .load import RunData
from .page import Panel, Section, beside
from .run_figures import TIMED, misses, shares_of, ttft


def sections(runs: Sequence[RunData]) -> list[Section]:
    """Key figures, what was asked, the comparison of several, then figure by figure, runs beside each other."""
    if not runs:
        return []
    return [*_key_figures(runs), _asked(runs), *_together(runs), *_figures(runs)]


def _asked(runs: Sequence[RunData]) -> Section:
    data = {
        "runs": [run.label for run in runs],
        "facts": asked.facts(runs),
        "flags": asked.flags(runs),
        "changes": asked.changes(runs),
    }
    return Section("asked", "What was asked", template="asked.html", data=data)


def _key_figures(runs: Sequence[RunData]) -> list[Section]:
    if len(runs) == 1:
        return [Section("figures", "Key figures", template="tiles.html", data=tiles.tiles(runs[0]))]
    data = {"runs": [run.label for run in runs], "rows": tiles.differences(runs)}
    what = " ".join([f"Differences are to the first run, {runs[0].label}.", *_who_is_who(runs)])
    return [Section("figures", "Key figures", what, "differences.html", data)]


def _who_is_who(runs: Sequence[RunData]) -> list[str]:
    """A sentence a run: its flags, as far as they are not all runs'."""
    differing = [row for row in asked.flags(runs) if row.differs]
    columns = [", ".join(f"{row.name} {row.values[at]}" for row in differing) for at in range(len(runs))]
    return [f"{run.label}: {words}." for run, words in zip(runs, columns, strict=True) if words]


def _together(runs: Sequence[RunData]) -> list[Section]:
    figures = together(runs)
    if not figures:
        return []
    panels = [Panel(figure, f"together-{figure.name}") for figure in figures]
    return [Section("together", "The runs together", panels=panels)]


TOGETHER = (ttft, misses)
"""Figures that hold several runs as well as one: where there are several, those of single runs say nothing more."""


def _figures(runs: Sequence[RunData]) -> list[Section]:
    several = sum(run.timed for run in runs) > 1
    sections = []
    for make in TIMED:
        if several and make in TOGETHER:
            continue
        made = [(run.label, make(run)) for run in runs if run.timed]
        drawn = [(label, figure) for label, figure in made if not figure.empty]
        if drawn:
            scaled: list[Figure] = share_scale([figure for _, figure in drawn])
            sections.append(beside(drawn[0][1].name, list(zip([label for label, _ in drawn], scaled, strict=True))))
    if len(runs) == 1 and not runs[0].timed:
        sections.append(beside("shares", [(runs[0].label, shares_of(list(runs)))]))
    return sections
