"""Pools: what is allocated, what is refused, and how numbers are stored."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.config.layouts import LAYOUTS, KvGeometry, Layout, LayoutError, geometry
from hicache_ref.config.models import KV_FORMATS, ModelError, find_model
from hicache_ref.data.formats import codec_for
from hicache_ref.data.memory import HostMemory, HostMemoryError, available_bytes, check_host_memory
from hicache_ref.data.pools import DevicePool, HostPool, PoolError

GIB = 1 << 30
MODELS = ("llama-3.1-8b", "deepseek-v3", "deepseek-v3.2")
MHA = KvGeometry(pool="mha", components=2, layers=3, page_size=4, heads=2, dim=8, itemsize=2, parts=(8,))


def test_device_buffers_are_contiguous_and_apart():
    pool = DevicePool(MHA, 5, torch.bfloat16)
    buffers = [layer for layers in pool.buffers for layer in layers]
    assert {(*buffer.shape,) for buffer in buffers} == {(5, 4, 2, 8)} and all(b.is_contiguous() for b in buffers)
    buffers[4].fill_(1)  # component 1, layer 1
    assert [float(buffer.sum()) for buffer in buffers] == [0, 0, 0, 0, 5 * 4 * 2 * 8, 0]
    assert pool.page_bytes == MHA.page_bytes == 2 * 3 * 4 * 2 * 8 * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS.values() if not layout.split], ids=lambda x: x.name)
def test_poison_is_nan_and_stays_in_its_pages(layout, dtype):
    host, device = HostPool(layout, MHA, 6, dtype), DevicePool(MHA, 6, dtype)
    host.poison(np.array([4, 1]))
    device.poison([4, 1])
    for component in range(2):
        seen = [host.view(component), torch.stack(device.buffers[component])]
        for view in seen:
            assert view[:, [1, 4]].isnan().all()
            assert (view[:, [0, 2, 3, 5]] == 0).all()


def test_poison_of_bytes():
    g = KvGeometry(pool="mla", components=1, layers=2, page_size=3, heads=1, dim=5, itemsize=1, parts=(5,))
    host = HostPool(LAYOUTS["page_first"], g, 4, torch.uint8)
    host.poison([2])
    assert (host.view(0)[:, 2] == 255).all() and int((host.memory.data == 255).sum()) == g.page_bytes


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: DevicePool(MHA, 0, torch.bfloat16), "0 pages"),
        (lambda: DevicePool(MHA, 4, torch.uint8), "torch.uint8 has 1 bytes"),
        (lambda: HostPool(LAYOUTS["layer_first"], replace(MHA, parts=(4,)), 4, torch.bfloat16), "do not add up"),
        (lambda: HostMemory(0), "0 bytes"),
    ],
)
def test_refused(wrong, says):
    with pytest.raises(ValueError, match=says) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_a_cut_row_has_no_single_view():
    g = KvGeometry(pool="mla", components=1, layers=2, page_size=3, heads=1, dim=6, itemsize=2, parts=(4, 2))
    host = HostPool(LAYOUTS["page_first_kv_split"], g, 4, torch.bfloat16)
    assert [view.shape[-1] for view in host.views(0)] == [4, 2]
    with pytest.raises(PoolError, match=re.escape("views(0)")):
        host.view(0)


# Host memory


def test_host_memory_is_one_aligned_block():
    memory = HostMemory(3 * 4096 + 1)
    memory.bytes[4097] = 7
    assert memory.address % 4096 == 0 and int(memory.data[4097]) == 7 and int(memory.data.sum()) == 7
    assert memory.pinned == torch.cuda.is_available()


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA pins")
def test_pinning_needs_cuda():
    with pytest.raises(HostMemoryError, match="needs CUDA"):
        HostMemory(4096, pin=True)


def test_host_memory_check_has_upstreams_reserve():
    check_host_memory(5 * GIB, available=15 * GIB)
    with pytest.raises(
        HostMemoryError, match=r"asks for 5\.37 GB and only 5\.37 GB are free beside a reserve of 10\.74"
    ):
        check_host_memory(5 * GIB + 1, available=15 * GIB)
    check_host_memory(5 * GIB + 1, reserve_bytes=GIB, available=15 * GIB)
    assert 0 < available_bytes() < 1 << 50
    with pytest.raises(HostMemoryError):
        check_host_memory(available_bytes() * 2, reserve_bytes=0)


# Formats


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_stored_rows_have_the_geometrys_size(name, kv):
    model = find_model(name)
    codec, g = codec_for(model, kv), geometry(model, page_size=64, kv_cache_dtype=kv)
    x = torch.randn(3, g.heads, model.attention.row_dim)
    rows = codec.encode(x)
    assert rows.shape == (3, g.heads, g.dim)
    assert rows.dtype == codec.store_dtype and rows.dtype.itemsize == g.itemsize
    assert sum(g.parts) == g.dim

    pool = HostPool(LAYOUTS["page_first"], g, 1, codec.store_dtype)
    assert pool.page_bytes == 64 * model.kv_bytes_per_token(kv_cache_dtype=kv)
    pool.poison([0])
    assert codec.decode(pool.view(0)[0, 0]).isnan().all()


def test_nsa_rows_are_656_bytes_on_both_levels():
    """Article 5.9: v0.5.7 sizes the host row at 576."""
    g = geometry(find_model("deepseek-v3.2"), page_size=64, kv_cache_dtype="fp8_e4m3")
    assert g.dim * g.itemsize == 656
    device, host = DevicePool(g, 1, torch.uint8), HostPool(LAYOUTS["page_first"], g, 1, torch.uint8)
    assert device.buffers[0][0].shape[-1] == host.view(0).shape[-1] == 656


ERROR = {"bfloat16": 2**-8, "bf16": 2**-8, "float16": 2**-11, "float32": 0, "fp8_e4m3": 2**-4, "fp8_e5m2": 2**-3}
"""Half the distance between neighbours, as a share of the number."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv", ERROR)
@given(seed=st.integers(0, 2**16), size=st.sampled_from([1e-2, 1.0, 30.0]))
@settings(max_examples=5, deadline=None)
def test_numbers_come_back(name, kv, seed, size):
    model = find_model(name)
    codec = codec_for(model, kv)
    x = torch.randn(4, 1, model.attention.row_dim, generator=torch.Generator().manual_seed(seed)) * size
    back = codec.decode(codec.encode(x)).float()
    floor = size * 2.0**-9 + 2.0**-10  # numbers near nothing: subnormal, or small beside their block's largest
    assert ((back - x).abs() <= x.abs() * ERROR[kv] + floor).all()


