"""Copiers of plain torch keep the contract; the whole matrix runs; routes are as short as they can be."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import benchmarks.copies as benchmark
from benchmarks.scale import QUICK
from hicache_ref.config.layouts import LAYOUTS, OPERATORS
from hicache_ref.data.copy import PlainCopier, make_copier
from hicache_ref.data.copy.direct import DirectCopier
from hicache_ref.data.copy.exchange import ExchangeCopier, _carried
from hicache_ref.data.copy.routed import RoutedCopier
from hicache_ref.data.copy.routes import Gather, Scatter, Side, Slice, Staged, route, runs

from .copying import ROWS, CopierContract, make_world


class TestRouted(CopierContract):
    make = RoutedCopier


class TestDirect(CopierContract):
    make = DirectCopier


class TestExchange(CopierContract):
    make = ExchangeCopier


class TestExchangeBetweenDevices(CopierContract):
    """As it goes where the pools are not one memory."""

    def make(self, device, host):
        copier = ExchangeCopier(device, host)
        copier._route = _carried
        return copier


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS.values() if not layout.split], ids=lambda x: x.name)
def test_the_plain_copy_is_assignment_page_by_page(layout):
    world = make_world(layout, ROWS[0], 4, ("scattered", "scattered"), 7, 5)
    before = world.device.whole.clone().view(torch.int16)
    load = PlainCopier(world.device, world.host).load(world.host_pages, world.device_pages)
    for layer in range(load.parts):
        load.layer(layer)
    came_from = dict(zip(world.device_pages.tolist(), world.host_pages.tolist(), strict=True))
    for component, layer, page in itertools.product(range(2), range(3), range(world.device.pages)):
        got = world.device.buffers[component][layer][page].view(torch.int16)
        if page in came_from:
            assert torch.equal(got, world.host.view(component)[layer, came_from[page]].view(torch.int16))
        else:
            assert torch.equal(got, before[component, layer, page])


SHAPES = [(16, "run", "run"), (1, "reversed", "runs"), (16, "runs", "scattered"), (1, "scattered", "scattered")]


@pytest.mark.parametrize(("io_backend", "layout", "pool"), OPERATORS, ids=map("-".join, OPERATORS))
def test_the_whole_matrix(io_backend, layout, pool):
    """Every operator of the article's table, with each kind of row and a few patterns: there and back."""
    rows = [row for row in ROWS if row[0] == pool]
    for row, (page_size, *patterns) in itertools.product(rows, SHAPES):
        world = make_world(LAYOUTS[layout], row, page_size, patterns, 9, 1)
        twin = world.twin()
        for side, make in ((world, lambda d, h: make_copier(io_backend, d, h)), (twin, PlainCopier)):
            copier = make(side.device, side.host)
            load = copier.load(side.host_pages, side.device_pages)
            assert load.parts == (3 if make is PlainCopier or io_backend != "kernel_ascend" else 1)
            for part in range(load.parts):
                load.layer(part)
            side.host.poison(side.host_pages[:4])
            copier.backup(side.device_pages[::-1], side.host_pages[::-1]).run()
        assert world.same_bytes(twin)


# Routes

ARANGE = np.arange(100)
SHUFFLED = np.random.default_rng(0).permutation(100)


@pytest.mark.parametrize(
    ("dst", "src", "page_bytes", "kinds"),
    [
        (ARANGE, ARANGE + 7, 1, [Slice]),
        (ARANGE[::-1], ARANGE[::-1], 1, [Slice]),
        (ARANGE, SHUFFLED * 2, 1, [Gather]),
        (SHUFFLED * 2, ARANGE, 1, [Scatter]),
        (SHUFFLED, SHUFFLED, 1, [Slice]),
        (SHUFFLED * 2, SHUFFLED[::-1] * 2, 1 << 10, [Staged]),
        (SHUFFLED * 2, SHUFFLED[::-1] * 2, 1 << 20, [Slice] * 100),
        (ARANGE[:0], ARANGE[:0], 1, []),
    ],
)
def test_steps(dst, src, page_bytes, kinds):
    assert [type(step) for step in route(dst, src, page_bytes)] == kinds


pairs = st.integers(0, 40).flatmap(
    lambda n: st.tuples(*[st.permutations(range(50)).map(lambda p: np.array(p[:n], dtype=np.int64))] * 2)
)


@given(pairs=pairs, joint=st.booleans())
def test_runs_are_adjacent_and_as_long_as_can_be(pairs, joint):
    a, b = pairs
    found = runs(a, b, joint)
    partner = dict(zip(a.tolist(), b.tolist(), strict=True))
    assert [partner[page] for page in found.a.tolist()] == found.b.tolist() and sorted(a.tolist()) == found.a.tolist()
    ends = [end for _, end in found.bounds]
    assert [start for start, _ in found.bounds] == [0, *ends][: len(ends)] and ends[-1:] == [len(a)][: len(ends)]
    for start, end in found.bounds:
        sides = (found.a, found.b) if joint else (found.a,)
        assert all((np.diff(side[start:end]) == 1).all() for side in sides)
        if end < len(a):
            assert any(side[end] - side[end - 1] != 1 for side in sides)


@given(pairs=pairs, page_bytes=st.sampled_from([1, 1 << 14, 1 << 20]))
def test_a_route_moves_every_page_once(pairs, page_bytes):
    dst, src = pairs
    source, target = torch.arange(100, 150).view(50, 1), torch.zeros(50, 1, dtype=torch.int64)
    for step in route(dst, src, page_bytes):
        step.copy(Side(target, target.numpy()), Side(source, source.numpy()))
    expected = torch.zeros(50, 1, dtype=torch.int64)
    expected[torch.from_numpy(dst)] = source[torch.from_numpy(src)]
    assert torch.equal(target, expected)


@pytest.mark.parametrize("layout", ["layer_first", "page_head"])
@pytest.mark.parametrize("patterns", [("run", "run"), ("run", "scattered"), ("scattered", "run")])
def test_other_threads_run_while_a_copy_does(layout, patterns):
    """A thread that asks for the interpreter gets it long before it would be taken from a copy that holds it."""
    world = make_world(LAYOUTS[layout], ("mha", 2, 4, 128, torch.bfloat16), 64, patterns, 60, 0)
    plan = RoutedCopier(world.device, world.host).backup(world.device_pages, world.host_pages)
    copying = threading.Thread(target=lambda: [plan.run() for _ in range(3)])
    copying.start()
    began_s, ticks = time.perf_counter(), 0
    while copying.is_alive():
        time.sleep(0)
        ticks += 1
    took_s = time.perf_counter() - began_s
    assert ticks > took_s / sys.getswitchinterval() * 2


def test_the_benchmark_covers_the_matrix(monkeypatch):
    monkeypatch.setattr(benchmark, "TOTAL_BYTES", 1 << 18)
    monkeypatch.setattr(benchmark, "PAGE_TOKENS", {"mha": (1,), "mla": (2,)})
    table = benchmark.copies(QUICK)
    measured = {(row["io backend"], row["layout"], row["attention"]) for row in table.rows}
    assert measured == set(OPERATORS) and len(table.rows) == 3 * len(OPERATORS)
    assert all(row["load"] > 0 and row["backup"] > 0 for row in table.rows) and "of 44 reach 0.8" in table.notes[0]
