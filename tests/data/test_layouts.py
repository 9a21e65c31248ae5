"""Host pools against upstream's own arithmetic (`memory_pool_host.py` 0.5.7; article 5.3 and 5.8), layout by layout."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from hicache_ref.config.layouts import LAYOUTS, KvGeometry, Layout, LayoutError, operators, register
from hicache_ref.data.copy import PlainCopier, make_copier
from hicache_ref.data.pools import DevicePool, HostPool

PAGES = 5
MHA = KvGeometry(pool="mha", components=2, layers=3, page_size=4, heads=2, dim=6, itemsize=2, parts=(6,))
MLA = KvGeometry(pool="mla", components=1, layers=3, page_size=4, heads=1, dim=6, itemsize=2, parts=(4, 2))
GEOMETRIES = {"mha": MHA, "mla": MLA}
CASES = [(layout, pool) for layout in LAYOUTS.values() for pool in GEOMETRIES if any(layout.io_backends(pool))]

# One element (layer, page, token, head) of the tensor that upstream allocates for a component.
AT = {
    "layer_first": lambda kv, la, p, t, h: kv[la, p * 4 + t, h],
    "page_first": lambda kv, la, p, t, h: kv[p * 4 + t, la, h],
    "page_first_direct": lambda kv, la, p, t, h: kv[p, la, t, h],
    "page_head": lambda kv, la, p, t, h: kv[p, h, t, la],
    "page_first_kv_split": lambda kv, la, p, t, h: kv[p, la, t, h],
}

# `get_data_page`: the slice of all components that is a page.
PAGE = {
    "layer_first": lambda kv, p: kv[:, :, p * 4 : p * 4 + 4],
    "page_first": lambda kv, p: kv[:, p * 4 : p * 4 + 4],
    "page_first_direct": lambda kv, p: kv[:, p],
    "page_head": lambda kv, p: kv[:, p],
}


def numbered(layout: Layout, g: KvGeometry) -> HostPool:
    """A pool in which every element differs."""
    host = HostPool(layout, g, PAGES, torch.int16)
    host.memory.data.view(torch.int16).copy_(torch.arange(host.memory.size // 2, dtype=torch.int16))
    return host


def upstreams(host: HostPool) -> list[torch.Tensor]:
    """The pool's tensors with upstream's dims, components first."""
    tensors, offset = [], 0
    for dims in host.layout.host_buffers(host.geometry, host.pages):
        size = torch.Size(dims).numel()
        tensor = host.memory.data.view(torch.int16)[offset : offset + size].view(dims)
        tensors.append(tensor if host.geometry.components > 1 else tensor.unsqueeze(0))
        offset += -(-size * 2 // 4096) * 4096 // 2
    return tensors


@pytest.mark.parametrize(("layout", "pool"), CASES, ids=lambda x: getattr(x, "name", x))
def test_views_show_upstreams_elements(layout, pool):
    g = GEOMETRIES[pool]
    host = numbered(layout, g)
    tensors = upstreams(host)
    for component in range(g.components):
        for view, tensor in zip(host.views(component), tensors, strict=True):
            for at in torch.cartesian_prod(*(torch.arange(size) for size in view.shape[:4])).tolist():
                assert torch.equal(view[tuple(at)], AT[layout.name](tensor[component], *at))


@pytest.mark.parametrize(("layout", "pool"), CASES, ids=lambda x: getattr(x, "name", x))
def test_page_memory_is_upstreams_flat_page_and_writable(layout, pool):
    g = GEOMETRIES[pool]
    host = numbered(layout, g)
    for page in (0, 3):
        flat = b"".join(host.page_memory(page))
        assert len(flat) == host.page_bytes
        if layout.stored:
            assert flat == PAGE[layout.name](upstreams(host)[0], page).contiguous().numpy().tobytes()
    before = host.memory.data.clone()
    for piece in host.page_memory(3):
        piece[:] = bytes(len(piece))
    assert all((view[:, 3] == 0).all() for c in range(g.components) for view in host.views(c))
    for view, old in zip(upstreams(host), upstreams(numbered(layout, g)), strict=True):
        assert int((view != old).sum()) <= view.numel() // PAGES
    assert int((before != host.memory.data).sum()) <= host.page_bytes


def _meta(host: HostPool, page: int) -> list[tuple[int, int]]:
    """`get_page_buffer_meta`, written out from the article's 5.8."""
    g, base, size = host.geometry, host.memory.address, host.pages * host.geometry.page_size
    row, index = g.heads * g.dim * g.itemsize, page * g.page_size
    v_offset = g.layers * size * row
    if host.layout.name == "layer_first":
        starts = [base + index * row + layer * size * row for layer in range(g.layers)]
        each = g.page_size * row
    else:
        starts = [base + index * g.layers * row]
        each = g.layers * g.page_size * row
    return [(start + component * v_offset, each) for start in starts for component in range(g.components)]


