"""`python -m tests.faults [NAME …]`: run cases, each in a process of its own, and write reports/faults.

Rules of this file
- A case that ends its process, or does not end, is an outcome like any other.
- Cases that are not run again keep the results they had.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from .cases import CASES, find
from .report import RESULTS, machine, read, write
from .story import tell

LONGEST_S = 180.0
"""A case that takes longer hangs."""


def _one(name: str, seed: int, out: Path) -> None:
    """In the process of the case."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        try:
            found = tell(find(name), Path(folder), seed).as_dict()
        except pytest.skip.Exception as skipped:
            found = {"case": name, "skipped": str(skipped)}
    out.write_text(json.dumps(found))


def _in_a_process(name: str, seed: int) -> dict[str, Any]:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        out, log = Path(folder) / "outcome.json", Path(folder) / "log"
        command = [sys.executable, "-m", "tests.faults", name, "--seed", str(seed), "--one", str(out)]
        with log.open("wb") as words:
            try:
                code = subprocess.run(command, stdout=words, stderr=subprocess.STDOUT, timeout=LONGEST_S).returncode
                wrong = f"the process ended with code {code}: {_end(log)}"
            except subprocess.TimeoutExpired:
                wrong = f"not over after {LONGEST_S:g} s: {_end(log)}"
        found = json.loads(out.read_text()) if out.exists() else {"case": name, "wrong": [wrong]}
    return found | {"took_s": round(time.monotonic() - began_s, 1), "seed": seed}


def _end(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        cases = [find(name) for name in options.names or CASES]
    except ValueError as error:
        parser.error(str(error))
    if options.one is not None:
        _one(cases[0].name, options.seed, options.one)
        return 0
    results = read()
    for case in cases:
        found = results["cases"][case.name] = _in_a_process(case.name, options.seed)
        words = found.get("skipped") or "; ".join(found["wrong"]) or "as it should be"
        print(f"{case.name:28} {found['took_s']:6.1f} s  {words}", flush=True)
        results["machine"] = machine()
        write(results)
    print(RESULTS.parent)
    return any(found.get("wrong") for found in results["cases"].values())


if __name__ == "__main__":
    sys.exit(main())
