"""The simulated data plane: no bytes move, but everything takes the time it would have taken.

Rules of this file
- Operations run where they would run: backups on the write stream, loads on the load stream, probes, fetches and
  stores each on a worker thread of its own, as v0.5.7 has them; batches on the device, one at a time.
- Ranks of one node are alike: one stream stands for all of them, on links side by side. Where chance strikes them
  apart (a store's tail), the slowest rank's time counts, and the fewest pages: the agreement by minimum.
- A batch computes while what it needs arrives layer by layer; copy kernels slow it by the processors they take.
- Source: article 2.2 to 2.4, 5.4, 5.5; prices from `copies`, stores from `stores`, numbers from `hardware`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from simpy import Environment
from simpy.events import Timeout

from hicache_ref.account.meters import Slice
from hicache_ref.control.batches import Costs
from hicache_ref.control.types import Completion, Op, OpKind, Progress, Report
from hicache_ref.plane import Capabilities

from .copies import CopyModel
from .faults import FaultyStore, Verdict
from .hardware import HardwareProfile, StoreProfile
from .links import Fabric, Link, Path, Stream

BATCH_PAGES = 128
"""Pages a store is asked for at a time (upstream's `storage_batch_size`)."""


class Machine:
    """Links of one node, as its ranks use them."""

    def __init__(self, env: Environment, hardware: HardwareProfile, store: StoreProfile | None, ranks: int) -> None:
        self.fabric = Fabric(env)
        self.ranks = min(ranks, int(hardware.gpus_per_node))
        self.h2d = Link("pcie_h2d", hardware.h2d_bytes_per_s, hardware.h2d_duplex_bytes_per_s)
        self.d2h = Link("pcie_d2h", hardware.d2h_bytes_per_s, hardware.d2h_duplex_bytes_per_s)
        self.h2d.partner, self.d2h.partner = self.d2h, self.h2d
        self.dram = Link("dram", hardware.dram_bytes_per_s)
        self.nic_in = Link("nic_in", hardware.nic_bytes_per_s)
        self.nic_out = Link("nic_out", hardware.nic_bytes_per_s)
        self.store_read = Link("store_read", store.read_bytes_per_s if store else math.inf)
        self.store_write = Link("store_write", store.write_bytes_per_s if store else math.inf)
        self.links = [self.h2d, self.d2h, self.dram]
        if store is not None:
            self.links += [self.store_read, self.store_write]
            self.links += [self.nic_in, self.nic_out] if store.nic_share else []


class CopyEngine:
    """One direction between L1 and L2: a stream, and the links its copies cross."""

    def __init__(self, plane: SimPlane, track: str, link: Link, price: Callable[[int], Any], efficiency: float) -> None:
        machine = plane.machine
        self._plane = plane
        self._track = track
        self._price = lru_cache(maxsize=4096)(price)
        # The link of one rank carries its copy, inflated by what the copy wastes; DRAM the payload of all ranks.
        self._path = ((link, 1.0), (machine.dram, machine.ranks * efficiency))
        self.stream = Stream(plane.env)

    def run(self, op: Op, done: Callable[[float, float], None]) -> None:
        """Copy, after all earlier ones of this direction. Calls `done(start_s, end_s)`."""
        plane = self._plane

        def job(next_job: Callable[[], None]) -> None:
            start_s = plane.env.now
            cost = self._price(op.pages)
            plane.copying(+1)

            def over() -> None:
                plane.copying(-1)
                plane.note(self._track, start_s, op)
                done(start_s, plane.env.now)
                next_job()

            plane.machine.fabric.send(self._path, cost.overhead_s, cost.link_bytes, over)

        self.stream.give(job)


class StoreClient:
    """The worker threads around a store: one probes, one fetches, one stores."""

    def __init__(
        self, plane: SimPlane, profile: StoreProfile, store: FaultyStore, page_bytes: float, replicated: bool, seed: int
    ) -> None:
        self._plane = plane
        self._profile = profile
        self.store = store
        machine = plane.machine
        self._ranks = plane.ranks
        self._read_bytes = page_bytes * machine.ranks
        # MLA: every rank has the same rows, and rank 0 alone writes them (article 5.5).
        self._write_bytes = page_bytes if replicated else page_bytes * machine.ranks
        self._rng = random.Random(f"store/{seed}")
        self._sigma = profile.tail_sigma
        self._objects = plane.objects_per_page * (1 if replicated else machine.ranks)
        self._read_path = self._path(machine.store_read, machine.nic_in)
        self._write_path = self._path(machine.store_write, machine.nic_out)
        self.prober, self.fetcher, self.storer = (Stream(plane.env) for _ in range(3))
        self.read_pages = self.written_pages = 0
        self.stored: Callable[[Any], None] = lambda names: None
        """Told of every page written."""

    def _path(self, end: Link, nic: Link) -> Path:
        share = self._profile.nic_share
        path: Path = ((end, 1.0), (self._plane.machine.dram, 1.0))
        return (*path, (nic, share)) if share else path

    def _tail(self) -> float:
        """How much longer than the median this call takes: the slowest of all ranks."""
        if not self._sigma:
            return 1.0
        gauss = self._rng.gauss
        return math.exp(self._sigma * max(gauss(0.0, 1.0) for _ in range(self._ranks)))

    def _latency_s(self, pages: int) -> float:
        profile = self._profile
        waves = math.ceil(pages * self._objects / profile.concurrency)
        return (profile.batch_latency_s + waves * profile.object_latency_s) * self._tail()

    # Operations

    def probe(self, op: Op) -> None:
        def job(next_job: Callable[[], None]) -> None:
            start_s = self._plane.env.now
            verdict = self.store.probe(op.keys, start_s)
            batches = math.ceil(op.pages / BATCH_PAGES)
            delay_s = verdict.fails_after_s
            if delay_s is None:
                asked = min(batches, verdict.pages // BATCH_PAGES + 1)
                delay_s = asked * self._profile.probe_latency_s * self._tail() * verdict.factor

            def over() -> None:
                self._plane.note("probe", start_s, op)
                self._plane.report(Completion(op.id, verdict.pages, verdict.fails_after_s is not None))
                next_job()

            self._plane.after(delay_s, over)

        self.prober.give(job)

    def fetch(self, op: Op) -> None:
        self.fetcher.give(lambda next_job: self._fetch_batch(op, 0, self._plane.env.now, next_job))

    def _fetch_batch(self, op: Op, at: int, start_s: float, next_job: Callable[[], None]) -> None:
        plane = self._plane
        names = op.keys[at : at + BATCH_PAGES]
        verdict = self.store.read(names, plane.env.now)

        def over() -> None:
            pages = verdict.pages
            if self.store.store.checks_after_reading and pages:
                pages = min(pages, self.store.store.probe(names, plane.env.now))
            good = self._partial(self._profile.partial_get, pages, len(names))
            self.read_pages += pages
            end = at + good
            short = good < len(names)
            if short or end == op.pages or plane.is_cancelled(op.id):
                plane.note("fetch", start_s, op)
                plane.report(Completion(op.id, end, short))
                next_job()
            else:
                plane.report(Progress(op.id, end))
                self._fetch_batch(op, end, start_s, next_job)

        self._move(verdict, len(names), self._read_bytes, self._read_path, over)

    def clear(self, op: Op) -> None:
        """Empty the store: one call, on the thread that stores."""

        def job(next_job: Callable[[], None]) -> None:
            self.store.store.clear()

            def over() -> None:
                self._plane.report(Completion(op.id, 0))
                next_job()

            self._plane.after(self._profile.probe_latency_s, over)

        self.storer.give(job)

    def store_pages(self, op: Op) -> None:
        self.storer.give(lambda next_job: self._store_batch(op, 0, self._plane.env.now, next_job))

    def _store_batch(self, op: Op, at: int, start_s: float, next_job: Callable[[], None]) -> None:
        plane = self._plane
        names = op.keys[at : at + BATCH_PAGES]
        verdict = self.store.write(names, plane.env.now)

        def over() -> None:
            good = self._partial(self._profile.partial_set, verdict.pages, len(names))
            self.written_pages += verdict.pages
            if good:
                self.stored(names[:good])
            end = at + good
            # Upstream gives up on the operation when a batch is not whole.
            if good < len(names) or end == op.pages:
                plane.note("store", start_s, op)
                plane.report(Completion(op.id, end, good < len(names)))
                next_job()
            else:
                self._store_batch(op, end, start_s, next_job)

        self._move(verdict, len(names), self._write_bytes, self._write_path, over)

    def _move(self, verdict: Verdict, pages: int, page_bytes: float, path: Path, over: Callable[[], None]) -> None:
        if verdict.fails_after_s is not None:
            self._plane.after(verdict.fails_after_s, over)
            return
        head_s = self._latency_s(pages) * verdict.factor
        size = verdict.pages * page_bytes * verdict.factor
        self._plane.machine.fabric.send(path, head_s, size, over)

    def _partial(self, how: str, good: int, asked: int) -> int:
        return PARTIAL_BATCHES[how](good, asked)


PARTIAL_BATCHES: dict[str, Callable[[int, int], int]] = {
    "per_page": lambda good, asked: good,
    "stops": lambda good, asked: good,
    "all_or_nothing": lambda good, asked: good if good == asked else 0,
}
"""Leading pages of a batch that count, by the store profile's word for it."""


class Device:
    """One batch at a time, slowed by copy kernels, and waiting for the layers it needs."""

    def __init__(self, plane: SimPlane, costs: Costs, parts: int, slowdown: float) -> None:
        self._plane = plane
        self._costs = costs
        self._parts = parts
        self._slowdown = slowdown
        self._op: Op | None = None
        self._version = 0
        self._pending: set[int] = set()
        self._floor_s = 0.0
        self.busy_s = self.waited_s = self.slowed_s = 0.0

    def start(self, op: Op) -> None:
        self._op = op
        self._batch = op.batch
        self._start_s = self._plane.env.now
        self._work_s = op.batch.seconds(self._costs)
        self._slow_from_s = self._plane.copied_s()
        self._floor_s = 0.0
        self._pending = set(self._plane.loading.intersection(op.batch.loads))
        self._check()

    def stop(self) -> None:
        """End after the step that is being computed."""
        if self._op is None or not self._batch.may_stop:
            return
        done_s = self._done_s()
        steps = min(self._batch.steps, self._batch.steps_within(self._costs, done_s) + 1)
        self._batch = self._batch.cut(steps)
        self._work_s = self._batch.seconds(self._costs)
        self._check()

    def runs(self, op_id: int) -> bool:
        return self._op is not None and self._op.id == op_id

    def arrived(self, op_id: int, start_s: float, end_s: float) -> None:
        """A load is on the device: layer i was there after i of its parts."""
        if op_id in self._pending:
            self._pending.discard(op_id)
            # The last layer computes after the last part, the first after the first.
            first_s = start_s + (end_s - start_s) / self._parts
            floor_s = max(end_s + self._work_s / self._parts, first_s + self._work_s)
            self._floor_s = max(self._floor_s, floor_s)
            if not self._pending:
                self._check()

    def _done_s(self) -> float:
        """Seconds of work done so far."""
        passed_s = self._plane.env.now - self._start_s
        return passed_s - self._slowdown * (self._plane.copied_s() - self._slow_from_s)

    def _check(self) -> None:
        """End the batch, or look again when it could have ended."""
        self._version += 1
        if self._pending:
            return
        now_s = self._plane.env.now
        left_s = max(self._work_s - self._done_s(), self._floor_s - now_s)
        if left_s > math.ulp(now_s) * 2:
            version = self._version
            self._plane.after(left_s, lambda: self._check_if(version))
        else:
            self._end()

    def _check_if(self, version: int) -> None:
        if version == self._version:
            self._check()

    def _end(self) -> None:
        op, plane = self._op, self._plane
        assert op is not None
        self._op = None
        passed_s = plane.env.now - self._start_s
        slowed_s = self._slowdown * (plane.copied_s() - self._slow_from_s)
        self.busy_s += passed_s
        self.slowed_s += min(slowed_s, passed_s)
        self.waited_s += max(passed_s - self._work_s - slowed_s, 0.0)
        plane.note("compute", self._start_s, op)
        plane.report(Completion(op.id, self._batch.steps), computed=True)


class SimStoreMeter:
    """Satisfies `account.meters.StoreMeter`."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._store = client.store.store

    @property
    def capacity_pages(self) -> float:
        return self._store.capacity_pages

    @property
    def held_pages(self) -> int:
        return len(self._store.held)

    @property
    def evicted_pages(self) -> int:
        return self._store.evicted

    @property
    def refused_pages(self) -> int:
        return self._store.refused

    @property
    def failed_calls(self) -> int:
        return self._client.store.failed_calls

    @property
    def read_pages(self) -> int:
        return self._client.read_pages

    @property
    def written_pages(self) -> int:
        return self._client.written_pages


class SimMeters:
    """Satisfies `account.meters.Meters`."""

    def __init__(self, plane: SimPlane) -> None:
        self._device = plane.device
        self.links = plane.machine.links
        self.op_counts = plane.op_counts
        self.store = SimStoreMeter(plane.client) if plane.client is not None else None

    @property
    def busy_s(self) -> float:
        return self._device.busy_s

    @property
    def waited_s(self) -> float:
        return self._device.waited_s

    @property
    def slowed_s(self) -> float:
        return self._device.slowed_s


class SimPlane:
    """Satisfies `plane.DataPlane`. Who sets `deliver` is given reports as they come, and whether a batch is done;
    otherwise they wait for `poll`."""

    def __init__(
        self,
        env: Environment,
        hardware: HardwareProfile,
        copies: CopyModel,
        costs: Costs,
        ranks: int = 1,
        store: FaultyStore | None = None,
        store_profile: StoreProfile | None = None,
        replicated: bool = False,
        seed: int = 0,
    ) -> None:
        self.env = env
        self.ranks = ranks
        self.machine = Machine(env, hardware, store_profile, ranks)
        self.objects_per_page = copies.layout.objects_per_page(copies.geometry) if copies.layout.stored else 1
        page_bytes = copies.geometry.page_bytes
        self.capabilities = Capabilities(page_bytes, copies.geometry.layers, ranks, store is not None)
        machine = self.machine
        self.writer = CopyEngine(self, "backup", machine.d2h, copies.backup, copies.backup_direction.efficiency)
        self.loader = CopyEngine(self, "load", machine.h2d, copies.load, copies.load_direction.efficiency)
        self.device = Device(self, costs, copies.parts, copies.compute_slowdown)
        self.client = (
            StoreClient(self, store_profile, store, page_bytes, replicated, seed)
            if store is not None and store_profile is not None
            else None
        )
        self.op_counts = dict.fromkeys(OpKind, 0)
        self.meters = SimMeters(self)
        self.loading: set[int] = set()
        self.slices: list[Slice] | None = None
        """Where what the streams did is noted; None: nowhere."""
        self.most_slices = 0
        """Notes beyond these are dropped."""
        self.deliver: Callable[[Report, bool], None] = self._keep
        self._reports: list[Report] = []
        self._cancelled: set[int] = set()
        self._open: set[int] = set()
        self._copies = 0
        self._copied_s = 0.0
        self._copies_since_s = 0.0
        self._run: dict[OpKind, Callable[[Op], None]] = {
            OpKind.BACKUP: self._backup,
            OpKind.LOAD: self._load,
            OpKind.COMPUTE: self.device.start,
        }
        if self.client is not None:
            self._run |= {
                OpKind.PROBE: self.client.probe,
                OpKind.FETCH: self.client.fetch,
                OpKind.STORE: self.client.store_pages,
                OpKind.CLEAR: self.client.clear,
            }

    # The protocol

    def submit(self, op: Op) -> None:
        self._open.add(op.id)
        self.op_counts[op.kind] += 1
        self._run[op.kind](op)

    def cancel(self, op_id: int) -> None:
        if op_id not in self._open:
            return
        self._cancelled.add(op_id)
        if self.device.runs(op_id):
            self.device.stop()

    def poll(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    # For the parts

    def report(self, report: Report, computed: bool = False) -> None:
        if report.ends:
            self._open.discard(report.op_id)
            self._cancelled.discard(report.op_id)
        self.deliver(report, computed)

    def _keep(self, report: Report, computed: bool) -> None:
        self._reports.append(report)

    def is_cancelled(self, op_id: int) -> bool:
        return op_id in self._cancelled

    def after(self, delay_s: float, then: Callable[[], None]) -> None:
        Timeout(self.env, delay_s).callbacks.append(lambda _: then())

    def note(self, track: str, start_s: float, op: Op) -> None:
        if self.slices is not None and len(self.slices) < self.most_slices:
            self.slices.append(Slice(track, start_s, self.env.now, op.id, op.pages))

    def copying(self, change: int) -> None:
        """A copy between L1 and L2 begins or ends."""
        self._copied_s = self.copied_s()
        self._copies_since_s = self.env.now
        self._copies += change

    def copied_s(self) -> float:
        """Seconds so far in which copies ran."""
        return self._copied_s + (self.env.now - self._copies_since_s if self._copies else 0.0)

    def _backup(self, op: Op) -> None:
        self.writer.run(op, lambda start_s, end_s: self.report(Completion(op.id, op.pages)))

    def _load(self, op: Op) -> None:
        self.loading.add(op.id)

        def done(start_s: float, end_s: float) -> None:
            self.loading.discard(op.id)
            self.device.arrived(op.id, start_s, end_s)
            self.report(Completion(op.id, op.pages))

        self.loader.run(op, done)
