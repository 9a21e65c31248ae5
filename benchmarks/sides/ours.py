"""Match and insert prompts in our radix cache: `python benchmarks/sides/ours.py PROMPTS TOKENS PAGE`.

PROMPTS holds uint32 token ids, TOKENS a prompt. Prints what it took and which prefixes were found, as JSON.

Rules of this file
- A script that is run by its path, so that it measures whichever `hicache` its interpreter has installed.
- For every prompt, what a server does for a request: look up, lock, take slots for the rest, insert, unlock. The other
  side does the same, on lists of the same tokens.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import time
from array import array

from hicache_ref.control import lease
from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.keys import TokenPages
from hicache_ref.control.rules import rules_for
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.write import WRITE


def read(path: str, tokens: int) -> list[list[int]]:
    with open(path, "rb") as file:
        words = array("I", file.read())
    return [words[at : at + tokens].tolist() for at in range(0, len(words), tokens)]


def serve(cache: HiCache, key: bytes) -> int:
    """One request; the pages that were there before."""
    steps = lease.acquire(cache, None, key)
    try:
        next(steps)
    except StopIteration as stop:
        admission: lease.Admission = stop.value
    else:
        raise RuntimeError("a plain radix cache never waits")
    assert admission.lease is not None
    lease.release(cache, admission.lease)
    return admission.match.device_pages


def main(path: str, tokens: int, page: int) -> None:
    prompts = read(path, tokens)
    pages = TokenPages(page)
    shape = CacheShape(page, tokens // page * len(prompts), 0)
    cache = HiCache(shape, EVICTION.make("lru"), WRITE.make("none"), rules_for("v0.5.7"), pages)
    gc.freeze()
    began_s = time.process_time()
    keys = [pages.key(prompt) for prompt in prompts]
    keyed_s = time.process_time()
    found = [serve(cache, key) * page for key in keys]
    ended_s = time.process_time()
    result = {
        "keys_s": keyed_s - began_s,
        "serve_s": ended_s - keyed_s,
        "matched": sum(found),
        "digest": hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
