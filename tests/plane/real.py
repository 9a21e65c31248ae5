"""A real plane in a test's hands: small pools, a store in memory, batches and copies that go on when the test says so.

Rules of this file
- No sleeping for luck: what has to be late waits for a gate, what has to come is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hicache_ref.config.layouts import LAYOUTS, KvGeometry
from hicache_ref.control.types import Op, OpKind
from hicache_ref.data.copy import Copier, make_copier
from hicache_ref.data.plane import RealPlane
from hicache_ref.data.pools import DevicePool, HostPool
from hicache_ref.data.storage.client import Counts, StorageIdentity
from hicache_ref.data.storage.keeping import Keeping, unlimited
from hicache_ref.data.workers import StorageWorkers

SOON_S = 20.0
"""Longer than anything here takes on a busy machine."""


def geometry(pool: str = "mha", layers: int = 3, page_size: int = 2) -> KvGeometry:
    """Rows of 4 floats: K and V of one head, or one latent row of two parts."""
    components, parts = {"mha": (2, (4,)), "mla": (1, (3, 1))}[pool]
    return KvGeometry(pool, components, layers, page_size, 1, 4, 4, parts)


def pools(pages: int, layout: str = "page_first", **shape: Any) -> tuple[DevicePool, HostPool]:
    """Both of `pages` pages, float32, on the CPU."""
    sizes = geometry(**shape)
    return DevicePool(sizes, pages, torch.float32), HostPool(LAYOUTS[layout], sizes, pages, torch.float32)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds. AssertionError if it never does."""
    end_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(0.0005)


class MemoryClient:
    """A store that keeps pages by name. `hold`, if set, is waited for in every call."""

    identity = StorageIdentity()

    def __init__(self) -> None:
        self.pages: dict[Any, bytes] = {}
        self.hold: threading.Event | None = None
        self.called = threading.Event()
        self.fails = False
        self.counts = Counts()
        self.closed = False

    def exists(self, names: Sequence[Any]) -> int:
        self._call()
        return _leading(name in self.pages for name in names)

    def get(self, names: Sequence[Any], host: HostPool, slots: Any) -> int:
        self._call()
        good = _leading(name in self.pages for name in names)
        for name, page in zip(names[:good], slots[:good].tolist(), strict=True):
            at, data = 0, self.pages[name]
            for piece in host.page_memory(page):
                piece[:] = data[at : at + len(piece)]
                at += len(piece)
        return good

    def put(self, names: Sequence[Any], host: HostPool, slots: Any) -> int:
        self._call()
        for name, page in zip(names, slots.tolist(), strict=True):
            self.pages.setdefault(name, b"".join(bytes(piece) for piece in host.page_memory(page)))
        return len(names)

    def clear(self) -> None:
        self._call()
        self.pages.clear()

    def stats(self) -> dict[str, float]:
        return self.counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("a dict")

    def close(self) -> None:
        self.closed = True

    def _call(self) -> None:
        self.called.set()
        if self.hold is not None:
            self.hold.wait(SOON_S)
        if self.fails:
            raise OSError("the store is on fire")


def _leading(good: Any) -> int:
    count = 0
    for one in good:
        if not one:
            break
        count += 1
    return count


class Idle:
    """A computer whose batches take no time. `layers`: it passes the fence of each."""

    def __init__(self, layers: int = 3) -> None:
        self.layers = layers

    def begin(self, op: Op) -> Idle:
        return self

    def step(self, at: int, before_layer: Callable[[int], None]) -> None:
        for layer in range(self.layers):
            before_layer(layer)


class Scripted:
    """A computer that does what the test says: `step(op, at, before_layer)`."""

    def __init__(self, step: Callable[[Op, int, Callable[[int], None]], None]) -> None:
        self._step = step

    def begin(self, op: Op) -> Any:
        return SimpleNamespace(step=partial(self._step, op))


class Watched:
    """A copier around another: tells `seen` what it does, and asks `before(what)` first, which may wait or raise.

    what: ("load", layer) or ("backup",).
    """

    def __init__(self, copier: Copier, seen: list[Any], before: Callable[[tuple[Any, ...]], None]) -> None:
        self.copier, self.seen, self.before = copier, seen, before

    def load(self, host_pages: Any, device_pages: Any) -> Any:
        return WatchedLoad(self, self.copier.load(host_pages, device_pages))

    def backup(self, device_pages: Any, host_pages: Any) -> Any:
        return WatchedBackup(self, self.copier.backup(device_pages, host_pages))

    def do(self, what: tuple[Any, ...], copy: Callable[[], None]) -> None:
        self.before(what)
        copy()
        self.seen.append(what)


