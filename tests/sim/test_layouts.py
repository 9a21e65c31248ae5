"""Layouts: dims against upstream's, pieces against a walk over every row, operators against the article's table 5.4."""

from __future__ import annotations

import itertools
import random

import pytest

from hicache_ref.config.layouts import (
    IO_BACKENDS,
    LAYOUTS,
    OPERATORS,
    KvGeometry,
    LayoutError,
    find_io_backend,
    find_layout,
    geometry,
    operators,
)
from hicache_ref.config.models import find_model

POOL_PAGES = 9
SMALL = {
    "mha": KvGeometry(pool="mha", components=2, layers=3, page_size=4, heads=2, dim=8, itemsize=2, parts=(8,)),
    "mla": KvGeometry(pool="mla", components=1, layers=3, page_size=4, heads=1, dim=12, itemsize=2, parts=(8, 4)),
}
COMBINATIONS = sorted({(layout, pool) for _, layout, pool in OPERATORS})

# Where row (component, layer, page, token, head) stands, written out from the dims of `memory_pool_host.py`.
HOST_ROW = {
    "layer_first": lambda g, c, la, p, t, h: (((c * g.layers + la) * POOL_PAGES + p) * g.page_size + t) * g.heads + h,
    "page_first": lambda g, c, la, p, t, h: (((c * POOL_PAGES + p) * g.page_size + t) * g.layers + la) * g.heads + h,
    "page_first_direct": lambda g, c, la, p, t, h: (
        (((c * POOL_PAGES + p) * g.layers + la) * g.page_size + t) * g.heads + h
    ),
    "page_head": lambda g, c, la, p, t, h: (((c * POOL_PAGES + p) * g.heads + h) * g.page_size + t) * g.layers + la,
}
HOST_ROW["page_first_kv_split"] = HOST_ROW["page_first_direct"]


def _walk(layout, g, host_pages, device_pages, layers):
    """Maximal pieces contiguous on both sides, by looking at every row."""
    rows = []
    page_pairs = list(zip(host_pages, device_pages, strict=True))
    for c, la, (p, d), t, h in itertools.product(
        range(g.components), layers, page_pairs, range(g.page_size), range(g.heads)
    ):
        # Each layer and component of the device is a tensor of its own: far from all others.
        device = ((c * g.layers + la) * 10**6) + (d * g.page_size + t) * g.heads + h
        rows.append((HOST_ROW[layout.name](g, c, la, p, t, h), device))
    rows.sort()
    breaks = sum((h2 - h1, d2 - d1) != (1, 1) for (h1, d1), (h2, d2) in itertools.pairwise(rows))
    return (breaks + 1) * (len(g.parts) if layout.split else 1)


def _runs(host_pages, device_pages):
    pairs = sorted(zip(host_pages, device_pages, strict=True))
    return 1 + sum((h2 - h1, d2 - d1) != (1, 1) for (h1, d1), (h2, d2) in itertools.pairwise(pairs))


@pytest.mark.parametrize(("name", "pool"), COMBINATIONS)
@pytest.mark.parametrize("seed", range(8))
def test_pieces_against_a_walk_over_every_row(name, pool, seed):
    layout, g, rng = LAYOUTS[name], SMALL[pool], random.Random(seed)
    pages = rng.randint(1, POOL_PAGES)
    host, device = rng.sample(range(POOL_PAGES), pages), rng.sample(range(POOL_PAGES), pages)
    if seed % 2:  # pages in order on both sides, so that some are adjacent
        host, device = sorted(host), sorted(device)
    runs = _runs(host, device)

    load, backup = layout.load_segments(g, pages, runs), layout.backup_segments(g, pages, runs)
    assert load.pieces == _walk(layout, g, host, device, [1])
    assert backup.pieces == _walk(layout, g, host, device, range(g.layers))
    assert load.total_bytes == pages * g.page_bytes // g.layers
    assert backup.total_bytes == pages * g.page_bytes
    assert load.bytes_each * load.pieces == pytest.approx(load.total_bytes)


@pytest.mark.parametrize(("name", "pool"), COMBINATIONS)
def test_runs_only_help_where_pages_merge(name, pool):
    layout, g = LAYOUTS[name], SMALL[pool]
    scattered, adjacent = layout.load_segments(g, 6), layout.load_segments(g, 6, runs=1)
    assert (adjacent.pieces < scattered.pieces) == layout.merges_pages == (name == "layer_first")
    assert layout.load_segments(g, 0).pieces == 0


@pytest.mark.parametrize(
    ("name", "pool", "dims"),
    [
        ("layer_first", "mha", (2, 3, 36, 2, 8)),
        ("page_first", "mha", (2, 36, 3, 2, 8)),
        ("page_first_direct", "mha", (2, 9, 3, 4, 2, 8)),
        ("page_head", "mha", (2, 9, 2, 4, 3, 8)),
        ("layer_first", "mla", (3, 36, 1, 12)),
        ("page_first", "mla", (36, 3, 1, 12)),
        ("page_first_direct", "mla", (9, 3, 4, 1, 12)),
        ("page_first_kv_split", "mla", (9, 3, 4, 1, 8)),
    ],
)
def test_dims_are_upstreams(name, pool, dims):
    assert LAYOUTS[name].host_dims(SMALL[pool], POOL_PAGES) == dims


