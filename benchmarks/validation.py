"""The simulator against this machine, into `reports/validation/`: `make validation`.

Rules of this file
- Every case: three real runs, this machine calibrated before each of them, and the simulated one, all by the command
  that anybody can type. What it wrote is kept but for the tables of single runs.
- One thread of torch: with two on two cores, whatever else runs makes each wait for the other in every operation.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .machine import load
from .measure import ROOT, Row, Table, text
from .report import bullets

WORK = ROOT / "out" / "validation"
FLAGS = "--page-size 16 --max-total-tokens 3000"
CHAT = (
    "chat --set count=20 --set rate_per_s=0.8 --set system_prompts=6 --set system_tokens=400 --set first_tokens=200 "
    "--set next_tokens=80 --set answer_tokens=24 --set think_s=2.5 --set sigma=0.6 "
    f"{FLAGS} --hicache-ratio 1.5 --hicache-storage-prefetch-policy wait_complete"
)
AGENTS = (
    "agents --set count=10 --set rate_per_s=0.4 --set system_tokens=600 --set sub_system_tokens=400 --set steps=6 "
    "--set task_tokens=150 --set result_tokens=100 --set answer_tokens=20 --set tool_s=3 "
    f"{FLAGS} --hicache-ratio 1.2 --hicache-mem-layout page_first --hicache-storage-prefetch-policy timeout"
)
CLAUDE_CODE = (
    "claude-code --schedule closed --limit 24 --sequential --model-scale 1e5 --page-size 64 --max-total-tokens 24576 "
    "--hicache-ratio 3 --hicache-storage-prefetch-policy wait_complete --host-reserve 1"
)
"""Words of `hicache run`: prompts that a CPU can serve, on levels so small that all three are used; and a shipped
trace, whose prompts of 18,000 tokens take seconds each even in the smallest model."""
Settings = dict[str, Any]


@contextmanager
def of_its_own(folder: Path) -> Iterator[Settings]:
    """A store without settings."""
    yield {}


@contextmanager
def small_map(folder: Path) -> Iterator[Settings]:
    """LMDB that holds less than is written, so that pages go."""
    yield {"path": str(folder.relative_to(ROOT) / "map"), "max_size": 6 << 20}


@contextmanager
def cluster(folder: Path) -> Iterator[Settings]:
    """A Mooncake master, and a process that lends as little as it may, which is less than is written."""
    servers = importlib.import_module("tests.faults.servers")
    with servers.Mooncake(folder, segment_bytes=16 << 20) as found:
        yield found.settings


class Case(NamedTuple):
    """words: of `hicache run`. running: what holds the settings of the store, as long as it runs."""

    words: str
    backend: str
    running: Callable[[Path], AbstractContextManager[Settings]] = of_its_own


CASES = {
    "chat": Case(CHAT, "file"),
    "agents": Case(AGENTS, "file"),
    "lmdb": Case(CHAT, "lmdb", small_map),
    "claude-code": Case(CLAUDE_CODE, "file"),
    "mooncake": Case(f"{CHAT} --set count=40 --hicache-mem-layout page_first", "mooncake", cluster),
}
SECONDS = 20.0
"""Of a calibration, about."""
KEPT = ("calibration.json", "validation.json", "validation.md", "validation.html")
FIGURES = ("ttft.png", "hit-rates.png", "misses.png")
SHOWN = ("hits", "TTFT", "bytes")
"""Groups of figures that the index repeats."""
UNITS = {"hits": (100, " points"), "TTFT": (1000, " %"), "bytes": (1e-6, " %")}
"""What a figure is multiplied by, and what its difference is in."""


def hicache(*words: str) -> int:
    """The command's exit code. It says itself what it does."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "hicache_sim.cli", *words], cwd=ROOT, env=environ).returncode


def run(case: str, seconds: float) -> None:
    """Real and simulated. RuntimeError: there is no verdict, whichever."""
    words, backend, running = CASES[case]
    shutil.rmtree(WORK / case, ignore_errors=True)
    (WORK / case).mkdir(parents=True)
    with running(WORK / case) as settings:
        store = ["--hicache-storage-backend", backend]
        store += ["--hicache-storage-backend-extra-config", json.dumps(settings)] if settings else []
        how = ["--calibrate", str(seconds), "--out", str((WORK / case).relative_to(ROOT))]
        if hicache("validate", *words.split(), *store, *how) not in (0, 1):
            raise RuntimeError(f"no validation of {case}")


