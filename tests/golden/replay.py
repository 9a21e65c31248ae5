"""Replay decisions recorded from the real HiRadixCache of sglang 0.5.7 through the control plane.

    python tests/golden/replay.py tests/golden/hiradix_v0.5.7.jsonl.gz

Prints cases, rows and mismatches, the first one in full; exit code 1 on any. What a row means is in README.md here.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from hicache_ref.control import invariants, lease
from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.keys import TokenPages
from hicache_ref.control.rules import rules_for
from hicache_ref.control.storage import PrefetchLimits, StorageSide
from hicache_ref.control.types import Completion, Op, OpKind, Wait
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.write import WRITE

SEGMENT = 4096
T = TypeVar("T")


def tokens(segments: list[list[int]]) -> list[int]:
    return [segment * SEGMENT + offset for segment, length in segments for offset in range(length)]


class Case:
    """One recorded workload, and the completions in the script's hands."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.page = config["page_size"]
        self.keys = TokenPages(self.page)
        l1, l2 = config["l1_tokens"] // self.page, config["l2_tokens"] // self.page
        self.cache = HiCache(
            CacheShape(self.page, l1, l2),
            EVICTION.make(config["eviction"]),
            WRITE.make(config["write_policy"]),
            rules_for("v0.5.7"),
            self.keys,
        )
        self.delayed = config["write_acks"] == "delayed"
        self.leases: dict[int, lease.Lease] = {}
        self.segments: dict[int, list[list[int]]] = {}
        self.priorities: dict[int, int] = {}
        self.written: deque[Op] = deque()
        self.probes: deque[Op] = deque()
        self.fetches: deque[Op] = deque()
        self.stores: deque[Op] = deque()
        self.in_store: dict[str, None] = {}
        self.refusing = False
        self.now_s = 0.0
        self.side: StorageSide | None = None
        if "prefetch_policy" in config:
            threshold = max(config["prefetch_threshold"], self.page)
            capacity = int(0.8 * (config["l2_tokens"] - config["l1_tokens"]))
            parameters = {"per_page_s": self.page / 1024 * 0.25} if config["prefetch_policy"] == "timeout" else {}
            policy = PREFETCH.make(config["prefetch_policy"], **parameters)
            self.side = StorageSide(self.cache, policy, PrefetchLimits(threshold, capacity))

    # Completions

    def drive(self, steps: Generator[Wait, None, T]) -> T:
        """Run a call that may wait; what it waits for is done at once."""
        try:
            wait = next(steps)
            while True:
                self.collect()
                for op in [op for op in self.written if op.id in wait.op_ids]:
                    self.written.remove(op)
                    self.cache.on(Completion(op.id, op.pages))
                wait = steps.send(None)
        except StopIteration as stop:
            return stop.value

    def collect(self) -> None:
        queues = {
            OpKind.BACKUP: self.written,
            OpKind.PROBE: self.probes,
            OpKind.FETCH: self.fetches,
            OpKind.STORE: self.stores,
        }
        for op in self.cache.take_ops():
            if op.__class__ is not Op:
                continue  # a cancelled fetch is still fetched: upstream's thread does not look first
            if op.kind is OpKind.LOAD:
                self.cache.on(Completion(op.id, op.pages))
            else:
                queues[op.kind].append(op)

    def finish_writes(self, first: int | None = None) -> None:
        """Of the writes no tick has collected yet, the first ones (all, if None) are done, if they are not already."""
        self.collect()
        uncollected = set(list(self.cache.ledger.writing)[:first])
        for op in [op for op in self.written if op.id in uncollected]:
            self.written.remove(op)
            self.cache.on(Completion(op.id, op.pages))

    def key(self, segments: list[list[int]]) -> bytes:
        return self.keys.key(tokens(segments))

    # Operations of the record

    def admit(self, rid: int, segments: list[list[int]], extra_key: str | None, priority: int) -> dict[str, Any]:
        admission = self.drive(lease.acquire(self.cache, extra_key, self.key(segments)))
        self.cache.start_loading()
        if admission.lease is not None:
            self.leases[rid], self.segments[rid], self.priorities[rid] = admission.lease, segments, priority
        return {
            "ok": admission.lease is not None,
            "device_hit": admission.match.device_pages * self.page,
            "host_hit": admission.match.host_pages * self.page,
            "loaded": admission.loaded * self.page,
        }

    def prefill(self, rid: int, chunked: bool) -> dict[str, Any]:
        return {"prefix": lease.commit(self.cache, self.leases[rid], self.priorities[rid], chunked) * self.page}

    def finish(self, rid: int, output: list[int]) -> dict[str, Any]:
        held = self.leases.pop(rid)
        ok = self.drive(lease.extend(self.cache, held, self.key([*self.segments[rid], output])))
        return {"ok": ok, "prefix": lease.release(self.cache, held, self.priorities[rid]) * self.page}

    def ack_writes(self, count: int) -> dict[str, Any]:
        self.finish_writes(count)
        return {}

    def tick(self) -> dict[str, Any]:
        if not self.delayed:
            self.finish_writes()
        self.cache.tick(self.now_s)
        return {}

    def enqueue(self, rid: int, segments: list[list[int]], extra_key: str | None) -> dict[str, Any]:
        assert self.side is not None
        key = self.key(segments)
        match = self.cache.match(extra_key, key)
        self.now_s += 1e-9
        self.side.prefetch(rid, match, extra_key, key[(match.device_pages + match.host_pages) * 8 :], self.now_s)
        return {
            "device_hit": match.device_pages * self.page,
            "host_hit": match.host_pages * self.page,
            "issued": rid in self.cache.ledger.prefetching,
        }

    def query(self) -> dict[str, Any]:
        self.collect()
        queried = len(self.probes)
        while self.probes:
            op = self.probes.popleft()
            self.cache.on(Completion(op.id, self.leading(op.keys)))
        self.collect()
        return {"queried": queried, "to_fetch": len(self.fetches)}

    def fetch(self, count: int) -> dict[str, Any]:
        self.collect()
        fetched = min(count, len(self.fetches))
        for _ in range(fetched):
            op = self.fetches.popleft()
            self.cache.on(Completion(op.id, self.leading(op.keys)))
        return {"fetched": fetched}

    def leading(self, names: Any) -> int:
        """How many leading pages the store has."""
        return next((at for at, name in enumerate(names) if name not in self.in_store), len(names))

    def poll(self, rid: int) -> dict[str, Any]:
        assert self.side is not None
        self.now_s += 1e-9
        return {"done": self.side.poll(rid, self.now_s)}

    def abort(self, rid: int) -> dict[str, Any]:
        assert self.side is not None
        self.side.abort(rid)
        return {}

    def backup(self, count: int) -> dict[str, Any]:
        self.collect()
        stored = min(count, len(self.stores))
        for _ in range(stored):
            op = self.stores.popleft()
            if not self.refusing:
                self.in_store.update((name, None) for name in op.keys if name not in self.in_store)
            self.cache.on(Completion(op.id, 0 if self.refusing else op.pages))
        return {"stored": stored}

    def advance(self, seconds: float) -> dict[str, Any]:
        self.now_s += seconds
        return {}

    def drop(self, count: int) -> dict[str, Any]:
        for name in list(self.in_store)[:count]:
            del self.in_store[name]
        return {}

    def refuse_sets(self, on: bool) -> dict[str, Any]:
        self.refusing = on
        return {}

    # What the record says of the state

    def nodes(self) -> list[list[Any]]:
        rows = []
        depths = {self.cache.tree.root: 0}
        for node in self.cache.tree.nodes():
            assert node.parent is not None
            depth = depths[node.parent]
            depths[node] = depth + node.pages * self.page
            first = self.keys.first_token(int.from_bytes(node.key[:8], sys.byteorder, signed=True))
            where = [depth, node.pages * self.page, first, node.namespace]
            resident = [int(node.device is not None), int(node.host is not None)]
            rows.append([*where, *resident, node.lock, node.hits, node.priority])
        return sorted(rows, key=lambda row: [row[0], row[2], row[1], row[3] or ""])

    def state(self) -> dict[str, Any]:
        cache, page, ledger = self.cache, self.page, self.cache.ledger
        nodes = self.nodes()
        state = {
            "l1_free": cache.l1.free * page,
            "l2_free": cache.l2.free * page,
            "evictable": cache.tree.evictable * page,
            "protected": cache.tree.protected * page,
            "nodes": len(nodes),
            "tree": hashlib.sha256(json.dumps(nodes, separators=(",", ":")).encode()).hexdigest()[:16],
        }
        if self.side is not None:
            state |= {
                "l3_pages": len(self.in_store),
                "l3": hashlib.sha256("\n".join(sorted(self.in_store)).encode()).hexdigest()[:16],
                "writing": len(ledger.writing),
                "loading": ledger.loads_in_flight,
                "prefetching": len(ledger.prefetching),
                "backing_up": len(ledger.storing),
                "prefetch_tokens": ledger.prefetch_pages * page,
            }
        return state


