"""Measure this machine: the library behind `hicache calibrate`.

Rules of this file
- What a calibration holds is here, in the order in which it is measured; how a thing is measured is its own module's,
  what becomes of it in the file is `record`'s.
- Stores are measured under names of their own (`TAG`): pages that others keep there are neither read nor removed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..config.layouts import KvGeometry, find_layout
from ..config.server_args import ConfigError
from ..control.types import Op
from ..data.storage.client import StorageClient, StoreFailed
from ..data.storage.registry import BACKENDS, make_client
from ..run.setup import Machine, RealConfig, RealPlan, identity, make_machine, plan
from . import machine as where
from .beside import lost
from .compute import ComputeBench
from .copies import blocks, links, operators
from .driver import alone_at_rest, between_batches
from .memory import dram
from .record import Found, content
from .rig import Batch, Rig, RigFailed, batch_of
from .samples import Spread
from .stores import StoreBench, StoreFigures
from .wake import wake

SECONDS = 90.0
POOL_TOKENS = 1 << 16
"""L1 where the flags do not say: enough for the longest batches."""
LONGEST_TOKENS = 16384
"""Of a sequence."""
SIDE_TOKENS, SIDE_PAGES = 1024, 32
"""Of the batch that is timed beside copies, and of these."""
WOKEN_BEFORE, WOKEN_NEW = 512, 96
"""Tokens of the batch that is timed after pauses: that of a request that hits most of its prompt."""
TAG = "calibration"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What to measure. stores: settings by name of the storage backend, as its extra config has them, beside the one
    of the flags. seconds: about how long to take. tell: of each part."""

    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = SECONDS
    tell: Tell = field(default=lambda what: None)


def calibrate(config: RealConfig, wanted: Wanted | None = None, command: str = "") -> dict[str, Any]:
    """The content of a calibration file. ValueError: bad flags, in one line. RigFailed: the machine does not work."""
    wanted = wanted or Wanted()
    before = where.load()
    with TemporaryDirectory(prefix="hicache-calibrate-") as folder:
        bench = _Bench(config, wanted, Path(folder))
        found = bench.measure()
    about = where.about(bench.made.device) | {"command": command}
    about["load averages"] = f"{before} before; {where.load()} after"
    return content(about, bench.made, found)


def write(path: Path, calibration: Mapping[str, Any]) -> None:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(calibration, indent=1) + "\n", encoding="utf-8")


