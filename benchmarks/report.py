"""`reports/speed/`: what was measured, where, how, and what it means.

Rules of this file
- Every sentence and every figure comes from the tables of this run; nothing is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .flat import COST
from .hotspots import OTHER
from .measure import OURS, Table, text
from .targets import Tables, verdicts
from .timed import FILES, L1_ONLY, PROCESS

CURVE = "curve.png"
HEAD = """# Speed

Measured by `{command}`, as `make bench` does; the programs are in `benchmarks/`.

Figures are from CPU seconds (user and system) of fresh processes, one thread each; where a command ran several times:
the median (lowest to highest). Programs that are compared took turns on the same input. Where the notes say that both
sides agree, this was checked.
"""


def write(folder: Path, tables: Tables, about: Mapping[str, str], command: str) -> None:
    """results.json, report.md and the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    reached = verdicts(tables)
    results = {"about": about, "command": command, "targets": reached.rows}
    results |= {name: asdict(table) for name, table in tables.items()}
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    draw(folder / CURVE, tables["flat"])
    parts = [HEAD.format(command=command), bullets(about), "## Targets", text(reached), meaning(tables)]
    for table in tables.values():
        parts += [f"## {table.title}", text(table)]
        if table.name == "flat":
            parts.append(f"![CPU and memory over the length of the stream]({CURVE})")
        parts += [lines(table.notes), commands(table)]
    (folder / "report.md").write_text("\n\n".join(part.rstrip() for part in parts if part) + "\n")


def bullets(about: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {what}" for name, what in about.items())


def lines(notes: list[str]) -> str:
    return "\n".join(f"- {note}" for note in notes)


def commands(table: Table) -> str:
    seeds = ", ".join(f"{name} {seed}" for name, seed in table.seeds.items())
    return f"Seeds: {seeds}. Commands:\n\n```\n" + "\n".join(table.commands) + "\n```"


def meaning(tables: Tables) -> str:
    """What bounds the timed replay, and how it compares."""
    sentences = ["## What bounds the timed replay"]
    row = tables["timed"].find(case=FILES.name)
    assert row is not None
    sentences.append(
        f"A request on three levels takes {row['events/request']:.1f} SimPy events, {row['steps/request']:.2f} steps "
        f"of the engine and {row['operations/request']:.1f} operations. " + _spent(tables["hotspots"])
    )
    sentences.append(_dynamo(tables["timed"]))
    return "\n\n".join(sentence for sentence in sentences if sentence)


def _spent(profile: Table) -> str:
    """The modules that take the most, and how little that is of the whole."""
    rows = [row for row in profile.rows if row["module"] != OTHER]
    named = ", ".join(f"`{row['module']}` {row['share %']:.0f} %" for row in rows[:5])
    return f"Under a profiler the pure Python build spends the most in {named}. {' '.join(profile.notes[:1])}"


def _dynamo(table: Table) -> str:
    """Our L1-only replay over Dynamo's, by process."""
    rows = [row for row in table.rows if row["case"] == L1_ONLY]
    rates = {row["who"]: row[PROCESS]["median"] for row in rows}
    theirs = [rate for who, rate in rates.items() if not who.startswith(OURS)]
    if not theirs:
        return ""
    ratios = ", ".join(f"{rate / theirs[0]:.2f} ({who})" for who, rate in rates.items() if who.startswith(OURS))
    return f"On L1 alone, whole process over whole process, ours does {ratios} times the requests of Dynamo's replay."


def draw(path: Path, table: Table) -> None:
    """CPU and peak memory over the length of the stream."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    cost, memory = figure.subplots(1, 2)
    for kind, marker in (("untimed", "o"), ("timed", "s")):
        rows: list[dict[str, Any]] = [row for row in table.rows if row["replay"] == kind and row["peak MiB"]]
        requests = [row["requests"] for row in rows]
        cost.plot(requests, [row[COST] for row in rows], marker=marker, label=kind)
        memory.plot(requests, [row["peak MiB"] for row in rows], marker=marker, label=kind)
    for axes, title in ((cost, "CPU of the replay, µs a request"), (memory, "peak memory, MiB")):
        axes.set(xscale="log", xlabel="requests in the stream", title=title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