def mismatches(case: dict[str, Any], check: bool = False) -> Iterator[str]:
    """Rows of one case that come out otherwise. `check`: the laws are checked after every row."""
    run = Case(case["config"])
    for number, row in enumerate(case["rows"]):
        name, *arguments = row["op"]
        result = getattr(run, name)(*arguments)
        run.collect()
        state = run.state()
        if check:
            invariants.check(run.cache)
        if (result, state) != (row["result"], row["state"]):
            difference = {
                key: (want.get(key), got.get(key))
                for want, got in ((row["result"], result), (row["state"], state))
                for key in want.keys() | got.keys()
                if want.get(key) != got.get(key)
            }
            yield f"case {case['config']} row {number} {row['op']}: (recorded, ours) {difference}"
    if run.nodes() != case["final_nodes"]:
        yield f"case {case['config']}: final nodes differ"


def read(path: str) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def main(path: str) -> int:
    cases = rows = wrong = 0
    first = ""
    for case in read(path):
        cases += 1
        rows += len(case["rows"])
        for mismatch in mismatches(case):
            first = first or mismatch
            wrong += 1
    print(f"{cases} cases, {rows} rows, {wrong} mismatches")
    if first:
        print("first:", first)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/golden/replay.py FILE")
    sys.exit(main(sys.argv[1]))
