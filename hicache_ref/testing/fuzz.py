"""Many random lives of small caches, from the command line.

python -m hicache_ref.testing.fuzz --seeds 20000 --jobs 2
python -m hicache_ref.testing.fuzz --first 4711          (one seed, again)
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice

from .world import STEPS, FuzzFailure, fuzz


def failure_of(seed: int, steps: int) -> str | None:
    """What a seed found, in words."""
    try:
        fuzz(seed, steps)
    except FuzzFailure as failure:
        where = traceback.format_exception(failure.__cause__)
        return f"{failure}\n{''.join(where[-3:])}"
    return None


def failures(seeds: range, steps: int, jobs: int) -> Iterator[str]:
    """Of many seeds, those that fail, in order."""
    run = partial(failure_of, steps=steps)
    if jobs == 1:
        yield from filter(None, map(run, seeds))
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from filter(None, pool.map(run, seeds, chunksize=50))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hicache_ref.testing.fuzz", description="Fuzz the control plane.")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--most", type=int, default=1, help="failures to print before giving up")
    args = parser.parse_args()
    began = time.perf_counter()
    found = list(islice(failures(range(args.first, args.first + args.seeds), args.steps, args.jobs), args.most))
    print("\n\n".join(found) or f"{args.seeds} seeds, no failure, {time.perf_counter() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
