"""On a CUDA device: every operator moves the right bytes, and a run serves its requests from all three levels."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hicache_ref.config.layouts import OPERATORS, KvGeometry, find_layout  # noqa: E402
from hicache_ref.config.server_args import ServerArgs  # noqa: E402
from hicache_ref.data.copy import make_copier  # noqa: E402
from hicache_ref.data.pools import DevicePool, HostPool  # noqa: E402
from hicache_ref.run.api import Options, run  # noqa: E402
from hicache_ref.run.setup import RealConfig  # noqa: E402
from workloads import open_workload  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPES = {
    "mha": KvGeometry("mha", 2, 3, 16, 2, 64, 2, (64,)),
    "mla": KvGeometry("mla", 1, 3, 16, 1, 192, 2, (128, 64)),
}


@pytest.mark.parametrize(("io_backend", "layout", "pool"), OPERATORS)
def test_bytes_go_out_and_come_back(io_backend, layout, pool):
    device = DevicePool(SHAPES[pool], 12, torch.bfloat16, "cuda")
    host = HostPool(find_layout(layout), SHAPES[pool], 12, torch.bfloat16)
    device.whole.copy_(torch.randn_like(device.whole, dtype=torch.float32))
    kept = device.whole.clone()
    copier, rng = make_copier(io_backend, device, host), np.random.default_rng(1)
    there, back = rng.permutation(12)[:8], rng.permutation(12)[:8]
    copier.backup(np.arange(8), there).run()
    torch.cuda.synchronize()
    device.whole.zero_()
    plan = copier.load(there, back)
    for part in range(plan.parts):
        plan.layer(part)
    torch.cuda.synchronize()
    assert torch.equal(device.whole[:, :, back], kept[:, :, :8])
    others = [page for page in range(12) if page not in back]
    assert not device.whole[:, :, others].any()


def test_a_run_on_three_levels(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path))
    args = ServerArgs(
        page_size=16,
        max_total_tokens=2048,
        hicache_ratio=1.5,
        hicache_storage_backend="file",
        hicache_storage_prefetch_policy="wait_complete",
    )
    load = open_workload("bench-multiturn", {"clients": 8, "rounds": 3, "new_tokens": 200, "answer_tokens": 8})
    config = RealConfig(args, device="cuda", model_scale=5e6, poison=True, host_reserve_bytes=1 << 28)
    done = run(load, None, Options(), config)
    assert done.summary["requests"]["done"] == 24
    assert done.summary["tokens"]["loaded"] > 0
    assert not done.summary["run"]["failures"]
