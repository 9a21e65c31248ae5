"""Every attention backend computes the same: one contract, and what it takes to run each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from hicache_ref.model.attention import (
    ATTENTION,
    AttentionBackend,
    AttentionError,
    ByPhase,
    Span,
    choose,
    make_attention,
)
from hicache_ref.model.attention.choose import Kernels, choose_attention
from hicache_ref.model.attention.flash_attn import FlashAttention3
from hicache_ref.model.attention.flashinfer import FlashInfer
from hicache_ref.model.attention.torch_native import TorchNative
from hicache_ref.model.cache import KvCache

from ..config import facts
from .attending import CASES, Setup, check_batch, check_decoding, check_padding
from .fakes import FLASHINFER, flash_attn_with_kvcache


class Contract:
    """What `attending` asks of every backend."""

    make: Callable[[KvCache], AttentionBackend]

    @pytest.mark.parametrize("name", CASES)
    def test_batch(self, name):
        check_batch(self.make, name)

    @pytest.mark.parametrize("name", CASES)
    def test_decoding(self, name):
        check_decoding(self.make, name)


class TestTorchNative(Contract):
    make = staticmethod(TorchNative)

    @pytest.mark.parametrize("name", CASES)
    def test_padding(self, name):
        check_padding(self.make, name)

    @pytest.mark.parametrize("name", ["gqa", "mla"])
    def test_long_spans_are_cut(self, name, monkeypatch):
        """Queries of a long span in slices, where all at once would take a mask too large."""
        monkeypatch.setattr("hicache_ref.model.attention.torch_native._MASK_QUERIES", 16)
        check_batch(self.make, name)

    def test_groups_hold_neighbours_in_length(self):
        setup = Setup(CASES["mha"], tuple((start, 1) for start in (10, 11, 500, 12, 505)))
        plan = TorchNative(setup.cache).plan(setup.spans)
        assert sorted(part._count for part in plan.parts) == [2, 3]


class TestFlashInfer(Contract):
    """The adapter against the documented calls; the package itself needs a GPU."""

    @staticmethod
    def make(cache):
        return FlashInfer(cache, FLASHINFER)


class TestFlashAttention3(Contract):
    @staticmethod
    def make(cache):
        return FlashAttention3(cache, flash_attn_with_kvcache)


def test_triton_in_the_interpreter():
    """The whole contract, in a process that interprets: bf16 is left out, since the interpreter's dot has none."""
    pytest.importorskip("triton")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.model.attending"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(ran.stdout.splitlines()) == 3 * len(CASES)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(
    ("dtype", "widths", "rows", "capability", "instruction"),
    [
        ("bf16", (128, 128, 128, 0, 128), (64, 4, 64), 80, "mma.sync"),
        ("bf16", (576, 512, 512, 64, 512), (16, 16, 32), 90, "mma"),
    ],
)
def test_triton_compiles_for_gpus(dtype, widths, rows, capability, instruction):
    """Without a GPU: types fit, tensor cores are used, shared memory suffices. Llama's rows and DeepSeek's."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hicache_ref.model.attention.triton_paged import _attend

    names = ("HEADS", "SHARED", "PAGE", "K_DIM", "V_DIM", "WIDE", "REST", "VALUES", "M", "SHARE", "KEYS", "PRECISION")
    constants = dict(zip(names, (32, rows[1], 16, *widths, *rows, "tf32"), strict=True))
    types = dict.fromkeys("qkv", f"*{dtype}") | {"out": "*fp32", "sums": "*fp32", "items": "*i64", "pages": "*i64"}
    counts = ("k_page", "k_token", "k_head", "v_page", "v_token", "v_head", "n_queries", "n_items", "n_splits")
    signature = types | {"scale": "fp32"} | dict.fromkeys(counts, "i32") | dict.fromkeys(names, "constexpr")
    aligned = {(at,): [["tt.divisibility", 16]] for at in (*range(7), *range(8, 14))}
    source = ASTSource(_attend, signature, constants, aligned)
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert instruction in kernel.asm["ptx"]
    assert kernel.metadata.shared <= 99 << 10  # what compute capability 8.9 gives a block


def test_packaged_kernels_refuse_padding():
    setup = Setup(CASES["mha"], ((0, 22),))
    backend = FlashAttention3(setup.cache, flash_attn_with_kvcache)
    with pytest.raises(AttentionError, match="has no padding"):
        backend.plan([Span(setup.spans[0].pages, 16, 16, 22, 32)])


def test_phases_may_differ():
    setup = Setup(CASES["gqa"])
    asked = []
    by = ByPhase(*(SimpleNamespace(plan=lambda spans, n=n: asked.append(n)) for n in ("prefill", "decode")))
    by.plan(setup.spans)
    by.plan([span for span in setup.spans if span.queries == 1])
    assert asked == ["prefill", "decode"]
    assert isinstance(make_attention("torch_native", setup.cache, "torch_native"), TorchNative)


@pytest.mark.parametrize("name", ["triton", "flashinfer", "fa3"])
def test_what_cannot_run_here_says_what_to_do(name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(AttentionError, match="needs a GPU: take torch_native on the CPU"):
        make_attention(name, Setup(CASES["mha"], ((0, 1),)).cache)


@pytest.mark.parametrize("name", ["flashinfer", "fa3"])
def test_what_is_not_installed_says_what_to_install(name, monkeypatch):
    cache = Setup(CASES["mha"], ((0, 1),)).cache
    monkeypatch.setattr(cache, "device", torch.device("cuda"))
    for module in ("flashinfer", "flash_attn_interface", "sgl_kernel"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AttentionError, match="is not installed: pip install"):
        make_attention(name, cache)


def test_unknown_names_list_the_known():
    with pytest.raises(
        ValueError, match="unknown attention backend 'odd': known are torch_native, triton, flashinfer, fa3"
    ):
        make_attention("odd", Setup(CASES["mha"], ((0, 1),)).cache)
    assert set(choose.NEEDS) == set(ATTENTION)


def _resolved(**flags):
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    return SimpleNamespace(args=SimpleNamespace(**(dict.fromkeys(names) | flags)))


def test_the_cpu_runs_torch_and_says_so():
    """Article 5.6 chose triton for decoding beside kernel copies; without a GPU the same is computed otherwise."""
    assert choose_attention(_resolved(), "cpu") == Kernels("torch_native", "torch_native")
    found = choose_attention(_resolved(decode_attention_backend="triton", attention_backend="ascend"), "cpu")
    assert found[:2] == ("torch_native", "torch_native")
    assert found.notes[0] == "prefill attention ascend is not among ours: torch_native computes the same here"
    assert found.notes[1].startswith("decode attention triton needs ")


def test_what_article_5_6_decides_is_what_runs(monkeypatch):
    """Kernel copies beside fa3: decoding moves to triton for MLA and to flashinfer for MHA, prefill stays."""
    monkeypatch.setattr(choose, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for model, decode in ((facts.MHA, "flashinfer"), (facts.MLA, "triton")):
        resolved = facts.run(model=model, **facts.L2)
        assert choose_attention(resolved, "cuda") == Kernels("fa3", decode)
        assert choose_attention(resolved, "cpu")[:2] == ("torch_native", "torch_native")


@pytest.mark.parametrize(
    ("capability", "installed", "flags", "expected"),
    [
        ((9, 0), {"triton", "flashinfer", "sgl_kernel"}, {}, ("fa3", "fa3")),
        ((9, 0), {"triton", "sgl_kernel"}, {"decode_attention_backend": "triton"}, ("fa3", "triton")),
        ((8, 0), {"triton", "flashinfer", "sgl_kernel"}, {"attention_backend": "fa3"}, ("flashinfer", "flashinfer")),
        ((10, 0), {"triton"}, {"decode_attention_backend": "flashinfer"}, ("triton", "triton")),
    ],
)
def test_a_gpu_runs_what_it_has(monkeypatch, capability, installed, flags, expected):
    monkeypatch.setattr(choose, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = choose_attention(_resolved(**flags), "cuda")
    assert found[:2] == expected
    assert len(found.notes) == sum(value not in expected for value in flags.values()) * (
        2 if "attention_backend" in flags else 1
    )
