"""What a request costs in a stream of a thousand, and of a million: time and memory must not grow.

Rules of this file
- The stream is generated as it is read; all three levels are bounded, and so is what the run holds.
- The generator's own share is measured beside it, since it is part of every figure here.
"""

from __future__ import annotations

import sys
from itertools import pairwise

from .inputs import SPEED_SEED
from .measure import Build, Row, Table, TimedOut, builds, fresh, run
from .scale import Scale, main
from .timed import THREE
from .untimed import FLAGS

GENERATE = (
    "import collections, sys, time, workloads; began_s = time.process_time(); "
    "collections.deque(workloads.SpeedTrace(count=int(sys.argv[1])).requests(), maxlen=0); "
    "print(time.process_time() - began_s)"
)
COST = "replay CPU us/request"
KINDS = {"untimed": FLAGS, "timed": (*THREE, "--hardware", "b200")}


def flat(scale: Scale) -> Table:
    """Replay ever longer streams of the speed trace's kind, with and without time."""
    table = Table("flat", "Cost of a request as the stream grows", seeds={"speed trace": SPEED_SEED})
    build = builds()[-1]
    for kind, lengths in (("untimed", scale.curve), ("timed", scale.timed_curve)):
        taken_s = 0.0
        for before, requests in pairwise([0, *lengths]):
            expected_s = taken_s / before * requests if before else 0.0
            row = _point(kind, build, requests, expected_s, scale, table)
            table.rows.append(row)
            taken_s = row["wall s"] or scale.most_s
    requests = min(100_000, scale.curve[-1])
    argv = [sys.executable, "-c", GENERATE, str(requests)]
    table.ran(argv)
    share_us = float(run(argv).output) / requests * 1e6
    table.notes.append(f"Of each figure, the generator takes about {share_us:.1f} us a request.")
    return table


def _point(kind: str, build: Build, requests: int, expected_s: float, scale: Scale, table: Table) -> Row:
    """One run; without figures if it takes too long. Timed runs write their files, so that they need not hold them."""
    out = ("--out", fresh(scale.work / "run")) if kind == "timed" else ()
    argv = build.replay("speed", "--set", f"count={requests}", *KINDS[kind], *out)
    row: Row = {"replay": kind, "who": build.name, "requests": requests}
    row |= dict.fromkeys((COST, "process CPU us/request", "peak MiB", "wall s"))
    if expected_s > scale.most_s:
        table.notes.append(f"{kind}, {requests:,} requests: not run, it would take about {expected_s:,.0f} s.")
        return row
    table.ran(argv)
    try:
        usage = run(argv, scale.most_s)
    except TimedOut:
        table.notes.append(f"{kind}, {requests:,} requests: ended after {scale.most_s:.0f} s, no figures.")
        return row
    return row | {
        COST: usage.json["run"]["replay_cpu_s"] / requests * 1e6,
        "process CPU us/request": usage.cpu_s / requests * 1e6,
        "peak MiB": usage.peak_mib,
        "wall s": usage.wall_s,
    }


if __name__ == "__main__":
    main(flat)
