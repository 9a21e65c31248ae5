"""Real runs, as processes of their own, each with an empty store.

Rules of this file
- A run is `hicache run WORDS --out FOLDER`: clean memory, threads of its own, and a line that can be typed again.
- Runs come one after the other, and nothing runs beside them here. What others on the machine took meanwhile is
  written down: it is part of the runs' spread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RunError(RuntimeError):
    """A real run failed. One line: its last words."""


@dataclass(frozen=True)
class RealRun:
    """A finished run. elsewhere: processors that others kept busy meanwhile, in the mean; None: not known here."""

    folder: Path
    summary: Mapping[str, Any]
    seconds: float
    elsewhere: float | None


def run(words: Sequence[str], folder: Path, python: str = sys.executable) -> RealRun:
    """`hicache run` with these words. RunError: it failed."""
    began_s, busy_s = time.monotonic(), _busy_s()
    own_s = hicache("run", _before_launch_line(words, ["--fresh-store", "--out", str(folder)]), python)
    seconds = time.monotonic() - began_s
    after_s = _busy_s()
    elsewhere = None if busy_s is None or after_s is None else max(0.0, after_s - busy_s - own_s) / seconds
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return RealRun(folder, summary, seconds, elsewhere)


def calibrate(words: Sequence[str], file: Path, seconds: float) -> Any:
    """The content of the file that `hicache calibrate` writes. RunError: it failed."""
    hicache("calibrate", ["--out", str(file), "--seconds", str(seconds), *words])
    return json.loads(file.read_text(encoding="utf-8"))


def hicache(command: str, words: Sequence[str], python: str = sys.executable) -> float:
    """Run a command of ours; the CPU seconds that it took. RunError: it failed."""
    argv = [python, "-m", "hicache_sim.cli", command, *words]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        last = said.strip().splitlines()[-1:] or ["no word"]
        raise RunError(f"hicache {command} ended with {process.returncode}: {last[0]}")
    return usage.ru_utime + usage.ru_stime


def _before_launch_line(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """`words` with more options, before a launch line if there is one."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *more, *words[at:]]


def _busy_s() -> float | None:
    """Seconds all processors together have worked since the start of the machine; None: not Linux."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq = (float(field) for field in first[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
