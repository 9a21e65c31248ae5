"""Models and machines to resolve against: round numbers, so that a size can be told at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hicache_ref.config.resolve import Change, DeviceFacts, Resolved, resolve
from hicache_ref.config.server_args import ServerArgs

GIB = 1 << 30
H200 = DeviceFacts(gpu_mem_bytes=141 * GIB)
B200 = DeviceFacts(gpu_mem_bytes=180 * GIB, is_sm100=True)
ASCEND = DeviceFacts(gpu_mem_bytes=64 * GIB, is_npu=True)


@dataclass(frozen=True)
class Attention:
    name: str


@dataclass(frozen=True)
class Model:
    """1000 bytes a token on every rank, and 1 GB of weights."""

    attention: Attention
    name: str = "a-model"
    unsupported_reason: str | None = None
    host_bytes: int = 1000
    device_bytes: int = 1000

    def kv_bytes_per_token(self, tp_size: int, kv_cache_dtype: str) -> int:
        return self.host_bytes

    def device_bytes_per_token(self, tp_size: int, kv_cache_dtype: str) -> int:
        return self.device_bytes

    def weight_bytes(self, tp_size: int) -> int:
        return 10**9


MHA = Model(Attention("mha"))
MLA = Model(Attention("mla"))
NSA = Model(Attention("nsa"), device_bytes=1200)
SLIDING = Model(Attention("mha"), unsupported_reason="sliding window")

L2: dict[str, Any] = {"enable_hierarchical_cache": True, "max_total_tokens": 64_000}
"""L2 on, and an L1 that needs no GPU to be told."""
L3: dict[str, Any] = {**L2, "hicache_storage_backend": "file"}


def run(profile: str = "v0.5.7", model: Model = MHA, device: DeviceFacts | None = None, **flags: Any) -> Resolved:
    return resolve(ServerArgs(**flags), profile, model=model, device=device)


def rewrites(resolved: Resolved) -> dict[str, tuple[object, object]]:
    return {c.flag: (c.before, c.after) for c in resolved.changes if c.kind == "rewrite"}


def warnings(resolved: Resolved) -> dict[str, Change]:
    return {c.flag: c for c in resolved.changes if c.kind == "warning"}
