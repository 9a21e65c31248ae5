"""What the scheduler takes: between two batches, and from a request's arrival to its admission.

Rules of this file
- Measured in real runs of small requests. Between batches: all wait from the beginning, so that the device never idles
  for want of work; from the end of one batch to the start of the next. Arrivals: each comes alone, to an idle engine.
- Without L3: its threads are the store's business.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from workloads import open_workload

from ..run.api import Options, Result, run
from ..run.setup import RealConfig
from .samples import Spread, spread

CROWD = {"clients": 16, "rounds": 5, "new_tokens": 64, "answer_tokens": 3, "rate_per_s": 10_000}
ALONE = {"clients": 30, "rounds": 1, "answer_tokens": 1, "rate_per_s": 8}
PROMPT_TOKENS = 512
"""Of one that comes alone, or less where L1 is small."""


def between_batches(config: RealConfig) -> Spread:
    """Seconds from batch to batch."""
    done = _run(config, CROWD, 4)
    batches = sorted((each for each in done.machine.plane.slices if each.track == "compute"), key=lambda s: s.start_s)
    return spread([max(0.0, after.start_s - before.end_s) for before, after in pairwise(batches)])


class Alone(NamedTuple):
    """Of a request that comes to an idle engine. arrival: from when it is due until it is admitted. start: from there
    until its batch starts."""

    arrival: Spread
    start: Spread


def alone_at_rest(config: RealConfig) -> Alone:
    """Seconds of each part."""
    prompt = min(PROMPT_TOKENS, (config.args.max_total_tokens or PROMPT_TOKENS) // 2)
    done = _run(config, ALONE | {"new_tokens": prompt}, None)
    rows = sorted(zip(done.requests["arrival_s"], done.requests["admitted_s"], strict=True), key=lambda row: row[1])
    starts = sorted(each.start_s for each in done.machine.plane.slices if each.track == "compute")
    found = [next(start for start in starts if start >= admitted) - admitted for _, admitted in rows]
    return Alone(spread([admitted - due for due, admitted in rows]), spread(found))


def _run(config: RealConfig, load: dict[str, Any], running: int | None) -> Result:
    args = replace(
        config.args,
        hicache_storage_backend=None,
        hicache_storage_backend_extra_config=None,
        hicache_storage_prefetch_policy=None,
        max_running_requests=running,
    )
    with TemporaryDirectory() as folder:
        return run(open_workload("bench-multiturn", load), None, Options(out=Path(folder)), replace(config, args=args))