def collect(folder: Path, loads: str) -> None:
    """What was found, now or before, from the work folder to the report's, with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    verdicts: dict[str, Any] = {}
    for case in CASES:
        if not (WORK / case / "validation.json").exists():
            continue
        source, target = WORK / case, folder / case
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for name in (*KEPT, *FIGURES):
            shutil.copy(source / name, target)
        for summary in source.glob("*/summary.json"):
            shutil.copy(summary, target / f"{summary.parent.name}.json")
        verdicts[case] = json.loads((source / "validation.json").read_text())
    (folder / "README.md").write_text(index(verdicts, {case: steps_ms(case) for case in verdicts}, loads))


def steps_ms(case: str) -> list[float]:
    """A decode step of one sequence over 600 tokens, by each calibration of the case."""
    found = (json.loads(path.read_text())["compute"]["decode"] for path in (WORK / case).glob("calibration-*.json"))
    return sorted(1000 * (each["a"] + each["b"] + 600 * each["c"]) for each in found)


def index(verdicts: dict[str, Any], steps: dict[str, list[float]], loads: str) -> str:
    about = dict(list(verdicts.values())[-1]["calibration"])
    del about["load averages"], about["command"]
    words = [
        "# Real and simulated",
        "Made by `python -m benchmarks.validation` (`make validation`): three real runs of each case, each with an "
        "empty store, the machine calibrated before each of them, beside one simulated run on the median of the "
        "calibrations. The simulated figure is compared with the median of the real ones; allowed is the tolerance "
        "(0.5 points of hits, 2 % of bytes, 10 % of TTFT), or how far the real runs lie from their own median if that "
        "is more. `lmdb` and `mooncake` hold less than is written, so that pages go from the store as well.",
        bullets({**about, "load averages around the last case": loads}),
        "The machine is not as fast in one minute as in the next, which limits how near its times can be told. By the "
        "calibrations, a decode step over 600 tokens takes, from the fastest to the slowest of a case: "
        + "; ".join(f"{case} {times[0]:.2f} to {times[-1]:.2f} ms" for case, times in steps.items())
        + ".",
    ]
    for case, found in verdicts.items():
        line = f"{found['line'].replace('hicache run', 'hicache validate')} --calibrate {SECONDS:g}"
        busy = found["processors others kept busy"]
        words += [
            f"## {case}: {'within' if found['passes'] else 'not all within'} its tolerances",
            f"```\nOMP_NUM_THREADS=1 {line}\n```",
            *([f"Others kept {busy:.2f} of the machine's processors busy meanwhile (median)."] if busy else []),
            "Hits in %, times in ms, bytes in MB.",
            text(Table(case, case, [_row(each) for each in found["figures"] if each["group"] in SHOWN])),
            f"[All figures]({case}/validation.md), [the page with both curves]({case}/validation.html)",
            f"![Time to first token]({case}/ttft.png)",
        ]
    return "\n\n".join(words) + "\n"


def _row(each: dict[str, Any]) -> Row:
    factor, change = UNITS[each["group"]]
    allowed = each["allowed"]
    limit = None if allowed is None else f"{max(allowed, each['spread']) * 100:.2f}{change}"
    return {
        "figure": f"{each['group']}: {each['figure']}",
        "real, median": each["median"] * factor,
        "lowest": min(each["real"]) * factor,
        "highest": max(each["real"]) * factor,
        "simulated": each["simulated"] * factor,
        "difference": f"{each['difference'] * 100:+.2f}{change}",
        "allowed": limit,
        "verdict": None if allowed is None else "within" if each["passes"] else "beyond",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "validation", metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a calibration")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE", help=f"of {', '.join(CASES)}; or all")
    arguments = parser.parse_args()
    for case in arguments.cases or CASES:
        before = load()
        run(case, arguments.seconds)
    collect(arguments.out, f"{before} before; {load()} after")
    print(f"written to {arguments.out}: {shlex.quote(str(arguments.out / 'README.md'))}")


if __name__ == "__main__":
    main()