class WatchedLoad:
    def __init__(self, watched: Watched, plan: Any) -> None:
        self.watched, self.plan, self.parts = watched, plan, plan.parts

    def layer(self, layer: int) -> None:
        self.watched.do(("load", layer), lambda: self.plan.layer(layer))


class WatchedBackup:
    def __init__(self, watched: Watched, plan: Any) -> None:
        self.watched, self.plan = watched, plan

    def run(self) -> None:
        self.watched.do(("backup",), self.plan.run)


class Rig:
    """A plane over small pools whose pages hold patterns, and its operations by hand."""

    def __init__(
        self,
        computer: Any = None,
        before: Callable[[tuple[Any, ...]], None] = lambda what: None,
        pages: int = 32,
        layout: str = "page_first",
        io_backend: str = "kernel",
        pool: str = "mha",
        client: MemoryClient | None = None,
        store: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.device, self.host = pools(pages, layout, pool=pool)
        self.seen: list[Any] = []
        self.client = client or MemoryClient()
        self.plane = RealPlane(
            self.device,
            computer or Idle(),
            self.host,
            Watched(make_copier(io_backend, self.device, self.host), self.seen, before),
            lambda report: StorageWorkers(self.client, self.host, report, **(store or {})),
            **options,
        )
        self.ends: dict[int, Any] = {}
        self.reports: list[Any] = []
        self._next = 0

    def submit(self, kind: OpKind, src: Any = None, dst: Any = None, names: Any = (), **more: Any) -> int:
        self._next += 1
        pages = more.pop("pages", len(names) or len(src if src is not None else ()))
        arrays = [None if slots is None else np.asarray(slots, dtype=np.int64) for slots in (src, dst)]
        self.plane.submit(Op(self._next, kind, pages, *arrays, names, **more))
        return self._next

    def load(self, src: Any, dst: Any) -> int:
        return self.submit(OpKind.LOAD, src, dst)

    def backup(self, src: Any, dst: Any) -> int:
        return self.submit(OpKind.BACKUP, src, dst)

    def compute(self, loads: tuple[int, ...] = (), steps: int = 1, may_stop: bool = False) -> int:
        return self.submit(OpKind.COMPUTE, pages=steps, batch=Batch(loads, may_stop))

    def collect(self) -> None:
        for report in self.plane.poll():
            self.reports.append(report)
            if report.ends:
                assert report.op_id not in self.ends, f"a second end: {report}"
                self.ends[report.op_id] = report

    def end(self, op_id: int) -> Any:
        """Wait for the end of an operation, without spinning."""
        end_s = time.monotonic() + SOON_S
        while op_id not in self.ends:
            assert time.monotonic() < end_s, f"operation {op_id} never ends"
            self.plane.wait(1.0)
            self.collect()
        return self.ends[op_id]

    def error(self, op_id: int) -> str:
        return next(failure.what for failure in self.plane.errors if failure.op_id == op_id)

    # Bytes

    def paint_device(self, pages: Sequence[int], first: float) -> None:
        """Page i gets a pattern of its own: `first + i`, and what layer, component and place it is."""
        self.device.whole[:, :, list(pages)] = pattern(self.device, len(pages), first)

    def paint_host(self, pages: Sequence[int], first: float) -> None:
        for component, painted in enumerate(pattern(self.device, len(pages), first)):
            views = self.host.views(component)
            for view, part in zip(views, painted.split([view.shape[-1] for view in views], -1), strict=True):
                view[:, list(pages)] = part

    def on_device(self, pages: Sequence[int], first: float) -> bool:
        return torch.equal(self.device.whole[:, :, list(pages)], pattern(self.device, len(pages), first))

    def on_host(self, pages: Sequence[int], first: float) -> bool:
        whole = [torch.cat(self.host.views(c), -1) for c in range(self.device.geometry.components)]
        return torch.equal(torch.stack(whole)[:, :, list(pages)], pattern(self.device, len(pages), first))


def pattern(device: DevicePool, pages: int, first: float) -> torch.Tensor:
    """[C, L, pages, T, H, D], every number of it different within a million."""
    c, layers, _, t, h, d = device.whole.shape
    within = torch.arange(c * layers * t * h * d, dtype=torch.float32).view(c, layers, 1, t, h, d)
    return within + 1000 * (first + torch.arange(pages, dtype=torch.float32)).view(1, 1, pages, 1, 1, 1)


class Batch:
    """As much of a `batches` batch as a plane looks at."""

    def __init__(self, loads: tuple[int, ...] = (), may_stop: bool = False) -> None:
        self.loads, self.may_stop = loads, may_stop