@pytest.mark.parametrize("name", MODELS)
@given(seed=st.integers(0, 2**16), size=st.sampled_from([1e-3, 1.0, 1e4]))
@settings(max_examples=5, deadline=None)
def test_fp4_is_right_within_half_a_step_of_its_block(name, seed, size):
    model = find_model(name)
    codec = codec_for(model, "fp4_e2m1")
    x = torch.randn(4, 1, model.attention.row_dim, generator=torch.Generator().manual_seed(seed)) * size
    back = codec.decode(codec.encode(x))
    largest = x.reshape(4, -1, 16).abs().amax(-1, keepdim=True)
    # Widest step 2 of 6 levels; the scale is at most twice what it need be.
    assert ((back - x).abs().reshape(4, -1, 16) <= largest / 3 + 1e-30).all()
    exact = torch.tensor([0.0, -0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -6.0] * 2).repeat(model.attention.row_dim // 16)
    assert torch.equal(codec.decode(codec.encode(exact * 4)), exact * 4)


@pytest.mark.parametrize("kv", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_saturates(kv):
    codec = codec_for(find_model("llama-3.1-8b"), kv)
    top = torch.finfo(torch.float8_e4m3fn if kv == "fp8_e4m3" else torch.float8_e5m2).max
    assert codec.decode(codec.encode(torch.tensor([1e9, -1e9, 0.0]))).tolist() == [top, -top, 0.0]


def test_nan_stays_nan_in_every_format():
    for kv in KV_FORMATS:
        codec = codec_for(find_model("deepseek-v3.2"), kv)
        assert codec.decode(codec.encode(torch.full((1, 1, 576), torch.nan))).isnan().all()


def test_unknown_format_lists_the_known():
    with pytest.raises(ModelError, match="fp8_e4m3"):
        codec_for(find_model("llama-3.1-8b"), "int3")


def test_axes_must_be_the_five_with_rows_last():
    with pytest.raises(LayoutError, match="D last"):
        HostPool(Layout("odd", "LPTDH"), MHA, 2, torch.bfloat16)