@pytest.mark.parametrize(("layout", "pool"), CASES, ids=lambda x: getattr(x, "name", x))
def test_page_buffers_are_upstreams(layout, pool):
    host = numbered(layout, GEOMETRIES[pool])
    for page in range(PAGES):
        found = host.page_buffers(page)
        assert len(found) == layout.objects_per_page(host.geometry)
        if layout.stored:
            assert found == _meta(host, page)
        assert sum(size for _, size in found) == host.page_bytes
    pieces = sorted(piece for page in range(PAGES) for piece in host.page_buffers(page))
    assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(pieces))


# A layout and an attention of one's own

PILED = Layout("heads_of_pages", "HPLTD")
TRIPLE = KvGeometry(pool="triple", components=3, layers=2, page_size=3, heads=2, dim=8, itemsize=2, parts=(8,))


@pytest.fixture
def registered(monkeypatch):
    from hicache_ref.config import layouts

    monkeypatch.setattr(layouts, "LAYOUTS", dict(layouts.LAYOUTS))
    monkeypatch.setattr(layouts, "OPERATORS", dict(layouts.OPERATORS))
    register(PILED, layouts.IO_BACKENDS, ["mha", "mla", "triple"])
    register(LAYOUTS["page_first"], ["kernel"], ["triple"])


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("io_backend", ["kernel", "direct", "kernel_ascend"])
@pytest.mark.parametrize("g", [MHA, replace(MLA, parts=(6,)), TRIPLE], ids=lambda g: g.pool)
def test_a_layout_of_ones_own_is_one_object(io_backend, g):
    device, host = DevicePool(g, 6, torch.int16), HostPool(PILED, g, 9, torch.int16)
    host.memory.data.view(torch.int16).copy_(torch.arange(host.memory.size // 2, dtype=torch.int16))
    assert len(host.page_buffers(0)) == g.heads * g.components == len(host.page_memory(0))
    copier = make_copier(io_backend, device, host)
    load = copier.load([7, 2, 3], [0, 4, 5])
    for part in range(load.parts):
        load.layer(part)
    for component in range(g.components):
        for layer in range(g.layers):
            assert torch.equal(device.buffers[component][layer][[0, 4, 5]], host.view(component)[layer, [7, 2, 3]])
    before = host.memory.data.clone()
    host.poison([7, 2, 3])
    copier.backup([0, 4, 5], [7, 2, 3]).run()
    assert torch.equal(host.memory.data, before)


@pytest.mark.usefixtures("registered")
def test_an_attention_of_ones_own_uses_layouts_there_are():
    device, host = DevicePool(TRIPLE, 6, torch.int16), HostPool(LAYOUTS["page_first"], TRIPLE, 9, torch.int16)
    device.whole.copy_(torch.arange(device.whole.numel(), dtype=torch.int16).view_as(device.whole))
    make_copier("kernel", device, host).backup([0, 1, 2, 5], [3, 1, 7, 8]).run()
    for component in range(3):
        assert torch.equal(host.view(component)[:, [3, 1, 7, 8]], device.whole[component][:, [0, 1, 2, 5]])


def test_a_name_is_taken_once():
    with pytest.raises(LayoutError, match="another layout"):
        register(Layout("page_first", "PLTHD"), ["kernel"], ["mha"])
    with pytest.raises(LayoutError, match="known: kernel"):
        register(LAYOUTS["page_first"], ["rocket"], ["mha"])
    assert operators("kernel", "page_first", "mha").load == "transfer_kv_per_layer_pf_lf"


def test_combinations_that_are_not_there_name_those_that_are():
    device, host = DevicePool(MHA, 2, torch.int16), HostPool(LAYOUTS["page_head"], MHA, 2, torch.int16)
    with pytest.raises(LayoutError, match="kernel \\+ page_head"):
        make_copier("direct", device, host)
    assert PlainCopier(device, host).load([0], [1]).parts == 3
