"""The Triton kernel keeps the contract: compiled on a GPU where one is, interpreted on the CPU everywhere.

Triton reads TRITON_INTERPRET as it is imported, so the interpreted suite runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hicache_ref.config.layouts import LAYOUTS
from hicache_ref.data.copy import make_copier
from hicache_ref.data.copy.direct import DirectCopier
from hicache_ref.data.copy.routed import RoutedCopier

from .copying import ROWS, CopierContract, make_world

kernel = pytest.importorskip("hicache_ref.data.copy.kernel", exc_type=ImportError)
DEVICE = "cpu" if kernel.INTERPRETED else "cuda"
RUNS = kernel.INTERPRETED or torch.cuda.is_available()


@pytest.mark.skipif(not RUNS, reason="no GPU, and not interpreted")
class TestKernel(CopierContract):
    device = DEVICE
    make = kernel.KernelCopier

    def moves(self, world):
        return kernel.can_move(world.device, world.host)

    def settle(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


@pytest.mark.skipif(DEVICE == "cpu" or not RUNS, reason="no GPU")
class TestDirectOnDevice(CopierContract):
    device = "cuda"
    make = DirectCopier

    def settle(self):
        torch.cuda.synchronize()


@pytest.mark.skipif(not RUNS, reason="no GPU, and not interpreted")
@pytest.mark.parametrize(
    ("row", "moves"),
    [(ROWS[0], True), (ROWS[1], True), (ROWS[4], False), (ROWS[6], True), (ROWS[7], False)],
    ids=["16 bytes", "12 bytes", "9 bytes", "656 bytes", "13 bytes"],
)
def test_rows_too_narrow_for_the_kernel_take_another_operator(row, moves):
    world = make_world(LAYOUTS["page_first"], row, 4, ("run", "run"), 2, 0, DEVICE)
    assert kernel.can_move(world.device, world.host) == moves
    found = type(make_copier("kernel", world.device, world.host))
    assert found is (kernel.KernelCopier if moves else RoutedCopier if DEVICE == "cpu" else DirectCopier)


@pytest.mark.skipif(kernel.INTERPRETED, reason="an interpreter compiles nothing")
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("load", [True, False], ids=["load", "backup"])
@pytest.mark.parametrize(
    ("row", "moved"),
    [(ROWS[0], "global.v2.b64"), (ROWS[1], "global.b32"), (ROWS[6], "global.v2.b64")],
    ids=["16 bytes", "12 bytes", "656 bytes"],
)
def test_compiled_code_moves_16_bytes_at_a_time(row, moved, load, monkeypatch, tmp_path):
    """For an H100, which need not be here."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    world = make_world(LAYOUTS["page_first"], row, 4, ("run", "run"), 2, 0)
    fixed = kernel.KernelCopier(world.device, world.host)._fixed | {"LOAD": load}
    types = dict.fromkeys(("host_table", "device_table", "host_pages", "device_pages"), "*i64")
    types |= dict.fromkeys(("first_layer", "layers"), "i32") | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(fn=kernel._move, signature=types, constexprs=fixed)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert f"ld.{moved}" in code and f"st.{moved}" in code


@pytest.mark.skipif(RUNS, reason="runs as it is")
def test_interpreted():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "9 passed" in done.stdout
