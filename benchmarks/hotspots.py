"""Where the CPU of a timed replay goes, module by module.

Rules of this file
- C functions and methods have no module of their own in a profile: their time goes to whoever called them.
- A profiler makes calls dearer and leaves loops as they are, so shares are a guide, not a measurement; and it cannot
  look into a compiled build.
"""

from __future__ import annotations

import os
import pstats
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .inputs import speed_trace
from .measure import ROOT, Table, builds, run
from .scale import Scale, main
from .timed import CASES

C_CODE = "~"
OURS = ("hicache_ref", "hicache_sim", "workloads")
LIBRARIES = ("simpy", "numpy", "pyarrow", "pandas")
OTHER = "start-up and standard library"
KINDS = {
    "decisions": "hicache_ref",
    "simulated machine": "hicache_sim",
    "workload": "workloads",
    "SimPy": "simpy",
    "the rest": OTHER,
}
MOST_ROWS = 15

Where = tuple[str, int, str]


def hotspots(scale: Scale) -> Table:
    """Profile the timed replay on three levels, no files written."""
    table = Table("hotspots", "Where the CPU of the timed replay goes (cProfile)")
    trace = speed_trace(scale.work, scale.requests, table)
    profile = scale.work / "profile"
    case = next(case for case in CASES if not case.files)
    argv = [sys.executable, "-m", "cProfile", "-o", str(profile), *builds()[0].replay(str(trace), *case.flags)]
    table.ran(argv)
    run(argv)
    spent_s, calls = _by_module(profile)
    total_s = sum(spent_s.values())
    for module in sorted(spent_s, key=lambda module: -spent_s[module])[:MOST_ROWS]:
        table.rows.append(
            {
                "module": module,
                "share %": 100 * spent_s[module] / total_s,
                "us/request": spent_s[module] / scale.requests * 1e6,
                "calls/request": calls[module] / scale.requests,
            }
        )
    shares = ", ".join(f"{kind} {100 * share_s / total_s:.0f} %" for kind, share_s in _by_kind(spent_s).items())
    table.notes.append(f"By kind: {shares}.")
    table.notes.append(f"{total_s / scale.requests * 1e6:,.0f} us a request under the profiler, start-up included.")
    return table


def _by_module(profile: Path) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds spent in each module itself, and calls of its functions."""
    spent_s: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    entries: dict[Where, Any] = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    for where, (_, count, own_s, _, callers) in entries.items():
        if where[0] != C_CODE:
            spent_s[_module(where)] += own_s
            calls[_module(where)] += count
            continue
        for caller, (_, _, called_s, _) in callers.items():
            spent_s[_module(caller)] += called_s
    return spent_s, calls


def _by_kind(spent_s: Mapping[str, float]) -> dict[str, float]:
    return {kind: sum(s for module, s in spent_s.items() if module.startswith(start)) for kind, start in KINDS.items()}


def _module(where: Where) -> str:
    """A file of ours, or the library it belongs to. Bodies of modules are start-up."""
    file, _, function = where
    if function == "<module>":
        return OTHER
    parts = Path(file).parts
    if file.startswith(str(ROOT)) and parts[len(ROOT.parts)] in OURS:
        return os.path.relpath(file, ROOT)
    return next((library for library in LIBRARIES if library in parts), OTHER)


if __name__ == "__main__":
    main(hotspots)
