"""Timed replay of the speed trace: requests per CPU second, peak memory, events a request.

Rules of this file
- "Replay" is the summary's `replay_cpu_s`: from the first request read to the last answered. "Process" is everything:
  imports, files, summary.
- Dynamo prints no CPU seconds of its replay, so that of a run of ten requests is taken off.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from . import peers
from .inputs import speed_trace
from .measure import Build, Row, Table, Usage, builds, fresh, run, spread
from .scale import Scale, main

LEVELS = ("--page-size", "64", "--max-total-tokens", "1048576", "--hicache-ratio", "2", "--hicache-storage-backend")
THREE = (*LEVELS, "mooncake")
DYNAMOS = ("--page-size", "512", "--max-total-tokens", "8388608", "--no-hicache", "--hardware-set", "hbm_bytes=2e12")
"""L1 of 16,384 blocks of 512 tokens, on a GPU that has room for it."""
L1_ONLY = "L1 only"
REPLAY, PROCESS = "requests per CPU s of the replay", "of the process"
DYNAMO_REPORT = "dynamo.json"


@dataclass(frozen=True)
class Case:
    """A configuration. files: the run's tables and logs are written, as `--out` does."""

    name: str
    flags: tuple[str, ...]
    files: bool = False


FILES = Case("three levels, files written", (*THREE, "--hardware", "b200"), files=True)
CASES = (
    FILES,
    Case("three levels", (*THREE, "--hardware", "b200")),
    Case("three levels, overload", (*THREE, "--hardware", "h100-pcie5"), files=True),
    Case(L1_ONLY, (*DYNAMOS, "--hardware", "b200")),
)


@dataclass
class Runs:
    """What the runs of one case gave. warm_s: CPU seconds of a run of next to nothing, where that must be taken off."""

    usages: list[Usage] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)


def timed(scale: Scale) -> Table:
    """Replay the speed trace in simulated time, on three levels and, beside Dynamo's compiled replay, on L1 alone."""
    table = Table("timed", "Timed replay of the speed trace")
    trace = speed_trace(scale.work, scale.requests, table)
    ours = {(case, build): Runs() for case in CASES for build in builds()}
    rival, theirs = _dynamo(scale, table), Runs()
    for _ in range(scale.repetitions):
        for (case, build), runs in ours.items():
            runs.usages.append(_replay(case, build, trace, scale, table))
        if rival is not None:
            _compare(rival, trace, scale, table, theirs)
    table.rows = [_row(case, build, runs, scale.requests) for (case, build), runs in ours.items()]
    if theirs.usages:
        table.rows.append(_dynamo_row(theirs, scale))
        table.notes.append("Dynamo has no tiers; its replay is compiled (Rust); its model and GPU are its defaults.")
        table.notes.append("Dynamo's CPU seconds of the replay are those of the process less those of ten requests.")
    if len(builds()) == 1:
        table.notes.append("No compiled build: HICACHE_FAST_PYTHON was not set.")
    return table


def _replay(case: Case, build: Build, trace: Path, scale: Scale, table: Table) -> Usage:
    out = ("--out", fresh(scale.work / "run")) if case.files else ()
    argv = build.replay(str(trace), *case.flags, *out)
    table.ran(argv)
    return run(argv)


def _row(case: Case, build: Build, runs: Runs, requests: int) -> Row:
    """`spread` over runs for what varies; the last run's for what does not."""
    summaries = [usage.json for usage in runs.usages]
    last = summaries[-1]
    simulation, latency = last["run"], last["latency"]
    return {
        "case": case.name,
        "who": build.name,
        REPLAY: spread(requests / s["run"]["replay_cpu_s"] for s in summaries),
        PROCESS: spread(requests / usage.cpu_s for usage in runs.usages),
        "peak MiB": max(usage.peak_mib for usage in runs.usages),
        "hit rate": last["hit_rates"]["total"],
        "TTFT p50 s": latency["ttft"]["p50_s"],
        "mean queue s": latency["mean_queue_s"],
        "device busy": last["stalls"]["device_busy_share"],
        "simulated s": simulation["makespan_s"],
        "events/request": simulation["events"] / requests,
        "steps/request": simulation["steps"] / requests,
        "operations/request": sum(simulation["operations"].values()) / requests,
    }


# Dynamo


def _dynamo(scale: Scale, table: Table) -> peers.Peer | None:
    try:
        return peers.dynamo(scale.peers)
    except peers.Missing as why:
        table.notes.append(f"No row for Dynamo: {why}.")
        return None


def _compare(peer: peers.Peer, trace: Path, scale: Scale, table: Table, runs: Runs) -> None:
    few = scale.work / "few.jsonl"
    with open(trace) as rows:
        few.write_text("".join(islice(rows, 10)))
    runs.warm_s.append(run(_dynamo_command(peer, few, scale)).cpu_s)
    argv = _dynamo_command(peer, trace, scale)
    table.ran(argv)
    runs.usages.append(run(argv))


def _dynamo_command(peer: peers.Peer, trace: Path, scale: Scale) -> list[str]:
    engine = '{"block_size":512,"num_gpu_blocks":16384}'
    return [
        *(peer.python, "-m", "dynamo.replay", str(trace), "--trace-block-size", "512"),
        *("--num-workers", "1", "--replay-mode", "offline", "--router-mode", "round_robin"),
        *("--extra-engine-args", engine, "--report-json", str(scale.work / DYNAMO_REPORT)),
    ]


def _dynamo_row(runs: Runs, scale: Scale) -> Row:
    said: dict[str, Any] = json.loads((scale.work / DYNAMO_REPORT).read_text())
    replays = (usage.cpu_s - warm_s for usage, warm_s in zip(runs.usages, runs.warm_s, strict=True))
    return {
        "case": L1_ONLY,
        "who": f"Dynamo {peers.DYNAMO}, compiled",
        REPLAY: spread(scale.requests / replay_s for replay_s in replays),
        PROCESS: spread(scale.requests / usage.cpu_s for usage in runs.usages),
        "peak MiB": max(usage.peak_mib for usage in runs.usages),
        "hit rate": said["prefix_cache_reused_ratio"],
        "TTFT p50 s": said["median_ttft_ms"] / 1000,
        "mean queue s": None,
        "device busy": None,
        "simulated s": said["duration_ms"] / 1000,
        "events/request": None,
        "steps/request": None,
        "operations/request": None,
    }


if __name__ == "__main__":
    main(timed)