class _Bench:
    """One calibration."""

    def __init__(self, config: RealConfig, wanted: Wanted, folder: Path) -> None:
        for name in wanted.stores:
            if name not in BACKENDS:
                raise ConfigError(f"--storage {name}: known are {', '.join(BACKENDS)}")
        args = replace(config.args, max_total_tokens=config.args.max_total_tokens or POOL_TOKENS)
        others = dict(wanted.stores)
        if args.hicache_storage_backend is None and others:
            # As if the flags had named the first: what they decide may depend on it.
            first = next(iter(others))
            settings = json.dumps(others.pop(first))
            args = replace(args, hicache_storage_backend=first, hicache_storage_backend_extra_config=settings)
        self.made: RealPlan = plan(replace(config, args=args))
        used = self.made.resolved.storage
        self._stores = {used.backend: dict(used.rest)} if used is not None else {}
        for name, more in others.items():
            self._stores[name] = {**self._stores.get(name, {}), **more}
        self._seconds, self._tell = wanted.seconds, wanted.tell
        self._folder = folder

    def measure(self) -> Found:
        """Everything, one thing after the other: nothing may disturb what is timed."""
        made, seconds = self.made, self._seconds
        self._tell("copies between L1 and L2, every operator")
        matrix = list(operators(made.geometry, made.codec.store_dtype, made.device, 0.2 * seconds))
        self._tell("host memory")
        memory = dram(0.03 * seconds)
        stores = {name: self._store(name, 0.13 * seconds / len(self._stores)) for name in self._stores}
        client = self._client(made.resolved.storage.backend) if made.resolved.storage is not None else None
        with make_machine(made, batch_of, 2, client=client) as machine:
            rig = Rig(machine.plane)
            pages = min(made.resolved.l1_pages, made.resolved.l2_pages)
            self._tell("links")
            carried = links(rig, pages, pages, made.geometry.page_bytes, 0.07 * seconds)
            bench = ComputeBench(rig, made.page_tokens, made.resolved.l1_pages, LONGEST_TOKENS)
            self._tell("prefill")
            prefill = bench.prefill(0.22 * seconds)
            self._tell("decode")
            decode = bench.decode(0.15 * seconds)
            self._tell("compute beside copies and the store")
            by_copies, by_store = self._beside(machine, rig, 0.08 * seconds)
            self._tell("compute after pauses")
            before = min(WOKEN_BEFORE, made.page_tokens * (pages // 2))
            woken = wake(rig, Batch([(before, WOKEN_NEW)], made.page_tokens, pages), 0.1 * seconds)
        self._tell("the scheduler")
        between, alone = between_batches(made.config), alone_at_rest(made.config)
        return Found(matrix, memory, stores, carried, prefill, decode, by_copies, by_store, woken, between, alone)

    # Stores

    def _client(self, name: str, shape: KvGeometry | None = None) -> StorageClient:
        """For pages of the run's shape, or of another, which have a tag of their own."""
        tag = TAG if shape is None else f"{TAG}-{shape.page_size}"
        own = replace(identity(self.made), tag=tag, geometry=shape or self.made.geometry)
        settings = PLACES.get(name, _anywhere)(self._folder) | self._stores[name]
        settings.pop("extra_backend_tag", None)
        return make_client(name, own, settings)

    def _store(self, name: str, budget_s: float) -> StoreFigures:
        self._tell(f"store {name}")
        made = self.made
        layout = find_layout(made.resolved.args.hicache_mem_layout or "layer_first")
        bench = StoreBench(partial(self._client, name), layout, made.geometry, made.codec.store_dtype)
        try:
            return bench.measure(budget_s)
        except (ValueError, StoreFailed) as error:
            raise RigFailed(f"store {name}: {error}") from None
        finally:
            bench.close()

    # Side by side

    def _beside(self, machine: Machine, rig: Rig, budget_s: float) -> tuple[Spread, Spread | None]:
        """Shares of a prefill's time that copies, and the store's calls, take from it."""
        made = self.made
        pages = min(made.resolved.l1_pages, made.resolved.l2_pages)
        tokens = min(SIDE_TOKENS, made.page_tokens * (pages // 2))
        batch = Batch([(0, tokens)], made.page_tokens, pages)
        some = blocks(min(SIDE_PAGES, pages), pages, 1)
        by_copies = lost(
            rig, batch, _in_turn(lambda: rig.load(some, some), lambda: rig.backup(some, some)), budget_s / 2
        )
        if machine.client is None:
            return by_copies, None
        numbers = itertools.count()
        names = [f"{next(numbers):064x}" for _ in some]
        rig.seconds(rig.store(some, names))

        def write() -> Op:
            return rig.store(some, [f"{next(numbers):064x}" for _ in some])

        by_store = lost(rig, batch, _in_turn(write, lambda: rig.fetch(some, names)), budget_s / 2)
        with suppress(StoreFailed):
            machine.client.clear()
        return by_copies, by_store


def _in_turn(*makers: Callable[[], Op]) -> Callable[[], Op]:
    """One after the other, again and again."""
    turns = itertools.cycle(makers)

    def make() -> Op:
        maker: Callable[[], Op] = next(turns)
        return maker()

    return make


def _anywhere(folder: Path) -> dict[str, Any]:
    return {}


PLACES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "file": lambda folder: {"file_storage_path": str(folder)},
    "lmdb": lambda folder: {"path": str(folder)},
}
"""Settings of a store that lives in a folder, where the flags name none."""
