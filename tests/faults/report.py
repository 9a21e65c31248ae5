"""reports/faults: results.json, and report.md drawn from it.

Rules of this file
- Whoever reads report.md needs nothing else: what was done, what was held against what, and the command.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .cases import CASES

FOLDER = Path(__file__).parents[2] / "reports" / "faults"
RESULTS, REPORT = FOLDER / "results.json", FOLDER / "report.md"
PACKAGES = ("torch", "numpy", "mooncake-transfer-engine-non-cuda", "nixl-cu12", "lmdb", "xxhash")

HEAD = """# Faults

Stores that are killed, frozen, filled, cut and slowed down under a running workload, and what came of it. Real servers,
processes of their own on loopback; real disks, small and in memory.

Each case is one run in three acts: all is well; the store is hurt, for as long as the fault takes to show; it is
mended. One client, one engine: nothing is started again on our side. Prompts begin with 8 texts of 10 pages, more than
L1 (24 pages) and L2 (40) hold, so without L3 they are computed. The model is tiny, exact, and its free pages are NaN.

A case is well if

- every logit equals, bit by bit, that of the same prompt computed afresh, without a cache;
- every request was done, none took longer than its bound (four times what a call may take, and 5 s), and every call
  came back in the end;
- at the end the laws hold at rest: every L2 page is free or the tree's, nothing is held, no operation is open;
- what failed is in the run's summary;
- after mending, pages come from the store again and new ones go into it, within 30 s (Mooncake 60 s); the breaker is
  closed; where the store was dead, it had opened, tried in vain, opened for longer, and closed.
"""

NOTES = """
*hits*: pages from the store before, during and after the fault. *recovered*: from the end of mending to the first page
from the store; it contains what the breaker still waits, and with stores that came back empty the time until pages that
were stored anew are asked for. *breaker*: how often it opened / tried / closed. *given up*: calls that took longer than
they may; their pages were nobody's until they came back. *slowest*: request, of its bound. *failed*: calls that raised;
operations counted as failed in the summary (those that the breaker refuses, and those that fall short, count too).
*client*: what it counted from the fault on.

A frozen Mooncake master shows what a limit costs: at most four calls may hang at a time, and the client gives a call up
only after 30 s. Until then nobody asks, and requests go on without L3. Calls that never come back would keep it so.

Not survivable, so not here: LMDB maps its file, and a file that somebody else cuts short ends the process that touches
the lost part (SIGBUS). Bits that flip in the memory of a Mooncake owner are seen with "verify" only: it keeps no
checksum itself.
"""


def machine() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} logical CPUs",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES} | {"redis-server": _redis_version()},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _redis_version() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "none"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=(\S+)", said)
    return found[1] if found else said.strip()


def read() -> dict[str, Any]:
    """What results.json holds; nothing yet where there is none."""
    if not RESULTS.exists():
        return {"machine": machine(), "cases": {}}
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def write(results: Mapping[str, Any]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    REPORT.write_text(page(results), encoding="utf-8")


def page(results: Mapping[str, Any]) -> str:
    """report.md."""
    told = {name: results["cases"][name] for name in CASES if name in results["cases"]}
    where = results["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in where["packages"].items())
    well = sum(_outcome(found) == "well" for found in told.values())
    lines = [HEAD, f"**{well} of {len(told)} cases are well.**", "", *_table(told), NOTES, "## What was done", ""]
    lines += ["| case | store | done to it | prefetch | a call may take |", "|---|---|---|---|---:|"]
    for name in told:
        case = CASES[name]
        lines.append(f"| {name} | {case.store} | {case.done} | {case.prefetch} | {case.timeout_s:g} s |")
    lines += ["", "## What clients said", "", "| case | errors | client |", "|---|---|---|"]
    for name, found in told.items():
        if "logits" in found:
            counts = ", ".join(f"{what} {count:g}" for what, count in found["counts"].items())
            lines.append(f"| {name} | {'; '.join(found['errors']) or '–'} | {counts} |")
    seeds = sorted({found["seed"] for found in told.values()})
    lines += [
        "",
        "Again: `make faults`, or `python -m tests.faults NAME` for one case. Disks take root to mount. Seed "
        f"{', '.join(map(str, seeds))}; times are those of a shared machine and differ from run to run.",
        "",
        f"{where['date']}; {where['system']}; Python {where['python']}; {packages}.",
    ]
    return "\n".join(lines) + "\n"


def _table(told: Mapping[str, Any]) -> list[str]:
    names = ["case", "outcome", "requests", "logits", "hits", "failed", "given up", "breaker", "slowest", "recovered"]
    lines = ["| " + " | ".join(names) + " |", "|---|---|" + "---:|" * (len(names) - 2)]
    for name, found in told.items():
        cells = [name, _outcome(found), *(_cells(found) if "logits" in found else ["–"] * (len(names) - 2))]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _outcome(found: Mapping[str, Any]) -> str:
    if "skipped" in found:
        return f"skipped: {found['skipped']}"
    return "; ".join(found["wrong"]) or "well"


def _cells(found: Mapping[str, Any]) -> list[str]:
    breaker, recovered = found["breaker"], found["recovered_s"]
    return [
        str(found["requests"]),
        str(found["logits"]),
        " / ".join(map(str, found["hits"])),
        f"{found['failed_calls']}; {sum(found['failures'].values())}",
        str(found["given_up"]),
        f"{breaker['opened']} / {breaker['tried']} / {breaker['closed']}",
        f"{found['longest_request_s']:.1f} of {found['bound_s']:g} s",
        "–" if recovered is None else f"{recovered:.1f} s",
    ]


if __name__ == "__main__":
    write(read())
    sys.exit()
