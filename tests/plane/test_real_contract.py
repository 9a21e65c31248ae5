"""The real plane keeps the contract: bytes in CPU memory, copies and batches on threads, a store in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from hicache_ref.control.types import Op, OpKind
from hicache_ref.data.copy import PlainCopier
from hicache_ref.data.plane import RealPlane
from hicache_ref.data.workers import StorageWorkers
from tests.data import fake_cuda

from .contract import Bench, PlaneContract
from .real import SOON_S, MemoryClient, pools, until

STEP_S = 0.005
"""Of the test's own time, which passes when it says so."""


class Gate:
    """A computer whose steps take test time. Open: none."""

    def __init__(self, launch: Callable[[Callable[[], None]], None]) -> None:
        self.launch = launch
        self.now_s = 0.0
        self.open = False
        self.waiting = False
        self.change = threading.Condition()

    def begin(self, op: Op) -> Any:
        return GatedWork(self, self.now_s)

    def move(self, seconds: float) -> None:
        with self.change:
            self.now_s += seconds
            self.waiting = False
            self.change.notify_all()

    def set(self, is_open: bool) -> None:
        with self.change:
            self.open = is_open
            self.change.notify_all()

    def pass_at(self, time_s: float) -> None:
        with self.change:
            while not (self.open or self.now_s >= time_s):
                self.waiting = True
                self.change.wait(SOON_S)
            self.waiting = False


class GatedWork:
    def __init__(self, gate: Gate, began_s: float) -> None:
        self.gate, self.began_s = gate, began_s

    def step(self, at: int, before_layer: Callable[[int], None]) -> None:
        for layer in range(3):
            before_layer(layer)
        self.gate.launch(lambda: self.gate.pass_at(self.began_s + (at + 1) * STEP_S))


class Launching:
    """A copier whose copies are launched."""

    def __init__(self, copier: PlainCopier, launch: Callable[[Callable[[], None]], None]) -> None:
        self.copier, self.launch = copier, launch

    def load(self, host_pages: Any, device_pages: Any) -> Any:
        plan = self.copier.load(host_pages, device_pages)
        return SimpleNamespace(parts=plan.parts, layer=lambda layer: self.launch(lambda: plan.layer(layer)))

    def backup(self, device_pages: Any, host_pages: Any) -> Any:
        plan = self.copier.backup(device_pages, host_pages)
        return SimpleNamespace(run=lambda: self.launch(plan.run))


class RealBench(Bench):
    """Copies and the store take what they take; batches take the test's time."""

    def __init__(self, storage: bool, ahead: bool = False, **options: Any) -> None:
        device, host = pools(self.slots, page_size=1)
        launch = fake_cuda.launch if ahead else (lambda work: work())
        self.gate = Gate(launch)
        copier = Launching(PlainCopier(device, host), launch)
        self.storage = storage
        client = MemoryClient()
        workers = (lambda report: StorageWorkers(client, host, report)) if storage else None
        self.made = RealPlane(device, self.gate, host, copier, workers, **options)
        super().__init__(self.made)

    def let(self, seconds: float) -> None:
        self.gate.move(seconds)
        time.sleep(min(seconds, 0.001))
        until(lambda: self.gate.waiting or not self.computing, "a batch that ends or waits for its time")

    @property
    def computing(self) -> bool:
        return any(flight.op.kind is OpKind.COMPUTE for flight in list(self.made._open.values()))

    def finish(self) -> None:
        self.gate.set(True)
        until(lambda: not self.made.in_flight, "the end of all operations")
        self.gate.set(False)

    def all_over(self) -> None:
        """Rule 4 too: the plane forgets what is over."""
        super().all_over()
        assert not (self.made._open or self.made._lingering or self.made._arrivals)


class RealContract(PlaneContract):
    options: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True)
    def _closes(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        if self.options.get("ahead"):
            fake_cuda.FakeCuda.put_under(monkeypatch)
        self.benches: list[RealBench] = []
        yield
        for bench in self.benches:
            bench.gate.set(True)
            bench.made.close(SOON_S)
            assert bench.made.poll() == []
        fake_cuda.end_all()

    def bench(self, seed: int = 0) -> Bench:
        self.benches.append(RealBench(**self.options))
        return self.benches[-1]


class TestWithStore(RealContract):
    options: ClassVar = {"storage": True}


class TestLaunchingAhead(RealContract):
    """As on CUDA: what is launched is done later."""

    options: ClassVar = {"storage": True, "ahead": True, "poison": True}


class TestWithoutStore(RealContract):
    options: ClassVar = {"storage": False}
