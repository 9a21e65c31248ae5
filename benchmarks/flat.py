"""What a request costs in a stream of a thousand, and of a million: time and memory must not grow.

Rules of this file
- The stream is generated as it is read; all three levels are bounded, and so is what the run holds.
- The generator's own share is measured beside it, since it is part of every figure here.
"""

from __future__ import annotations

import sys

from .inputs import SPEED_SEED
from .measure import Build, Row, Table, TimedOut, builds, fresh, run
from .scale import MOST_S, Scale, main
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
        for requests in lengths:
            table.rows.append(_point(kind, build, requests, scale, table))
    requests = min(100_000, scale.curve[-1])
    argv = [sys.executable, "-c", GENERATE, str(requests)]
    table.ran(argv)
    share_us = float(run(argv).output) / requests * 1e6
    table.notes.append(f"Of each figure, the generator takes about {share_us:.1f} us a request.")
    return table


def _point(kind: str, build: Build, requests: int, scale: Scale, table: Table) -> Row:
    """One run; without figures if it took too long. Timed runs write their files, so that they need not hold them."""
    out = ("--out", fresh(scale.work / "run")) if kind == "timed" else ()
    argv = build.replay("speed", "--set", f"count={requests}", *KINDS[kind], *out)
    table.ran(argv)
    row: Row = {"replay": kind, "who": build.name, "requests": requests}
    row |= dict.fromkeys((COST, "process CPU us/request", "peak MiB", "wall s"))
    try:
        usage = run(argv, MOST_S)
    except TimedOut:
        table.notes.append(f"{kind}, {requests:,} requests: ended after {MOST_S:.0f} s, no figures.")
        return row
    return row | {
        COST: usage.json["simulation"]["replay_cpu_s"] / requests * 1e6,
        "process CPU us/request": usage.cpu_s / requests * 1e6,
        "peak MiB": usage.peak_mib,
        "wall s": usage.wall_s,
    }


if __name__ == "__main__":
    main(flat)
