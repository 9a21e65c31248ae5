"""A tiny simulated world in round numbers, put together as a run is.

A page is 4 tokens and 2,048 bytes on each rank; a copy moves a page in a millisecond, a store another, and nothing has
a latency unless it is given one. Prefill takes a millisecond a token, a decode step 10 milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from simpy import Environment

from hicache_ref.build import activator
from hicache_ref.config.layouts import KvGeometry
from hicache_ref.control.active import Active
from hicache_ref.control.budget import SchedulerLimits
from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.engine import Engine
from hicache_ref.control.keys import AtomKeys
from hicache_ref.control.log import EventLog
from hicache_ref.control.rules import rules_for
from hicache_ref.control.scheduler import Scheduler
from hicache_ref.control.storage import PrefetchLimits, StorageSide
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.schedule import SCHEDULE
from hicache_ref.policy.write import WRITE
from hicache_sim.compute import Fitted
from hicache_sim.copies import CopyModel
from hicache_sim.faults import FaultyStore, parse_fault
from hicache_sim.hardware import HardwareProfile, StoreProfile, load_profile, load_store
from hicache_sim.plane import SimPlane
from hicache_sim.run import Simulation
from hicache_sim.stores import make_store
from workloads.request import Request, Runs

PAGE = 4
LAYERS = 4
PAGE_BYTES = 2048
PAGE_S = 1e-3
TOKEN_S = 1e-3
STEP_S = 10e-3
LINK = PAGE_BYTES / PAGE_S


def hardware(**numbers: Any) -> HardwareProfile:
    """Links of a page a millisecond, all of it used."""
    plain = {
        "h2d_bytes_per_s": LINK,
        "d2h_bytes_per_s": LINK,
        "h2d_duplex_bytes_per_s": LINK,
        "d2h_duplex_bytes_per_s": LINK,
        "kernel_launch_s": 0.0,
        "kernel_h2d_efficiency": 1.0,
        "kernel_d2h_efficiency": 1.0,
        "kernel_half_row_bytes": 1e-9,
        "direct_h2d_segment_s": 0.0,
        "direct_d2h_segment_s": 0.0,
        "direct_efficiency": 1.0,
        "dram_bytes_per_s": 1e15,
        "nic_bytes_per_s": 1e15,
    }
    return load_profile("h100-pcie5", **plain | numbers)


def store_profile(**numbers: Any) -> StoreProfile:
    """A store in the same box that answers at once."""
    plain = {
        "read_bytes_per_s": LINK,
        "write_bytes_per_s": LINK,
        "capacity_bytes": 1e12,
        "batch_latency_s": 0.0,
        "object_latency_s": 0.0,
        "probe_latency_s": 0.0,
        "p99_over_p50": 1.0,
        "nic_share": 0.0,
        "eviction": "none",
    }
    return load_store("mooncake-4x200-roce", **plain | numbers)


def geometry(pool: str = "mha") -> KvGeometry:
    """Four layers of 512 bytes a page: two components of 64 bytes a token, or one of 128."""
    components, dim = (2, 32) if pool == "mha" else (1, 64)
    return KvGeometry(pool, components, LAYERS, PAGE, 1, dim, 2, (dim,))


def costs(context_s: float = 0.0) -> Fitted:
    """`context_s`: what a decode step takes longer for each token of context."""
    return Fitted(LAYERS, {"a": 0.0, "b": TOKEN_S, "c": 0.0}, {"a": STEP_S, "b": 0.0, "c": context_s})


def make_plane(
    env: Environment,
    store: dict[str, Any] | None = None,
    faults: Iterable[str] = (),
    machine: dict[str, Any] | None = None,
    io_backend: str = "direct",
    pool: str = "mha",
    ranks: int = 1,
    seed: int = 0,
    context_s: float = 0.0,
) -> SimPlane:
    """A plane; `store`: numbers of its L3 that are not the plain ones, None for no L3."""
    shape, box = geometry(pool), hardware(**machine or {})
    layout = "page_first" if io_backend == "kernel" else "page_first_direct"
    profile = store_profile(**store) if store is not None else None
    faulty = None
    if profile is not None:
        pages = profile.capacity_bytes / PAGE_BYTES
        held = make_store(profile.eviction, pages, profile.high_watermark, profile.low_watermark, profile.lease_s)
        faulty = FaultyStore(held, [parse_fault(text, profile, seed) for text in faults])
    copies = CopyModel(layout, io_backend, shape, box)
    return SimPlane(env, box, copies, costs(context_s), ranks, faulty, profile, pool == "mla", seed)


def request(number: int, at_s: float, first: int, prompt: int, output: int, **more: Any) -> Request:
    """A request for `output` tokens after a prompt of `prompt` ids from `first` on."""
    content = Runs(np.array([first]), np.array([prompt]))
    return Request(number, at_s, content, prompt, output, prompt, **more)


class World:
    """A simulation of some requests, all laws checked. `done`: what became of them, by id."""

    def __init__(
        self,
        requests: Iterable[Request],
        l1: int = 100,
        l2: int = 200,
        write: str = "write_through",
        prefetch: str = "best_effort",
        profile: str = "v0.5.7",
        rules: dict[str, Any] | None = None,
        linked: bool = False,
        max_parallel: int | None = None,
        threshold: int = PAGE,
        prefetch_numbers: dict[str, float] | None = None,
        limits: dict[str, Any] | None = None,
        schedule: str = "fcfs",
        **plane: Any,
    ) -> None:
        self.env = Environment()
        shape = CacheShape(PAGE, l1, l2, 1)
        policy = WRITE.make(write if l2 else "none")
        self.cache = HiCache(shape, EVICTION.make("lru"), policy, rules_for(profile, **rules or {}), AtomKeys())
        side = None
        if plane.get("store") is not None:
            fetch = PREFETCH.make(prefetch, **prefetch_numbers or {})
            side = StorageSide(self.cache, fetch, PrefetchLimits(threshold, 1 << 30))
        given = SchedulerLimits(**{"chunked_prefill_tokens": None} | (limits or {}))
        self.engine = Engine(self.cache, Scheduler(self.cache, side, given, SCHEDULE.make(schedule)))
        self.plane = make_plane(self.env, **plane)
        self.log = EventLog()
        self.done: dict[int, Active] = {}
        self.sim = Simulation(
            self.env, self.engine, self.plane, requests, activator(PAGE), self, self.log, True, linked, max_parallel
        )

    def run(self) -> World:
        self.sim.run()
        return self

    def hold_in_store(self, first: int, tokens: int) -> World:
        """Somebody has stored a prompt of these ids."""
        assert self.plane.client is not None
        atoms = memoryview(Runs(np.array([first]), np.array([tokens])).atoms(PAGE, tokens // PAGE)).cast("q")
        self.plane.client.store.store.write(atoms.tolist(), 0.0)
        return self

    def ttft(self, number: int) -> float:
        return self.done[number].first_token_s - self.done[number].arrival_s

    # Observing

    def admitted(self, active: Active) -> None:
        assert active.admitted_s >= active.arrival_s

    def stepped(self, now_s: float) -> None:
        assert now_s == self.env.now

    def ended(self, active: Active) -> None:
        assert active.id not in self.done
        self.done[active.id] = active
