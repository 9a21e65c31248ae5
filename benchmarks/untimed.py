"""Replay without time, and the real HiRadixCache on the same requests in the same run.

Rules of this file
- Ours is charged with the whole replay, reading the trace included; theirs only with the calls of its cache. So the
  ratio is too small rather than too large.
- Totals of both must be equal, to the token, or there is no ratio.
"""

from __future__ import annotations

from typing import Any

from . import peers
from .inputs import speed_trace
from .measure import ROOT, Build, Row, Table, Usage, builds, run, spread
from .scale import Scale, main
from .timed import PROCESS, REPLAY

PAGE, L1, L2 = 64, 1_048_576, 2_097_152
FLAGS = ("--untimed", "--page-size", str(PAGE), "--max-total-tokens", str(L1), "--hicache-ratio", str(L2 / L1))
SPEED, CONVERSATION = "speed", "conversation"
REAL = "HiRadixCache, SGLang 0.5.7"
TIMES = "times the real one"
COMPARED = ("input", "device_hit", "host_hit", "loaded")
SIDE = str(ROOT / "benchmarks" / "sides" / "theirs.py")
TRACE = str(ROOT / "workloads" / "data" / "conversation_trace.jsonl.gz")


def untimed(scale: Scale) -> Table:
    """Replay the speed trace and the conversation trace without time, the latter beside the real HiRadixCache."""
    table = Table("untimed", "Untimed replay")
    speed = speed_trace(scale.work, scale.requests, table)
    try:
        peer = peers.sglang(scale.peers)
    except peers.Missing as why:
        peer = None
        table.notes.append(f"No row for the real HiRadixCache: {why}.")
    ours: dict[tuple[str, Build], list[Usage]] = {}
    theirs: list[Usage] = []
    for _ in range(scale.repetitions):
        for build in builds():
            for name, what in ((SPEED, str(speed)), (CONVERSATION, CONVERSATION)):
                limit = scale.requests if name == SPEED else scale.oracle_requests
                argv = build.replay(what, *FLAGS, "--limit", str(limit))
                table.ran(argv)
                ours.setdefault((name, build), []).append(run(argv))
        # Each of its runs takes as long as thirty of ours: two are enough to see its noise.
        if peer is not None and len(theirs) < 2:
            argv = [peer.python, SIDE, peer.source, "hiradix", TRACE, *map(str, (scale.oracle_requests, L1, L2, PAGE))]
            table.ran(argv)
            theirs.append(run(argv))
    table.rows = [_row(*key, usages) for key, usages in ours.items()]
    if theirs:
        _add_real(table, theirs)
        _agree(ours, theirs)
        table.notes.append("Totals of the conversation trace are equal on both sides, to the token.")
    return table


def _row(trace: str, build: Build, usages: list[Usage]) -> Row:
    summaries = [usage.json for usage in usages]
    requests = summaries[0]["requests"]["total"]
    return {
        "trace": trace,
        "who": build.name,
        "requests": requests,
        REPLAY: spread(requests / s["run"]["replay_cpu_s"] for s in summaries),
        PROCESS: spread(requests / usage.cpu_s for usage in usages),
        "peak MiB": max(usage.peak_mib for usage in usages),
        "hit rate": summaries[0]["hit_rates"]["total"],
        TIMES: None,
    }


def _add_real(table: Table, usages: list[Usage]) -> None:
    said = [usage.json for usage in usages]
    totals = said[0]["totals"]
    requests = table.find(trace=CONVERSATION)["requests"]  # type: ignore[index]
    rates = spread(requests / one["cache_cpu_s"] for one in said)
    for row in table.rows:
        if row["trace"] == CONVERSATION:
            row[TIMES] = row[REPLAY]["median"] / rates["median"]
    table.rows.append(
        {
            "trace": CONVERSATION,
            "who": REAL,
            "requests": requests,
            REPLAY: rates,
            PROCESS: spread(requests / usage.cpu_s for usage in usages),
            "peak MiB": max(usage.peak_mib for usage in usages),
            "hit rate": (totals["device_hit"] + totals["loaded"]) / totals["input"],
            TIMES: 1.0,
        }
    )


def _agree(ours: dict[tuple[str, Build], list[Usage]], theirs: list[Usage]) -> None:
    """Both decided the same."""
    wanted = theirs[0].json["totals"]
    for (name, build), usages in ours.items():
        if name != CONVERSATION:
            continue
        summary: dict[str, Any] = usages[0].json
        got = {what: summary["tokens"][what] for what in COMPARED}
        got["rejected"] = summary["requests"]["rejected"]
        got["requests"] = summary["requests"]["admitted"] + summary["requests"]["rejected"]
        if got != {what: wanted[what] for what in got}:
            raise AssertionError(f"{build.name} and the real HiRadixCache differ: {got}, {wanted}")


if __name__ == "__main__":
    main(untimed)
