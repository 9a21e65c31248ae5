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
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from simpy import Environment

from hicache_ref.account.meters import Slice
from hicache_ref.control.batches import Costs
from hicache_ref.control.types import Completion, Op, OpKind, Progress, Report
from hicache_ref.plane import Capabilities

from .agenda import Agenda, Alarm, Call
from .copies import CopyCost, CopyModel
from .faults import FaultyStore, Verdict
from .hardware import HardwareProfile, StoreProfile
from .links import Fabric, Flow, Job, Link, Path, Stream

BATCH_PAGES = 128
"""Pages a store is asked for at a time (upstream's `storage_batch_size`)."""


class Machine:
    """Links of one node, as its ranks use them."""

    def __init__(self, agenda: Agenda, hardware: HardwareProfile, store: StoreProfile | None, ranks: int) -> None:
        self.fabric = Fabric(agenda)
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

    def __init__(self, plane: SimPlane, track: str, link: Link, price: Callable[[int], CopyCost], share: float) -> None:
        machine = plane.machine
        self.plane = plane
        self.track = track
        self.price: Callable[[int], CopyCost] = lru_cache(maxsize=4096)(price)
        # The link of one rank carries its copy, inflated by what the copy wastes; DRAM the payload of all ranks.
        self.path = Path(((link, 1.0), (machine.dram, machine.ranks * share)))
        self.stream = Stream(plane.agenda)


class Copy(Flow):
    """A BACKUP or a LOAD, after all earlier ones of its direction."""

    def __init__(self, engine: CopyEngine, op: Op) -> None:
        super().__init__(engine.path)
        self._engine = engine
        self._op = op
        self._start_s = 0.0

    def start(self) -> None:
        engine, plane = self._engine, self._engine.plane
        self._start_s = plane.agenda.now_s
        cost = engine.price(self._op.pages)
        plane.copying(+1)
        plane.machine.fabric.send(self, cost.overhead_s, cost.link_bytes)

    def over(self) -> None:
        engine, op = self._engine, self._op
        engine.plane.copying(-1)
        engine.plane.note(engine.track, self._start_s, op)
        engine.plane.copied(op, self._start_s)
        engine.stream.next()


