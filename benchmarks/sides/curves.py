"""Our curves of one trace, all sizes at once: `python benchmarks/sides/curves.py TRACE SIZE,SIZE,…`.

TRACE is a Mooncake file whose prompts are whole blocks of 512 tokens. Prints seconds and hits, as JSON: of leaf-first
LRU and flat LRU over all requests, and of LRU and offline-best over the last half.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from hicache_sim.curve import LruCurve, gather, offline_best
from workloads import open_workload

BLOCK = 512


def main(path: str, sizes: list[int]) -> None:
    began_s = time.process_time()
    references = gather(open_workload(path).requests(None), BLOCK)
    times = {"read_s": time.process_time() - began_s}
    half = (len(references.starts) - 1) // 2
    hits: dict[str, dict[int, int]] = {}
    for name, leaf_first, since in (("tree", True, 0), ("flat", False, 0), ("last half", True, half)):
        began_s = time.process_time()
        found = LruCurve.of(references, leaf_first, since).hits(np.array(sizes)).astype(int)
        times[f"{name}_s"] = time.process_time() - began_s
        hits[name] = dict(zip(sizes, found.tolist(), strict=True))
    began_s = time.process_time()
    best = offline_best(references, sizes, half, serves_in_cache=False)
    times["best_s"] = time.process_time() - began_s
    hits["best of the last half"] = dict(zip(sizes, best, strict=True))
    print(json.dumps({**times, "blocks": len(references), "hits": hits}))


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in sys.argv[2].split(",")])
