"""What the scheduler takes between two batches: the engine's step, the hand-over to the device, threads that wake up.

Rules of this file
- Measured in a real run of small requests, all waiting from the beginning, so that the device never idles for want of
  work: from the end of one batch to the start of the next.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from workloads import open_workload

from ..run.api import Options, run
from ..run.setup import RealConfig
from .samples import Spread, spread

CLIENTS, ROUNDS, NEW_TOKENS, ANSWER_TOKENS = 12, 4, 64, 3


def between_batches(config: RealConfig) -> Spread:
    """Seconds from batch to batch. No L3: its threads are the store's business."""
    args = replace(
        config.args, hicache_storage_backend=None, hicache_storage_backend_extra_config=None, max_running_requests=4
    )
    load = open_workload(
        "bench-multiturn",
        {
            "clients": CLIENTS,
            "rounds": ROUNDS,
            "new_tokens": NEW_TOKENS,
            "answer_tokens": ANSWER_TOKENS,
            "rate_per_s": 10_000,
        },
    )
    with TemporaryDirectory() as folder:
        done = run(load, None, Options(out=Path(folder)), replace(config, args=args))
    batches = sorted((each for each in done.machine.plane.slices if each.track == "compute"), key=lambda s: s.start_s)
    gaps = [max(0.0, after.start_s - before.end_s) for before, after in pairwise(batches)]
    return spread(gaps)