class StoreClient:
    """The worker threads around a store: one probes, one fetches, one stores."""

    def __init__(
        self, plane: SimPlane, profile: StoreProfile, store: FaultyStore, page_bytes: float, replicated: bool, seed: int
    ) -> None:
        self.plane = plane
        self._profile = profile
        self.store = store
        machine = plane.machine
        # MLA: every rank has the same rows, and rank 0 alone writes them (article 5.5).
        objects_per_page = OBJECTS_PER_PAGE[profile.objects](plane.buffers_per_page)
        self._objects = objects_per_page * (1 if replicated else machine.ranks)
        self.side = Side(plane.agenda, profile.compute_share)
        self.reads = Calls(self, machine.store_read, machine.nic_in, page_bytes * machine.ranks)
        written_bytes = page_bytes if replicated else page_bytes * machine.ranks
        self.writes = Calls(self, machine.store_write, machine.nic_out, written_bytes, profile.write_times)
        self._tails = Tails(seed, profile.tail_sigma, plane.ranks)
        self._partial_get = PARTIAL_BATCHES[profile.partial_get]
        self._partial_set = PARTIAL_BATCHES[profile.partial_set]
        self.prober, self.fetcher, self.storer = Stream(plane.agenda), Stream(plane.agenda), Stream(plane.agenda)
        self.read_pages = self.written_pages = 0
        self.stored: Callable[[Any], None] = lambda names: None
        """Told of every page written."""

    # Operations

    def probe(self, op: Op) -> None:
        self.prober.give(Probe(self, op))

    def fetch(self, op: Op) -> None:
        self.fetcher.give(Fetch(self, op))

    def store_pages(self, op: Op) -> None:
        self.storer.give(Write(self, op))

    def clear(self, op: Op) -> None:
        self.storer.give(Clear(self, op))

    # What they cost, and what becomes of them

    def latency_s(self, pages: int) -> float:
        """Of a batch that is read, before its bytes."""
        profile = self._profile
        waves = math.ceil(pages * self._objects / profile.concurrency)
        return (profile.batch_latency_s + waves * profile.object_latency_s) * self._tails.draw()

    def probe_s(self, pages: int, verdict: Verdict) -> float:
        """How long it takes to hear how many of `pages` are there: batches are asked for until one is not whole."""
        if verdict.fails_after_s is not None:
            return verdict.fails_after_s
        asked = min(math.ceil(pages / BATCH_PAGES), verdict.pages // BATCH_PAGES + 1)
        return asked * self._profile.probe_latency_s * self._tails.draw() * verdict.factor

    @property
    def call_s(self) -> float:
        """A call that moves nothing."""
        return self._profile.probe_latency_s

    def was_read(self, names: Sequence[Any], verdict: Verdict) -> int:
        """A batch has been read; how many leading pages of it count."""
        pages, store = verdict.pages, self.store.store
        if store.checks_after_reading and pages:
            pages = min(pages, store.probe(names, self.plane.agenda.now_s))
        self.read_pages += pages
        return self._partial_get(pages, len(names))

    def was_written(self, names: Sequence[Any], verdict: Verdict) -> int:
        """A batch has been written; how many leading pages of it count."""
        good = self._partial_set(verdict.pages, len(names))
        self.written_pages += verdict.pages
        if good:
            self.stored(names if good == len(names) else names[:good])
        return good


class Tails:
    """How much longer than the median calls take: of every call the slowest rank's log-normal factor."""

    def __init__(self, seed: int, sigma: float, ranks: int) -> None:
        self._random = random.Random(f"store/{seed}").random
        self._sigma = sigma
        self._ranks = ranks
        self._spare: float | None = None

    def draw(self) -> float:
        if not self._sigma:
            return 1.0
        slowest = self._gauss()
        for _ in range(1, self._ranks):
            slowest = max(slowest, self._gauss())
        return math.exp(self._sigma * slowest)

    def _gauss(self) -> float:
        """Box and Muller's, of which every draw gives two."""
        spare = self._spare
        if spare is not None:
            self._spare = None
            return spare
        angle: float = self._random() * 2.0 * math.pi
        radius = math.sqrt(-2.0 * math.log(1.0 - self._random()))
        self._spare = math.sin(angle) * radius
        return math.cos(angle) * radius


class Calls:
    """One direction of the store: how many bytes a page is there, and the links they cross."""

    def __init__(self, client: StoreClient, end: Link, nic: Link, page_bytes: float, times: float = 1.0) -> None:
        """times: its latencies, in those of a read."""
        plane, share = client.plane, client._profile.nic_share
        legs = [(end, 1.0), (plane.machine.dram, 1.0)]
        if share:
            legs.append((nic, share))
        self._client = client
        self._plane = plane
        self._page_bytes = page_bytes
        self._times = times
        self.path = Path(legs)

    def send(self, batch: Batch, pages: int, verdict: Verdict) -> None:
        """Move what the store answered for a batch of `pages`."""
        self._client.side.change(+1)
        if verdict.fails_after_s is not None:
            Call(self._plane.agenda, verdict.fails_after_s, batch.over)
            return
        head_s = self._client.latency_s(pages) * self._times * verdict.factor
        self._plane.machine.fabric.send(batch, head_s, verdict.pages * self._page_bytes * verdict.factor)


class Batch(Flow):
    """A FETCH or a STORE: batch after batch of the store's size, until all is done or one is not whole."""

    def __init__(self, client: StoreClient, op: Op, calls: Calls) -> None:
        super().__init__(calls.path)
        self.client = client
        self.op = op
        self.done_pages = 0
        self.start_s = 0.0
        self.names: Sequence[Any] = ()
        self.verdict = NOTHING
        self._calls = calls

    def start(self) -> None:
        self.start_s = self.client.plane.agenda.now_s
        self.go_on()

    def go_on(self) -> None:
        """The next batch."""
        op, at = self.op, self.done_pages
        self.names = op.keys[at : at + BATCH_PAGES] if op.pages > BATCH_PAGES else op.keys
        self.verdict = self.ask(self.client.plane.agenda.now_s)
        self._calls.send(self, len(self.names), self.verdict)

    def ask(self, now_s: float) -> Verdict:
        """What the store does with `names`."""
        raise AssertionError

    def end(self, track: str, short: bool) -> None:
        plane, op = self.client.plane, self.op
        plane.note(track, self.start_s, op)
        plane.report(Completion(op.id, self.done_pages, short))


class Fetch(Batch):
    def __init__(self, client: StoreClient, op: Op) -> None:
        super().__init__(client, op, client.reads)

    def ask(self, now_s: float) -> Verdict:
        return self.client.store.read(self.names, now_s)

    def over(self) -> None:
        client, op = self.client, self.op
        client.side.change(-1)
        good = client.was_read(self.names, self.verdict)
        self.done_pages += good
        short = good < len(self.names)
        if short or self.done_pages == op.pages or client.plane.is_cancelled(op.id):
            self.end("fetch", short)
            client.fetcher.next()
        else:
            client.plane.report(Progress(op.id, self.done_pages))
            self.go_on()


class Write(Batch):
    def __init__(self, client: StoreClient, op: Op) -> None:
        super().__init__(client, op, client.writes)

    def ask(self, now_s: float) -> Verdict:
        return self.client.store.write(self.names, now_s)

    def over(self) -> None:
        client = self.client
        client.side.change(-1)
        good = client.was_written(self.names, self.verdict)
        self.done_pages += good
        # Upstream gives up on the operation when a batch is not whole.
        short = good < len(self.names)
        if short or self.done_pages == self.op.pages:
            self.end("store", short)
            client.storer.next()
        else:
            self.go_on()


class Probe(Job):
    """How many leading pages the store has."""

    def __init__(self, client: StoreClient, op: Op) -> None:
        self._client = client
        self._op = op
        self._start_s = 0.0
        self._verdict = NOTHING

    def start(self) -> None:
        client, agenda = self._client, self._client.plane.agenda
        self._start_s = agenda.now_s
        self._verdict = client.store.probe(self._op.keys, self._start_s)
        Call(agenda, client.probe_s(self._op.pages, self._verdict), self._over)

    def _over(self) -> None:
        client, op, verdict = self._client, self._op, self._verdict
        client.plane.note("probe", self._start_s, op)
        client.plane.report(Completion(op.id, verdict.pages, verdict.fails_after_s is not None))
        client.prober.next()


class Clear(Job):
    """Empty the store: one call, on the thread that stores."""

    def __init__(self, client: StoreClient, op: Op) -> None:
        self._client = client
        self._op = op

    def start(self) -> None:
        self._client.store.store.clear()
        Call(self._client.plane.agenda, self._client.call_s, self._over)

    def _over(self) -> None:
        self._client.plane.report(Completion(self._op.id, 0))
        self._client.storer.next()


NOTHING = Verdict(0)


OBJECTS_PER_PAGE: dict[str, Callable[[int], int]] = {"page": lambda buffers: 1, "buffer": lambda buffers: buffers}
"""How many objects a page is, by the store profile's word for them."""

PARTIAL_BATCHES: dict[str, Callable[[int, int], int]] = {
    "per_page": lambda good, asked: good,
    "stops": lambda good, asked: good,
    "all_or_nothing": lambda good, asked: good if good == asked else 0,
}
"""Leading pages of a batch that count, by the store profile's word for it."""


class Side:
    """Work beside the device that takes a share of its time, while there is any."""

    def __init__(self, agenda: Agenda, share: float) -> None:
        self._agenda = agenda
        self._share = share
        self._jobs = 0
        self._since_s = 0.0
        self._lost_s = 0.0

    def change(self, jobs: int) -> None:
        """So many more are under way."""
        self._lost_s = self.lost_s()
        self._since_s = self._agenda.now_s
        self._jobs += jobs

    def lost_s(self) -> float:
        """Seconds of the device's time taken so far."""
        return self._lost_s + (self._share * (self._agenda.now_s - self._since_s) if self._jobs else 0.0)


class _Look(Alarm):
    """The batch could have ended, unless something has come between."""

    def __init__(self, device: Device, agenda: Agenda, delay_s: float) -> None:
        super().__init__(agenda, delay_s)
        self._device = device

    def ring(self) -> None:
        self._device.looked(self)


class Wake(NamedTuple):
    """How a batch starts after a pause of the device: `start_s` passes before it does, and it takes longer, nearly
    `most_s` after a long pause, half of that after `half_s`."""

    start_s: float
    most_s: float
    half_s: float

    def at(self, pause_s: float) -> float:
        return self.start_s + self.most_s * pause_s / (pause_s + self.half_s)


NEVER_ASLEEP = Wake(0.0, 0.0, 1.0)


class Device:
    """One batch at a time, slowed by what works beside it, and waiting for the layers it needs.

    between_s: passes between a batch and the next; after a pause it is as `wake` says.
    """

    def __init__(
        self, plane: SimPlane, costs: Costs, parts: int, sides: list[Side], between_s: float, wake: Wake
    ) -> None:
        self._plane = plane
        self._costs = costs
        self._parts = parts
        self._sides = sides
        self._between_s = between_s
        self._wake = wake
        self._ended_s = 0.0
        self._op: Op | None = None
        self._look: _Look | None = None
        """The alarm in force."""
        self._pending: set[int] = set()
        self._floor_s = 0.0
        self.busy_s = self.waited_s = self.slowed_s = 0.0

    def start(self, op: Op) -> None:
        self._op = op
        self._batch = op.batch
        now_s = self._plane.agenda.now_s
        pause_s = now_s - self._ended_s
        self._start_s = now_s + (self._wake.at(pause_s) if pause_s else self._between_s)
        self._work_s = op.batch.seconds(self._costs)
        self._slow_from_s = self._lost_s()
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
        passed_s = self._plane.agenda.now_s - self._start_s
        return passed_s - (self._lost_s() - self._slow_from_s)

    def _lost_s(self) -> float:
        lost_s = 0.0
        for side in self._sides:
            lost_s += side.lost_s()
        return lost_s

    def _check(self) -> None:
        """End the batch, or look again when it could have ended."""
        self._look = None
        if self._pending:
            return
        now_s = self._plane.agenda.now_s
        left_s = max(self._work_s - self._done_s(), self._floor_s - now_s)
        if left_s > math.ulp(now_s) * 2:
            self._look = _Look(self, self._plane.agenda, left_s)
        else:
            self._end()

    def looked(self, look: _Look) -> None:
        if look is self._look:
            self._check()

    def _end(self) -> None:
        op, plane = self._op, self._plane
        assert op is not None
        self._op = None
        self._ended_s = plane.agenda.now_s
        passed_s = plane.agenda.now_s - self._start_s
        slowed_s = self._lost_s() - self._slow_from_s
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
        self._machine = plane.machine
        self.op_counts = plane.op_counts
        self.store = SimStoreMeter(plane.client) if plane.client is not None else None

    @property
    def links(self) -> list[Link]:
        self._machine.fabric.advance()
        return self._machine.links

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
        between_batches_s: float = 0.0,
        wake: Wake = NEVER_ASLEEP,
    ) -> None:
        self.agenda = Agenda(env)
        self.ranks = ranks
        self.machine = Machine(self.agenda, hardware, store_profile, ranks)
        self.buffers_per_page = copies.layout.objects_per_page(copies.geometry) if copies.layout.stored else 1
        page_bytes = copies.geometry.page_bytes
        self.capabilities = Capabilities(page_bytes, copies.geometry.layers, ranks, store is not None)
        machine = self.machine
        self.writer = CopyEngine(self, "backup", machine.d2h, copies.backup, copies.backup_direction.efficiency)
        self.loader = CopyEngine(self, "load", machine.h2d, copies.load, copies.load_direction.efficiency)
        self._copy_side = Side(self.agenda, copies.compute_slowdown)
        self.client = (
            StoreClient(self, store_profile, store, page_bytes, replicated, seed)
            if store is not None and store_profile is not None
            else None
        )
        sides = [self._copy_side, *([self.client.side] if self.client is not None else [])]
        self.device = Device(self, costs, copies.parts, sides, between_batches_s, wake)
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

    def note(self, track: str, start_s: float, op: Op) -> None:
        if self.slices is not None and len(self.slices) < self.most_slices:
            self.slices.append(Slice(track, start_s, self.agenda.now_s, op.id, op.pages))

    def copying(self, change: int) -> None:
        """A copy between L1 and L2 begins or ends."""
        self._copy_side.change(change)

    def _backup(self, op: Op) -> None:
        self.writer.stream.give(Copy(self.writer, op))

    def _load(self, op: Op) -> None:
        self.loading.add(op.id)
        self.loader.stream.give(Copy(self.loader, op))

    def copied(self, op: Op, start_s: float) -> None:
        """A copy between L1 and L2 is done."""
        if op.kind is OpKind.LOAD:
            self.loading.discard(op.id)
            self.device.arrived(op.id, start_s, self.agenda.now_s)
        self.report(Completion(op.id, op.pages))
