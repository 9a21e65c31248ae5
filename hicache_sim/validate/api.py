"""The library behind `hicache validate`."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hicache_ref.account.summary import about

from .compare import Row, compare, record
from .page import markdown, write
from .runs import RealRun, run

LEAST_RUNS = 3
SIZES = ("page_tokens", "l1_tokens", "l2_tokens", "kv_bytes_per_token_per_rank")


class ValidateError(ValueError):
    """A validation that cannot be made. One line."""


@dataclass(frozen=True)
class Options:
    """out: folder for everything. runs: real ones. tolerances: by name of `figures.TOLERANCES`. tell: of each run."""

    out: Path
    runs: int = LEAST_RUNS
    tolerances: Mapping[str, float] = field(default_factory=dict)
    tell: Callable[[str], None] = field(default=lambda what: None)


class Machine(Protocol):
    """What is simulated, and how it was measured."""

    def before_run(self, out: Path, number: int, tell: Callable[[str], None]) -> None:
        """Called before each real run."""
        ...

    def measured(self, out: Path) -> tuple[str, Mapping[str, Any]]:
        """The calibration file, and what it says about the machine. After the last real run."""
        ...

    def simulate(self, folder: Path, hardware: str) -> Mapping[str, Any]:
        """The summary of the same configuration on it; the run's files go to the folder."""
        ...


@dataclass(frozen=True)
class Validation:
    """What was found. rows: every figure. facts: `validation.json` without them."""

    rows: list[Row]
    facts: dict[str, Any]

    @property
    def passes(self) -> bool:
        return all(row.passes for row in self.rows)


def validate(words: Sequence[str], machine: Machine, options: Options) -> Validation:
    """Real runs of `hicache run WORDS` beside a simulated one, on a machine measured before them, or between them.

    ValidateError: the two worlds did not serve the same configuration. RunError: a real run failed.
    """
    if options.runs < LEAST_RUNS:
        raise ValidateError(f"--runs {options.runs}: at least {LEAST_RUNS}, or their spread says nothing")
    options.out.mkdir(parents=True, exist_ok=True)
    real: list[RealRun] = []
    for number in range(1, options.runs + 1):
        machine.before_run(options.out, number, options.tell)
        options.tell(f"real run {number} of {options.runs}")
        real.append(run(words, options.out / f"real-{number}"))
    options.tell("simulating")
    hardware, about_it = machine.measured(options.out)
    simulated = machine.simulate(options.out / "simulated", hardware)
    for each in real:
        _check_same(each.summary, simulated, about_it)
    rows = compare([each.summary for each in real], simulated, options.tolerances)
    found = Validation(rows, _facts(words, real, about_it, options))
    _write(found, real, options.out)
    return found


def _check_same(real: Mapping[str, Any], simulated: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """One configuration, or there is nothing to compare."""
    pairs = {name: (simulated["config"][name], real["config"][name]) for name in SIZES}
    pairs["threads of torch"] = machine.get("threads"), str(real["config"].get("threads"))
    for name, (mine, other) in pairs.items():
        if mine is not None and mine != other:
            what = f"{name}: {other} in the real run, {mine} in the simulated one"
            raise ValidateError(f"{what}: calibrate with the flags and the environment of the run")


def _facts(
    words: Sequence[str], real: Sequence[RealRun], machine: Mapping[str, Any], options: Options
) -> dict[str, Any]:
    elsewhere = [each.elsewhere for each in real if each.elsewhere is not None]
    return {
        "hicache": about(),
        "workload": real[0].summary["workload"]["name"],
        "line": shlex.join(["hicache", "run", *words]),
        "machine": machine.get("machine", "unknown"),
        "calibration": dict(machine),
        "tolerances": dict(options.tolerances),
        "runs": [
            {
                "seconds": each.seconds,
                "processors others kept busy": each.elsewhere,
                "cpu_s": each.summary["run"].get("cpu_s"),
                "operations_sha256": each.summary["run"].get("operations_sha256"),
            }
            for each in real
        ],
        "processors others kept busy": statistics.median(elsewhere) if elsewhere else None,
    }


def _write(found: Validation, real: Sequence[RealRun], out: Path) -> None:
    content = {**found.facts, "passes": found.passes, "figures": [record(row) for row in found.rows]}
    (out / "validation.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (out / "validation.md").write_text(_report(found) + "\n", encoding="utf-8")
    write(out, found.rows, found.facts, [each.folder for each in real], out / "simulated")


def _report(found: Validation) -> str:
    facts, machine = found.facts, found.facts["calibration"]
    seconds = ", ".join(f"{each['seconds']:.0f}" for each in facts["runs"])
    where = ", ".join(str(machine.get(name, "?")) for name in ("machine", "versions"))
    busy = facts["processors others kept busy"]
    verdict = "within it" if found.passes else "not all within it"
    lines = [
        f"- {len(facts['runs'])} real runs, of {seconds} s each, on {where}",
        f"- calibrated {machine.get('date', '?')}: `{machine.get('command', '?')}`",
        *([f"- others kept {busy:.2f} processors busy during the runs (median)"] if busy is not None else []),
        f"- figures with a tolerance: {verdict}",
    ]
    head = [f"# Real and simulated: {facts['workload']}", f"`{facts['line']}`", "\n".join(lines)]
    return "\n\n".join([*head, markdown(found.rows)])
