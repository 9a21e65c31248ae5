"""What every copier keeps: bytes equal to the plain copy's, everything else as it was. One suite, inherited by each."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_ref.config.layouts import LAYOUTS, KvGeometry, Layout
from hicache_ref.data.copy import Copier, CopyError, PlainCopier
from hicache_ref.data.pools import DevicePool, HostPool

OWN = Layout("own", "HPLTD")
ROWS = [  # pool, components, heads, elements of a row, store dtype
    ("mha", 2, 2, 8, torch.bfloat16),
    ("mha", 2, 3, 6, torch.float16),
    ("mha", 2, 1, 16, torch.float32),
    ("mha", 2, 2, 32, torch.uint8),  # FP8
    ("mha", 2, 2, 9, torch.uint8),  # FP4 of 16 numbers
    ("mla", 1, 1, 24, torch.bfloat16),
    ("mla", 1, 1, 656, torch.uint8),  # NSA
    ("mla", 1, 1, 13, torch.uint8),
    ("triple", 3, 2, 8, torch.bfloat16),
]


# One test, inherited by many: hypothesis must not keep one's examples for another.
EXAMPLES = settings(
    max_examples=20 if "TRITON_INTERPRET" in os.environ else 50,  # interpreting is slow
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors],
)


class World(NamedTuple):
    device: DevicePool
    host: HostPool
    host_pages: np.ndarray
    device_pages: np.ndarray

    def twin(self) -> World:
        device = DevicePool(self.device.geometry, self.device.pages, self.device.dtype, self.device.device)
        host = HostPool(self.host.layout, self.host.geometry, self.host.pages, self.host.dtype)
        device.whole.copy_(self.device.whole)
        host.memory.data.copy_(self.host.memory.data)
        return World(device, host, self.host_pages, self.device_pages)

    def same_bytes(self, other: World) -> bool:
        ours, theirs = (world.device.whole.view(torch.uint8).cpu() for world in (self, other))
        return torch.equal(ours, theirs) and torch.equal(self.host.memory.data, other.host.memory.data)


def _pages(pattern: str, count: int, pages: int, rng: np.random.Generator) -> np.ndarray:
    first = int(rng.integers(0, pages - count + 1))
    if pattern == "run":
        return np.arange(first, first + count)
    if pattern == "reversed":
        return np.arange(first, first + count)[::-1]
    if pattern == "runs":
        gaps = np.sort(rng.choice(pages - count + 1, 2))
        return np.concatenate([np.arange(count)[: count // 2] + gaps[0], np.arange(count)[count // 2 :] + gaps[1]])
    return rng.permutation(pages)[:count]


PATTERNS = ("run", "reversed", "runs", "scattered")


def make_world(
    layout: Layout, row: tuple, page_size: int, patterns: tuple[str, str], count: int, seed: int, device: str = "cpu"
) -> World:
    pool, components, heads, dim, dtype = row
    parts = (dim - 4, 4) if layout.split else (dim,)
    g = KvGeometry(pool, components, 3, page_size, heads, dim, dtype.itemsize, parts)
    rng, pages = np.random.default_rng(seed), (count + 3, count + 5)
    world = World(
        DevicePool(g, pages[0], dtype, device),
        HostPool(layout, g, pages[1], dtype),
        _pages(patterns[0], count, pages[1], rng),
        _pages(patterns[1], count, pages[0], rng),
    )
    noise = torch.Generator().manual_seed(seed)  # any bits: NaN of every kind are copied as they are
    world.host.memory.data.random_(generator=noise)
    raw = world.device.whole.view(torch.uint8)
    raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=noise))
    return world


worlds = {
    "layout": st.sampled_from([*LAYOUTS.values(), OWN]),
    "row": st.sampled_from(ROWS),
    "page_size": st.sampled_from([1, 2, 5, 64]),
    "patterns": st.tuples(st.sampled_from(PATTERNS), st.sampled_from(PATTERNS)),
    "count": st.sampled_from([0, 1, 2, 7, 12]),
    "seed": st.integers(0, 2**16),
}


class CopierContract(ABC):
    """Subclass it, and give `make`."""

    device = "cpu"

    @abstractmethod
    def make(self, device: DevicePool, host: HostPool) -> Copier: ...

    def moves(self, world: World) -> bool:
        """Whether this copier takes such pools."""
        return True

    @given(**worlds)
    @EXAMPLES
    def test_load_brings_layer_after_layer_and_nothing_else(self, **case):
        world = make_world(**case, device=self.device)
        if not self.moves(world):
            return
        twin = world.twin()
        plan = self.make(world.device, world.host).load(world.host_pages, world.device_pages)
        truth = PlainCopier(twin.device, twin.host).load(world.host_pages, world.device_pages)
        layers = world.device.geometry.layers
        assert plan.parts in (1, layers)
        for layer in range(layers):
            truth.layer(layer)
            if plan.parts > 1:
                plan.layer(layer)
                self.settle()
                assert world.same_bytes(twin)
        if plan.parts == 1:
            plan.layer(0)
            self.settle()
        assert world.same_bytes(twin)

    @given(**worlds)
    @EXAMPLES
    def test_backup_takes_all_layers_and_nothing_else(self, **case):
        world = make_world(**case, device=self.device)
        if not self.moves(world):
            return
        twin = world.twin()
        self.make(world.device, world.host).backup(world.device_pages, world.host_pages).run()
        self.settle()
        PlainCopier(twin.device, twin.host).backup(world.device_pages, world.host_pages).run()
        assert world.same_bytes(twin)

    def test_a_plan_outlives_the_lists_it_was_made_of(self):
        world = make_world(LAYOUTS["page_first"], ROWS[0], 4, ("scattered", "scattered"), 7, 3, self.device)
        twin = world.twin()
        host_pages, device_pages = world.host_pages.copy(), world.device_pages.copy()
        plan = self.make(world.device, world.host).load(host_pages, device_pages)
        host_pages[:] = 0
        device_pages[:] = 0
        truth = PlainCopier(twin.device, twin.host).load(world.host_pages, world.device_pages)
        for layer in range(truth.parts):
            truth.layer(layer)
        for part in range(plan.parts):
            plan.layer(part)
        self.settle()
        assert world.same_bytes(twin)

    def test_lists_that_do_not_fit_are_refused(self):
        world = make_world(LAYOUTS["page_first"], ROWS[0], 4, ("run", "run"), 2, 0, self.device)
        copier = self.make(world.device, world.host)
        with pytest.raises(CopyError, match="do not pair"):
            copier.load([0, 1], [0])
        with pytest.raises(CopyError, match="the pool has 0 to 4"):
            copier.backup([0, 5], [0, 1])
        with pytest.raises(CopyError, match="host pages -1 to 0"):
            copier.load([0, -1], [0, 1])
        other = DevicePool(world.device.geometry, 3, torch.float16, self.device)
        with pytest.raises(CopyError, match="the pools differ"):
            self.make(other, world.host)

    def settle(self) -> None:
        """Wait until copies have arrived; where they have when they return, for nothing."""
        return None
