"""Files of a question: results.json, figure.png, answer.md; and the README that lists the answers.

Rules of this file
- All are functions of the question and its results, but for `machine`, which says where and when they were got.
- The figure carries the hash of the results it was drawn from: a test needs no pixels to see that it is stale.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hicache_sim.report.plots import STYLE

from .question import FOLDER, Found, Question, command

RESULTS, FIGURE, ANSWER = "results.json", "figure.png", "answer.md"
PACKAGES = ("hicache", "simpy", "numpy", "matplotlib")


def machine(took_s: float) -> dict[str, Any]:
    """Where the results were got. They do not depend on it."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} logical CPUs",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "took_s": round(took_s, 1),
    }


def write(question: Question, found: Found, where: Mapping[str, Any]) -> None:
    """All files of one folder. `where`: what `machine` said when the results were got."""
    folder = question.folder
    results = {
        "question": question.title,
        "machine": where,
        "cases": {
            name: {"command": command(question.cases[name]), "figures": dict(figures)}
            for name, figures in found.items()
        },
    }
    (folder / RESULTS).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    with mpl.rc_context({**STYLE, "savefig.dpi": 150}):
        canvas = Figure(figsize=question.size_in, layout="constrained")
        FigureCanvasAgg(canvas)
        question.draw(found, canvas)
        canvas.savefig(folder / FIGURE, metadata={"Description": digest(found)})
    (folder / ANSWER).write_text(answer_page(question, results), encoding="utf-8")


def read(question: Question) -> dict[str, Any]:
    """What results.json holds."""
    results: dict[str, Any] = json.loads((question.folder / RESULTS).read_text(encoding="utf-8"))
    return results


def figures_of(results: Mapping[str, Any]) -> Found:
    return {name: case["figures"] for name, case in results["cases"].items()}


def digest(found: Found) -> str:
    """Of the figures, whoever wrote them."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def answer_page(question: Question, results: Mapping[str, Any]) -> str:
    """answer.md."""
    found, where = figures_of(results), results["machine"]
    first = next(iter(results["cases"].values()))["command"]
    packages = ", ".join(f"{name} {number}" for name, number in where["packages"].items())
    lines = [
        f"# {question.title}",
        "",
        f"**{question.answer(found)}**",
        "",
        f"![{question.title}]({FIGURE})",
        "",
        f"Asked in: {question.asked}",
        "",
        f"Replayed: {question.setting}",
        "",
        *_table(question, found),
        "",
        f"Again: `python -m reports.questions {question.name}`; one case by hand, here the first (the others are in",
        f"[{RESULTS}]({RESULTS})):",
        "",
        "```",
        first,
        "```",
        "",
        f"{where['date']}; {where['system']}; Python {where['python']}; {packages}.",
        f"{len(found)} replays in {where['took_s']:g} s. Simulated and deterministic (seed {_seed(question)}): the",
        "machine does not change the figures. Compared with a real server only where the text says so.",
    ]
    return "\n".join(lines) + "\n"


def _seed(question: Question) -> int:
    return next(iter(question.cases.values())).seed


def _table(question: Question, found: Found) -> list[str]:
    headings = [heading for heading, _ in question.columns.values()]
    lines = ["| case | " + " | ".join(headings) + " |", "|---|" + "---:|" * len(headings)]
    for name, figures in question.rows(found).items():
        cells = [_cell(figures[column], form) for column, (_, form) in question.columns.items()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)


def write_readme(questions: Iterable[Question]) -> None:
    """The answers side by side."""
    lines = [
        "# Questions",
        "",
        "Asked in public, answered by replays. `make questions` runs them all again,",
        "`python -m reports.questions NAME` one of them.",
        "",
    ]
    for question in questions:
        answer = question.answer(figures_of(read(question)))
        lines += [f"## [{question.title}]({question.name}/{ANSWER})", "", answer, ""]
    (FOLDER / "README.md").write_text("\n".join(lines), encoding="utf-8")
