"""The simulated plane keeps the contract: with every kind of store, every fault, one rank or eight, and without L3."""

from __future__ import annotations

from typing import Any, ClassVar

from simpy import Environment

from hicache_sim.plane import SimPlane
from tests.sim.world import PAGE_BYTES, make_plane

from .contract import Bench, PlaneContract


class SimBench(Bench):
    """Time is SimPy's."""

    def __init__(self, **options: Any) -> None:
        self.env = Environment()
        self.made: SimPlane = make_plane(self.env, **options)
        super().__init__(self.made)
        self.storage = options.get("store") is not None
        self.fails = bool(options.get("faults")) or "capacity_bytes" in (options.get("store") or {})

    def let(self, seconds: float) -> None:
        until = self.env.timeout(seconds)
        self.env.run(until)

    def finish(self) -> None:
        self.env.run()

    def all_over(self) -> None:
        """Rule 4 too: the plane forgets what is over."""
        super().all_over()
        assert not (self.made._open or self.made._cancelled or self.made.loading)


class SimContract(PlaneContract):
    options: ClassVar[dict[str, Any]]

    def bench(self, seed: int = 0) -> Bench:
        return SimBench(**self.options, seed=seed)


class TestWithoutStore(SimContract):
    options: ClassVar = {}


class TestPlain(SimContract):
    options: ClassVar = {"store": {}}


class TestKernelCopies(SimContract):
    options: ClassVar = {"store": {}, "io_backend": "kernel", "machine": {"kernel_blocks": 33.0, "sms": 132.0}}


class TestEightRanksOverTheNetwork(SimContract):
    """A store with latencies and a tail, behind a NIC, and DRAM that all share."""

    options: ClassVar = {
        "ranks": 8,
        "store": {
            "nic_share": 1.0,
            "p99_over_p50": 3.0,
            "batch_latency_s": 1e-3,
            "object_latency_s": 1e-4,
            "concurrency": 16,
            "probe_latency_s": 1e-3,
        },
        "machine": {"dram_bytes_per_s": 10e6, "nic_bytes_per_s": 1e6, "h2d_duplex_bytes_per_s": 1e6},
    }


class TestLatentRows(SimContract):
    options: ClassVar = {"store": {}, "pool": "mla", "ranks": 4}


class TestLru(SimContract):
    options: ClassVar = {"store": {"eviction": "lru", "capacity_bytes": 150 * PAGE_BYTES}}


class TestLruPageTable(SimContract):
    options: ClassVar = {"store": {"eviction": "lru_page_table", "capacity_bytes": 150 * PAGE_BYTES}}


class TestWatermarkLease(SimContract):
    options: ClassVar = {"store": {"eviction": "watermark_lease", "capacity_bytes": 150 * PAGE_BYTES}}


class TestWatermarkCleaner(SimContract):
    options: ClassVar = {"store": {"eviction": "watermark_cleaner", "capacity_bytes": 150 * PAGE_BYTES}}


class TestTtl(SimContract):
    options: ClassVar = {"store": {"eviction": "ttl", "capacity_bytes": 150 * PAGE_BYTES, "lease_s": 0.5}}


class TestFullStore(SimContract):
    options: ClassVar = {"store": {"capacity_bytes": 10 * PAGE_BYTES, "partial_set": "all_or_nothing"}}


class TestAllOrNothing(SimContract):
    options: ClassVar = {
        "store": {"partial_get": "all_or_nothing", "partial_set": "stops"},
        "faults": ["partial:0:1e9:0.005"],
    }


class TestSlow(SimContract):
    options: ClassVar = {"store": {"batch_latency_s": 1e-3}, "faults": ["slow:0:1:50", "slow:0.5:1:3"]}


class TestOutage(SimContract):
    options: ClassVar = {"store": {"master_dead_s": 0.2}, "faults": ["outage:0.1:1"]}


class TestDeadForEver(SimContract):
    options: ClassVar = {"store": {}, "faults": ["outage:0:inf"]}


class TestOwnerLost(SimContract):
    options: ClassVar = {"store": {"owner_dead_s": 0.1, "client_ttl_s": 1.0}, "faults": ["owner-lost:0.2:0"]}


class TestLosses(SimContract):
    options: ClassVar = {"store": {}, "faults": ["lose:0.1:0:0.5", "partial:0:1e9:0.05", "refuse:0.3:0.5"]}
