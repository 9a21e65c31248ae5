"""Flat LRU of libCacheSim at given sizes: `python benchmarks/sides/caches.py TRACE SIZE,SIZE,…`.

TRACE is a Mooncake file. Prints seconds of reading and replaying, and hits of each size, as JSON.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import time

import libcachesim  # type: ignore[import-not-found]


def main(path: str, sizes: list[int]) -> None:
    began_s = time.process_time()
    with open(path) as file:
        blocks = [block for line in file for block in json.loads(line)["hash_ids"]]
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "trace.oracleGeneral")
        with open(name, "wb") as file:
            file.write(b"".join(struct.pack("<IQIq", at, block + 1, 1, -1) for at, block in enumerate(blocks)))
        read_s = time.process_time() - began_s
        hits = {}
        began_s = time.process_time()
        for size in sizes:
            reader = libcachesim.TraceReader(name, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
            misses, _ = libcachesim.LRU(cache_size=size, hashpower=20).process_trace(reader)
            hits[size] = round((1 - misses) * len(blocks))
    result = {"read_s": read_s, "replay_s": time.process_time() - began_s, "blocks": len(blocks), "hits": hits}
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in sys.argv[2].split(",")])