@pytest.mark.parametrize(("name", "pool"), COMBINATIONS)
def test_buffers_hold_the_pages_and_nothing_else(name, pool):
    g, total = SMALL[pool], 0
    for dims in LAYOUTS[name].host_buffers(g, POOL_PAGES):
        size = g.itemsize
        for dim in dims:
            size *= dim
        total += size
    assert total == POOL_PAGES * g.page_bytes


def test_split_layout_has_a_buffer_for_each_part():
    first, second = LAYOUTS["page_first_kv_split"].host_buffers(SMALL["mla"], POOL_PAGES)
    assert (first[-1], second[-1]) == (8, 4)
    assert not LAYOUTS["page_first_kv_split"].stored


@pytest.mark.parametrize(
    ("name", "mha", "mla"),
    [("layer_first", 6, 3), ("page_first", 2, 1), ("page_first_direct", 2, 1), ("page_head", 2, None)],
)
def test_objects_of_a_page(name, mha, mla):
    layout = LAYOUTS[name]
    assert layout.objects_per_page(SMALL["mha"]) == mha
    assert mla is None or layout.objects_per_page(SMALL["mla"]) == mla
    assert layout.page_contiguous == (name != "layer_first")


def test_rows_a_kernel_reads():
    g = SMALL["mha"]
    assert LAYOUTS["layer_first"].element_bytes(g) == LAYOUTS["page_first"].element_bytes(g) == 2 * 8 * 2
    assert LAYOUTS["page_head"].element_bytes(g) == 8 * 2  # heads lie apart


@pytest.mark.parametrize(
    ("model", "tp_size", "dtype", "row", "page_bytes"),
    [
        ("Llama-3.1-8B", 1, "auto", (8, 128, 2), 64 * 131072),
        ("Llama-3.1-8B", 8, "fp8_e4m3", (1, 128, 1), 64 * 8192),
        ("DeepSeek-V3", 8, "auto", (1, 576, 2), 64 * 70272),
        ("DeepSeek-V3.2", 8, "fp8_e4m3", (1, 656, 1), 64 * 40016),
        ("Qwen3-8B", 2, "fp4_e2m1", (4, 72, 1), 64 * 20736),
    ],
)
def test_geometry_of_a_model(model, tp_size, dtype, row, page_bytes):
    shape = find_model(model)
    g = geometry(shape, 64, tp_size, dtype)
    assert (g.heads, g.dim, g.itemsize) == row
    assert g.page_bytes == page_bytes == 64 * shape.kv_bytes_per_token(tp_size, dtype)
    assert sum(g.parts) == g.dim


# --- operators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "layout", "pool", "load", "backup"),
    [
        ("kernel", "layer_first", "mha", "jit_transfer_hicache_one_layer", "jit_transfer_hicache_all_layer"),
        ("kernel", "page_first", "mha", "transfer_kv_per_layer_pf_lf", "transfer_kv_all_layer_lf_pf"),
        ("kernel", "page_head", "mha", "transfer_kv_per_layer_ph_lf", "transfer_kv_all_layer_lf_ph"),
        ("direct", "layer_first", "mla", "transfer_kv_direct", "transfer_kv_direct"),
        (
            "direct",
            "page_first_direct",
            "mha",
            "transfer_kv_per_layer_direct_pf_lf",
            "transfer_kv_all_layer_direct_lf_pf",
        ),
        ("kernel", "page_first", "mla", "transfer_kv_per_layer_mla_pf_lf", "transfer_kv_all_layer_mla_lf_pf"),
        ("kernel_ascend", "page_first_kv_split", "mla", "transfer_kv_dim_exchange", "transfer_kv_dim_exchange"),
    ],
)
def test_operators_of_the_table(backend, layout, pool, load, backup):
    assert operators(backend, layout, pool) == (load, backup)
    assert backend in LAYOUTS[layout].io_backends(pool)


@pytest.mark.parametrize(
    ("backend", "layout", "pool"),
    [
        ("direct", "page_first", "mha"),
        ("kernel", "page_first_direct", "mha"),
        ("kernel", "page_head", "mla"),
        ("kernel_ascend", "layer_first", "mha"),
        ("kernel_ascend", "page_first_kv_split", "mha"),
    ],
)
def test_combinations_upstream_does_not_have(backend, layout, pool):
    with pytest.raises(LayoutError, match="there are: kernel \\+ layer_first") as error:
        operators(backend, layout, pool)
    assert "\n" not in str(error.value)


def test_names_that_do_not_exist():
    with pytest.raises(LayoutError, match="known: layer_first, page_first"):
        find_layout("row_major")
    with pytest.raises(LayoutError, match="known: kernel, direct"):
        find_io_backend("dma")
    with pytest.raises(LayoutError, match="unknown memory layout"):
        operators("kernel", "row_major", "mha")
    assert IO_BACKENDS["kernel"].takes_sms
    assert not IO_BACKENDS["direct"].takes_sms
    assert not IO_BACKENDS["kernel_ascend"].layerwise
