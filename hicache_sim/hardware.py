"""The machines a run can pretend to be on: numbers by name, and for every number where it comes from.

Rules of this file
- A profile is a flat record of floats. Whoever computes with it reads plain numbers; whoever reports asks `table()`
  and gets the source beside each.
- No number without a source. A source that begins with "~" is an assumption: a guess we would rather measure, or a
  figure carried over from another device. Calibration replaces those first.
- Vendor peaks are dense, from the datasheet named; what software reaches of them is a separate factor, so that both
  can be argued about alone.
- Units stand last in the names: `_per_s`, `_s`, `_bytes`. Bandwidths are bytes per second, one way.
- Everything can be overridden, by name, from a file or a call. A name that does not exist is an error that lists those
  that do.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar


class ProfileError(ValueError):
    """A profile that does not exist, or a number that does not fit. One line."""


class Number(NamedTuple):
    """One row of `table()`."""

    name: str
    value: float | str
    source: str
    assumption: bool


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """What hardware and store profiles share: a name, numbers, and the source of each number."""

    name: str
    description: str
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def table(self) -> list[Number]:
        """Every number with its source, in the order of the record: what a run prints about itself."""
        rows = ((each, getattr(self, each), self.sources[each]) for each in self.numbers())
        return [Number(each, value, source.lstrip("~ "), source.startswith("~")) for each, value, source in rows]

    @classmethod
    def numbers(cls) -> list[str]:
        return [each.name for each in fields(cls) if each.name not in {"name", "description", "sources"}]


@dataclass(frozen=True, kw_only=True)
class HardwareProfile(_Profile):
    """A node of equal GPUs. Compute and PCIe figures are per GPU, DRAM and NIC figures per node."""

    # Compute
    bf16_flops_per_s: float
    fp8_flops_per_s: float
    hbm_bytes_per_s: float
    hbm_bytes: float
    sms: float
    """Processors a kernel copy competes for."""
    gemm_efficiency: float
    """Share of the peak that large matrix products reach."""
    attention_efficiency: float
    """The same for attention over a prefix, of the bf16 peak."""
    hbm_efficiency: float
    prefill_overhead_s: float
    """Per prefill batch: scheduling and launches no kernel hides."""
    decode_overhead_s: float
    """Per decode step, with CUDA graphs."""
    gpu_link_bytes_per_s: float
    """One way between GPUs: NVLink, or PCIe where there is none."""
    gpu_link_efficiency: float
    all_reduce_latency_s: float

    # Host link, one GPU
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    h2d_duplex_bytes_per_s: float
    """While the other direction is busy too."""
    d2h_duplex_bytes_per_s: float

    # Copies
    kernel_launch_s: float
    kernel_h2d_efficiency: float
    """Share of the link that copy kernels reach with long rows."""
    kernel_d2h_efficiency: float
    kernel_half_row_bytes: float
    """Rows of this size reach half of that."""
    kernel_blocks: float
    """Thread blocks, one to a processor, that the copy kernel occupies."""
    direct_h2d_segment_s: float
    """Per cudaMemcpyAsync."""
    direct_d2h_segment_s: float
    direct_efficiency: float
    """Share of the link that one large cudaMemcpyAsync reaches."""

    # Node
    gpus_per_node: float
    dram_bytes_per_s: float
    dram_bytes: float
    nic_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class StoreProfile(_Profile):
    """An L3 store as one node sees it. Times are for a batch of 128 pages, upstream's `STORAGE_BATCH_SIZE`."""

    backend: str
    """Upstream's name of the backend it stands for."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    capacity_bytes: float
    concurrency: float
    """Objects in flight at once: their latencies overlap so far."""
    batch_latency_s: float
    """Paid once a batch: the metadata call, the round trip."""
    object_latency_s: float
    """Paid for every object, `concurrency` at a time."""
    probe_latency_s: float
    """Asking which of 128 pages exist."""
    p99_over_p50: float
    """How long the tail of a batch's time is."""
    write_times: float
    """Latencies of a write, in those of a read."""
    nic_share: float
    """Share of the traffic that crosses the node's NIC: 0 for a local store."""
    compute_share: float
    """Share of compute's time that its threads take while pages move: 0 where compute has its own processors."""
    objects: str
    """What it keeps under one name: a key of OBJECTS."""

    eviction: str
    """A key of EVICTIONS."""
    high_watermark: float
    """Share of the capacity at which eviction starts."""
    low_watermark: float
    """Share at which it stops."""
    lease_s: float
    """How long a probe or a read protects an object."""

    partial_get: str
    """What one missing page does to its batch: a key of PARTIALS."""
    partial_set: str
    client_ttl_s: float
    """How long the store believes in an owner that died: until then it says "there" and reads fail."""
    owner_dead_s: float
    """What a transfer to a dead owner costs before it fails."""
    master_dead_s: float
    """What any call costs while the metadata service is gone."""

    @property
    def tail_sigma(self) -> float:
        """Sigma of the lognormal with this p99 over p50 (2.326 standard deviations apart)."""
        return math.log(self.p99_over_p50) / 2.3263478740408408


EVICTIONS = {
    "none": "never evicts; a full store refuses writes",
    "lru": "a write without room evicts the objects used longest ago, down to the low watermark",
    "second_chance": "evicts in the order of writing, what was read since then once later, down to the low watermark",
    "watermark_lease": "above the high watermark evicts down to the low one, skipping leased objects (Mooncake)",
    "lru_page_table": "a write takes the page of the least recently used key, at once and whoever reads it (3FS)",
    "ttl": "forgets an object when its lease, from the last write or read, is over",
    "watermark_cleaner": "a cleaner wakes now and then and deletes the oldest files down to the low watermark (NIXL)",
}
OBJECTS = {
    "page": "a page",
    "buffer": "each piece of a page that is contiguous in host memory (zero-copy)",
}
PARTIALS = {
    "per_page": "the other pages succeed",
    "stops": "pages before it succeed",
    "all_or_nothing": "the whole batch fails",
}

_CHOICES = {"eviction": EVICTIONS, "objects": OBJECTS, "partial_get": PARTIALS, "partial_set": PARTIALS}

_P = TypeVar("_P", bound=_Profile)


def _number(cls: type[_Profile], name: str, value: Any) -> Any:
    """`value` as this field of the record wants it."""
    wanted = {each.name: each.type for each in fields(cls)}[name]
    if wanted == "str":
        choices = _CHOICES.get(name)
        if choices is not None and value not in choices:
            raise ProfileError(f"{name} cannot be {value!r}; known: {', '.join(choices)}")
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ProfileError(f"{name} must be a number, not {value!r}") from None
    lowest = _LOWEST.get(name, 0.0)
    # Only a time may be nothing, and a share.
    pause = name.endswith("_share") or (name.endswith("_s") and not name.endswith("_per_s"))
    if isinstance(value, bool) or not number >= lowest or (number == 0.0 and not pause):
        raise ProfileError(f"{name} must be {f'at least {lowest:g}' if lowest or pause else 'above 0'}, not {value!r}")
    return number


_LOWEST = {"p99_over_p50": 1.0, "concurrency": 1.0, "gpus_per_node": 1.0}


def _known(cls: type[_Profile], names: Iterable[str]) -> None:
    for name in names:
        if name not in cls.numbers():
            close = difflib.get_close_matches(name, cls.numbers(), n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ProfileError(f"unknown number {name!r}{hint}; known: {', '.join(cls.numbers())}")


def _make(cls: type[_P], name: str, description: str, numbers: Mapping[str, tuple[Any, str]]) -> _P:
    values = {each: _number(cls, each, value) for each, (value, _) in numbers.items()}
    sources = {each: source for each, (_, source) in numbers.items()}
    return cls(name=name, description=description, sources=sources, **values)


def _vary(base: _P, name: str, description: str, numbers: Mapping[str, tuple[Any, str]]) -> _P:
    """`base` with other numbers. What is inherited keeps its source, which names the device it was seen on."""
    _known(type(base), numbers)
    values = {each: _number(type(base), each, value) for each, (value, _) in numbers.items()}
    sources = {**base.sources, **{each: source for each, (_, source) in numbers.items()}}
    return replace(base, name=name, description=description, sources=sources, **values)


# --- GPUs -----------------------------------------------------------------------------------------------------------

_SM_COPY = "nvbandwidth issue #24: H100 copies by SMs 35.2 GB/s H2D, 52.8 D2H, same seen on H20 and H800; over 55.6"
_SIMULATOR = "SGLang's own simulator (tools/sglang-simulator, HicacheTransportOverheadEstimator)"
_DGX_H100 = "NVIDIA DGX H100 datasheet"
_PCIE4 = "nvbandwidth on 8x A100-SXM4-80GB, NVIDIA forum 352186"
_CARRIED = "~ as h100-pcie5, not measured on this device"

_H100 = _make(
    HardwareProfile,
    "h100-pcie5",
    "8x H100 SXM 80 GB, PCIe 5.0 x16 per GPU",
    {
        "bf16_flops_per_s": (989.4e12, "NVIDIA H100 SXM datasheet: 1978.9 TFLOPS with sparsity, half of it dense"),
        "fp8_flops_per_s": (1978.9e12, "NVIDIA H100 SXM datasheet: 3957.8 TFLOPS with sparsity, half of it dense"),
        "hbm_bytes_per_s": (3.35e12, "NVIDIA H100 SXM datasheet"),
        "hbm_bytes": (81559 * 2**20, "nvidia-smi: 81559 MiB in total"),
        "sms": (132, "NVIDIA H100 whitepaper, SXM5"),
        "gemm_efficiency": (0.70, "~ large bf16 products at the power limit"),
        "attention_efficiency": (0.55, "~ FlashAttention-3 forward, between short and long prefixes"),
        "hbm_efficiency": (0.80, "~ weights 78 to 84 % of peak, scattered KV less (mikamirai.com, H100 profile)"),
        "prefill_overhead_s": (3e-3, "~ SGLang scheduler pass and eager launches"),
        "decode_overhead_s": (0.7e-3, "~ SGLang scheduler pass beside a CUDA graph"),
        "gpu_link_bytes_per_s": (450e9, "NVIDIA H100 SXM datasheet: NVLink 900 GB/s, both ways"),
        "gpu_link_efficiency": (0.75, "~ DeepEP issue #16: 337 GB/s of 450 seen on H20"),
        "all_reduce_latency_s": (6e-6, "SGLang PR #2904: 5.9 us for 512 bytes over 8 H100"),
        "h2d_bytes_per_s": (55.6e9, "nvbandwidth sample, PCIe 5.0 x16 pinned: 55.63 GB/s (machine not named)"),
        "d2h_bytes_per_s": (55.6e9, "~ as host to device"),
        "h2d_duplex_bytes_per_s": (45e9, "~ no published figure found; host memory rarely feeds both ways in full"),
        "d2h_duplex_bytes_per_s": (45e9, "~ as host to device"),
        "kernel_launch_s": (5e-6, "~ SGLang PR #25154: 4.4 to 6.4 us to copy one row, on MI355X"),
        "kernel_h2d_efficiency": (0.633, _SM_COPY),
        "kernel_d2h_efficiency": (0.95, _SM_COPY),
        "kernel_half_row_bytes": (128, "~ one PCIe read; SGLang PR #40278: bytes in flight bound the kernel"),
        "kernel_blocks": (2, "SGLang v0.5.7 jit_kernel/hicache.py: DEFAULT_BLOCK_QUOTA"),
        "direct_h2d_segment_s": (6.67e-6, f"{_SIMULATOR}; DualPath (arXiv 2602.21548): 5 to 7 us a call"),
        "direct_d2h_segment_s": (4e-6, _SIMULATOR),
        "direct_efficiency": (0.85, _SIMULATOR),
        "gpus_per_node": (8, _DGX_H100),
        "dram_bytes_per_s": (614e9, "~ two sockets of 8 channels DDR5-4800, theoretical"),
        "dram_bytes": (2e12, _DGX_H100),
        "nic_bytes_per_s": (400e9, f"{_DGX_H100}: 8x 400 Gb/s"),
    },
)

_H200 = _vary(
    _H100,
    "h200",
    "8x H200 SXM 141 GB, PCIe 5.0 x16 per GPU",
    {
        "bf16_flops_per_s": (989.4e12, "NVIDIA H200 SXM datasheet, dense"),
        "fp8_flops_per_s": (1978.9e12, "NVIDIA H200 SXM datasheet, dense"),
        "hbm_bytes_per_s": (4.8e12, "NVIDIA H200 SXM datasheet"),
        "hbm_bytes": (143771 * 2**20, "nvidia-smi: 143771 MiB in total"),
        "sms": (132, "NVIDIA H200: the H100's processors"),
        "kernel_h2d_efficiency": (0.633, _CARRIED),
        "kernel_d2h_efficiency": (0.95, _CARRIED),
        "gpu_link_bytes_per_s": (450e9, "NVIDIA H200 SXM datasheet: NVLink 900 GB/s, both ways"),
        "gpus_per_node": (8, "NVIDIA DGX H200 datasheet"),
        "dram_bytes": (2e12, "NVIDIA DGX H200 datasheet"),
        "nic_bytes_per_s": (400e9, "NVIDIA DGX H200 datasheet: 8x 400 Gb/s"),
    },
)

_H20 = _vary(
    _H100,
    "h20",
    "8x H20 96 GB, PCIe 5.0 x16 per GPU",
    {
        "bf16_flops_per_s": (148e12, "NVIDIA H20 datasheet, dense"),
        "fp8_flops_per_s": (296e12, "NVIDIA H20 datasheet, dense"),
        "hbm_bytes_per_s": (4.0e12, "NVIDIA H20 datasheet"),
        "hbm_bytes": (97871 * 2**20, "nvidia-smi: 97871 MiB in total"),
        "sms": (78, "Geekbench entry of the H20"),
        "gemm_efficiency": (0.85, "~ few processors, much memory: products reach their peak more easily"),
        "attention_efficiency": (0.70, "~ as above"),
        "gpu_link_bytes_per_s": (450e9, "NVIDIA H20 datasheet: NVLink 900 GB/s, both ways"),
        "gpus_per_node": (8, "~ an HGX server"),
        "dram_bytes": (2e12, "~ an HGX server"),
        "nic_bytes_per_s": (200e9, "~ an HGX server with 4x 400 Gb/s"),
    },
)

_B200 = _vary(
    _H100,
    "b200",
    "8x B200 180 GB, PCIe 5.0 x16 per GPU",
    {
        "bf16_flops_per_s": (2.25e15, "NVIDIA HGX B200 datasheet: 4.5 PFLOPS with sparsity, half of it dense"),
        "fp8_flops_per_s": (4.5e15, "NVIDIA HGX B200 datasheet: 9 PFLOPS with sparsity, half of it dense"),
        "hbm_bytes_per_s": (8e12, "NVIDIA DGX B200 datasheet: 64 TB/s over 8 GPUs"),
        "hbm_bytes": (183359 * 2**20, "nvidia-smi: 183359 MiB in total"),
        "sms": (148, "deviceQuery of a B200"),
        "gpu_link_bytes_per_s": (900e9, "NVIDIA HGX B200 datasheet: NVLink 1.8 TB/s, both ways"),
        "kernel_h2d_efficiency": (0.915, "tokenspeed PR #150: 50.9 GB/s for a scattered copy on B200; over 55.6"),
        "kernel_d2h_efficiency": (0.915, "~ as host to device"),
        "gpus_per_node": (8, "NVIDIA DGX B200 datasheet"),
        "dram_bytes": (2e12, "~ NVIDIA DGX B200 datasheet: up to 4 TB"),
        "nic_bytes_per_s": (400e9, "NVIDIA DGX B200 datasheet: 8x 400 Gb/s"),
    },
)

_A100 = _vary(
    _H100,
    "a100-pcie4",
    "8x A100 SXM 80 GB, PCIe 4.0 x16 per GPU",
    {
        "bf16_flops_per_s": (312e12, "NVIDIA A100 datasheet, dense"),
        "fp8_flops_per_s": (312e12, "no FP8 units: weights in FP8 are unpacked and run at the bf16 rate"),
        "hbm_bytes_per_s": (2.039e12, "NVIDIA A100 80 GB SXM datasheet"),
        "hbm_bytes": (81920 * 2**20, "nvidia-smi: 81920 MiB in total"),
        "sms": (108, "NVIDIA A100 whitepaper"),
        "gemm_efficiency": (0.75, "~ large bf16 products"),
        "attention_efficiency": (0.60, "~ FlashAttention-2 forward"),
        "gpu_link_bytes_per_s": (300e9, "NVIDIA A100 SXM datasheet: NVLink 600 GB/s, both ways"),
        "all_reduce_latency_s": (8e-6, "~ a little above the H100's"),
        "h2d_bytes_per_s": (24.8e9, _PCIE4),
        "d2h_bytes_per_s": (25.0e9, _PCIE4),
        "h2d_duplex_bytes_per_s": (11e9, f"{_PCIE4}: 11 GB/s while D2H is busy; also nvbandwidth issue #11"),
        "d2h_duplex_bytes_per_s": (24e9, _PCIE4),
        "kernel_h2d_efficiency": (0.90, "~ a slower link needs fewer bytes in flight"),
        "kernel_d2h_efficiency": (0.95, "~ as h100-pcie5"),
        "gpus_per_node": (8, "NVIDIA DGX A100 datasheet"),
        "dram_bytes_per_s": (409e9, "~ two sockets of 8 channels DDR4-3200, theoretical"),
        "dram_bytes": (2e12, "NVIDIA DGX A100 640 GB datasheet"),
        "nic_bytes_per_s": (200e9, "NVIDIA DGX A100 datasheet: 8x 200 Gb/s"),
    },
)

_L40S = _vary(
    _A100,
    "l40s",
    "8x L40S 48 GB on PCIe 4.0 x16, no NVLink",
    {
        "bf16_flops_per_s": (362.05e12, "NVIDIA L40S datasheet, dense"),
        "fp8_flops_per_s": (733e12, "NVIDIA L40S datasheet, dense"),
        "hbm_bytes_per_s": (864e9, "NVIDIA L40S datasheet (GDDR6)"),
        "hbm_bytes": (46068 * 2**20, "nvidia-smi: 46068 MiB in total"),
        "sms": (142, "NVIDIA L40S datasheet: 18176 cores, 128 to a processor"),
        "gemm_efficiency": (0.60, "~ 350 W do not feed the peak"),
        "hbm_efficiency": (0.85, "~ GDDR6"),
        "gpu_link_bytes_per_s": (24e9, "~ GPU to GPU over PCIe 4.0 x16"),
        "gpu_link_efficiency": (0.75, "~ as over NVLink"),
        "all_reduce_latency_s": (20e-6, "~ over PCIe"),
        "d2h_bytes_per_s": (25.0e9, f"~ as a100-pcie4: {_PCIE4}"),
        "h2d_bytes_per_s": (24.8e9, f"~ as a100-pcie4: {_PCIE4}"),
        "h2d_duplex_bytes_per_s": (11e9, f"~ as a100-pcie4: {_PCIE4}"),
        "d2h_duplex_bytes_per_s": (24e9, f"~ as a100-pcie4: {_PCIE4}"),
        "gpus_per_node": (8, "~ a common inference server"),
        "dram_bytes": (1e12, "~ a common inference server"),
        "nic_bytes_per_s": (50e9, "~ 2x 200 Gb/s"),
    },
)

_A10 = _vary(
    _L40S,
    "a10",
    "4x A10 24 GB on PCIe 4.0 x16, no NVLink",
    {
        "bf16_flops_per_s": (125e12, "NVIDIA A10 datasheet, dense"),
        "fp8_flops_per_s": (125e12, "no FP8 units: weights in FP8 are unpacked and run at the bf16 rate"),
        "hbm_bytes_per_s": (600e9, "NVIDIA A10 datasheet (GDDR6)"),
        "hbm_bytes": (23028 * 2**20, "nvidia-smi: 23028 MiB in total"),
        "sms": (72, "NVIDIA A10: 9216 cores, 128 to a processor"),
        "gemm_efficiency": (0.55, "~ 150 W do not feed the peak"),
        "gpus_per_node": (4, "~ a common inference server"),
        "dram_bytes": (512e9, "~ a common inference server"),
        "dram_bytes_per_s": (205e9, "~ one socket of 8 channels DDR4-3200, theoretical"),
        "nic_bytes_per_s": (12.5e9, "~ 100 Gb/s"),
    },
)

_VM = "measured: 2 cores, 24 GB, Debian 12 virtual machine without a GPU"
_VM_FREE = "~ nothing to launch: copies are memory copies of the same processor"

_DEV_VM = _make(
    HardwareProfile,
    "dev-vm",
    "a virtual machine with 2 cores: both levels in DRAM, the reference model on the CPU",
    {
        "bf16_flops_per_s": (50e9, "~ 2 cores, AVX2, no native bf16"),
        "fp8_flops_per_s": (50e9, "~ computes in the same units"),
        "hbm_bytes_per_s": (8e9, f"{_VM}; torch copy_, 2 threads, 2.9 to 7.9 GB/s"),
        "hbm_bytes": (4 * 2**30, "~ the part of memory that plays the device"),
        "sms": (2, _VM),
        "gemm_efficiency": (0.6, "~ torch on the CPU"),
        "attention_efficiency": (0.3, "~ torch on the CPU"),
        "hbm_efficiency": (0.8, "~ torch on the CPU"),
        "prefill_overhead_s": (2e-3, "~ a Python pass of the reference scheduler"),
        "decode_overhead_s": (2e-3, "~ a Python pass of the reference scheduler"),
        "gpu_link_bytes_per_s": (5e9, "~ memory copy"),
        "gpu_link_efficiency": (1.0, "~ memory copy"),
        "all_reduce_latency_s": (50e-6, "~ a thread switch"),
        "h2d_bytes_per_s": (5e9, f"{_VM}; numpy copyto, 1 thread, 4.9 to 9.4 GB/s"),
        "d2h_bytes_per_s": (5e9, f"{_VM}; numpy copyto, 1 thread, 4.9 to 9.4 GB/s"),
        "h2d_duplex_bytes_per_s": (2.5e9, "~ both copies share the memory bus"),
        "d2h_duplex_bytes_per_s": (2.5e9, "~ both copies share the memory bus"),
        "kernel_launch_s": (20e-6, "~ a torch call"),
        "kernel_h2d_efficiency": (1.0, _VM_FREE),
        "kernel_d2h_efficiency": (1.0, _VM_FREE),
        "kernel_half_row_bytes": (4096, f"{_VM}; scattered 4 KiB pieces reach 1.5 GB/s"),
        "kernel_blocks": (1, "~ one of the two cores"),
        "direct_h2d_segment_s": (2.7e-6, f"{_VM}; 128 scattered pieces of 4 KiB with numpy"),
        "direct_d2h_segment_s": (2.7e-6, f"{_VM}; 128 scattered pieces of 4 KiB with numpy"),
        "direct_efficiency": (1.0, _VM_FREE),
        "gpus_per_node": (1, _VM),
        "dram_bytes_per_s": (10e9, f"{_VM}; numpy copyto, 2 threads, 4.7 to 12.4 GB/s"),
        "dram_bytes": (24e9, _VM),
        "nic_bytes_per_s": (1.25e9, "~ 10 Gb/s"),
    },
)

HARDWARE: dict[str, HardwareProfile] = {
    each.name: each for each in (_H100, _H200, _H20, _A100, _A10, _L40S, _B200, _DEV_VM)
}
DEFAULT_HARDWARE = "h100-pcie5"

# --- stores ---------------------------------------------------------------------------------------------------------

_TE = "Mooncake README: Transfer Engine, 40 GB (LLaMA3-70B, 128k tokens)"
_MC = "Mooncake 0.3.13 on a 2-core VM"
_NO_TAIL = "~ no published tail found; twice the median"

_MOONCAKE = _make(
    StoreProfile,
    "mooncake-4x200-roce",
    "Mooncake Store over 4x 200 Gb/s RoCE",
    {
        "backend": ("mooncake", "SGLang's name"),
        "read_bytes_per_s": (87e9, f"{_TE}: 87 GB/s"),
        "write_bytes_per_s": (87e9, f"{_TE}: 87 GB/s"),
        "capacity_bytes": (1e12, "~ 125 GB lent by each of 8 ranks; SGLang's own default is 4 GB a rank"),
        "concurrency": (128, "~ a batch is one transfer request"),
        "batch_latency_s": (310e-6, f"~ one master call (0.3 ms, measured, {_MC}, loopback) and 10 us of data"),
        "object_latency_s": (2e-6, "~ RDMA small message: 0.8 us for 32 B, 4.6 us for 32 KiB (a thesis' table)"),
        "probe_latency_s": (320e-6, f"measured, {_MC}: batch_is_exist of 128 keys, median 0.29 to 0.45 ms"),
        "p99_over_p50": (2.0, _NO_TAIL),
        "write_times": (1.0, "~ a write's round trips as a read's"),
        "compute_share": (0.0, "~ its threads run on processors of the host that compute does not need"),
        "objects": ("buffer", "SGLang storage/mooncake_store: keys from get_page_buffer_meta"),
        "nic_share": (1.0, "a store across the network"),
        "eviction": ("watermark_lease", "Mooncake documentation"),
        "high_watermark": (0.90, "Mooncake documentation: eviction_high_watermark_ratio (SGLang's README: 0.95)"),
        "low_watermark": (0.85, "Mooncake documentation: eviction_ratio 5 %"),
        "lease_s": (10.0, f"Mooncake documentation and --help of {_MC} (older versions: 5 s); by probe and get"),
        "partial_get": ("per_page", f"measured, {_MC}: one missing key does not fail the others"),
        "partial_set": ("per_page", f"measured, {_MC}: 52 of 128 accepted by a full store"),
        "client_ttl_s": (10.0, f"measured, {_MC}: exists says 1 for about 10 s after the owner was killed"),
        "owner_dead_s": (1.0, f"measured, {_MC}: -800 after 1.0 s"),
        "master_dead_s": (4.3, f"measured, {_MC}: -900 after 4.3 s a call"),
    },
)

_MOONCAKE_400 = _vary(
    _MOONCAKE,
    "mooncake-8x400-roce",
    "Mooncake Store over 8x 400 Gb/s RoCE",
    {
        "read_bytes_per_s": (190e9, f"{_TE}: 190 GB/s"),
        "write_bytes_per_s": (190e9, f"{_TE}: 190 GB/s"),
    },
)

_MOONCAKE_TCP = _vary(
    _MOONCAKE,
    "mooncake-tcp",
    "Mooncake Store over TCP, 4x 200 Gb/s",
    {
        "read_bytes_per_s": (36e9, f"{_TE}: RoCE is 2.4 times TCP, so 36 GB/s"),
        "write_bytes_per_s": (36e9, f"{_TE}: RoCE is 2.4 times TCP, so 36 GB/s"),
        "batch_latency_s": (400e-6, f"~ one master call (0.3 ms, measured, {_MC}) and 100 us of TCP"),
        "object_latency_s": (100e-6, f"~ measured, {_MC}: 64 KiB 0.31 ms, exists 0.12 ms, loopback"),
        "p99_over_p50": (1.4, f"measured, {_MC}: 128 pages of 64 KiB, 59 and 81 ms; few batches"),
    },
)

_3FS = _make(
    StoreProfile,
    "3fs-client",
    "3FS through its user-space client, one node",
    {
        "backend": ("hf3fs", "SGLang's name"),
        "read_bytes_per_s": (20e9, "Alibaba Tair on 3FS in SGLang: about 20 GB/s (DeepSeek's peak: 40 GiB/s a client)"),
        "write_bytes_per_s": (10e9, "~ replicated: half of the read figure"),
        "capacity_bytes": (2**40, "SGLang v0.5.7 storage/hf3fs: file of 1 TiB without configuration"),
        "concurrency": (128, "SGLang storage/hf3fs: numjobs 16 times entries 8"),
        "batch_latency_s": (3.3e-3, "measured: SGLang's small metadata server, loopback, 32 keys reserved in 3.3 ms"),
        "object_latency_s": (1e-3, "~ one storage round trip"),
        "probe_latency_s": (3.1e-3, "measured: SGLang's small metadata server, loopback, 128 keys"),
        "p99_over_p50": (3.0, "~ no published tail found"),
        "write_times": (1.0, "~ a write's round trips as a read's"),
        "compute_share": (0.0, "~ its threads run on processors of the host that compute does not need"),
        "objects": ("buffer", "~ as Mooncake"),
        "nic_share": (1.0, "a store across the network"),
        "eviction": ("lru_page_table", "SGLang storage/hf3fs: reserve takes the LRU page at once"),
        "high_watermark": (1.0, "SGLang storage/hf3fs: evicts only when no page is free"),
        "low_watermark": (1.0, "SGLang storage/hf3fs: evicts what it needs"),
        "lease_s": (0.0, "SGLang storage/hf3fs: no pinning; a page being read can be overwritten"),
        "partial_get": ("per_page", "SGLang storage/hf3fs: a result for each page"),
        "partial_set": ("per_page", "SGLang storage/hf3fs: a result for each page"),
        "client_ttl_s": (0.0, "SGLang storage/hf3fs: no owners, no heartbeat"),
        "owner_dead_s": (5.0, "SGLang storage/hf3fs: client_timeout"),
        "master_dead_s": (0.9, "~ SGLang storage/hf3fs: 3 tries, backoff 0.3 s"),
    },
)

_NIXL = _make(
    StoreProfile,
    "nixl-posix-nvme",
    "NIXL's POSIX plugin on 4 local NVMe drives",
    {
        "backend": ("nixl", "SGLang's name"),
        "read_bytes_per_s": (21 * 2**30, "nixlbench, gds-bench.farmgpu.net: POSIX 21.6 GiB/s, 4 drives"),
        "write_bytes_per_s": (10 * 2**30, "~ half of the read figure"),
        "capacity_bytes": (15e12, "~ 4 drives of 3.84 TB"),
        "concurrency": (64, "nixlbench: batch 64"),
        "batch_latency_s": (1e-3, "~ files opened and registered for every transfer"),
        "object_latency_s": (100e-6, "~ one NVMe read"),
        "probe_latency_s": (3.3e-3, "measured on a 2-core VM: exists of 129 keys, 3.3 to 3.9 ms"),
        "p99_over_p50": (3.0, "~ no published tail found"),
        "write_times": (1.0, "~ a write's round trips as a read's"),
        "compute_share": (0.0, "~ its threads run on processors of the host that compute does not need"),
        "objects": ("buffer", "~ as Mooncake"),
        "nic_share": (0.0, "a local store"),
        "eviction": ("watermark_cleaner", "SGLang 0.5.23 storage/nixl: l3_cleaner, every 30 s, oldest files first"),
        "high_watermark": (0.80, "SGLang 0.5.23 storage/nixl: l3_cleaner_high_watermark"),
        "low_watermark": (0.70, "SGLang 0.5.23 storage/nixl: l3_cleaner_low_watermark"),
        "lease_s": (0.0, "SGLang storage/nixl: none"),
        "partial_get": ("all_or_nothing", "SGLang storage/nixl: one missing file fails the batch"),
        "partial_set": ("all_or_nothing", "SGLang storage/nixl: one failure fails the batch"),
        "client_ttl_s": (0.0, "local files: no owners"),
        "owner_dead_s": (0.0, "local files: an error returns at once"),
        "master_dead_s": (0.0, "local files: no metadata service"),
    },
)

_FILE = _vary(
    _NIXL,
    "file-local",
    "SGLang's file backend on a local disk, a file a page",
    {
        "backend": ("file", "SGLang's name"),
        "read_bytes_per_s": (2.4e9, "measured on a 2-core VM: file a page, ext4, cached, 2.4 to 2.9 GB/s"),
        "write_bytes_per_s": (1.2e9, "measured on a 2-core VM: write and rename, 0.54 to 1.32 GB/s"),
        "capacity_bytes": (math.inf, "SGLang v0.5.7 HiCacheFile: no limit"),
        "concurrency": (1, "SGLang v0.5.7 HiCacheFile: one page after the other"),
        "batch_latency_s": (0.0, "SGLang v0.5.7 HiCacheFile: no batches"),
        "object_latency_s": (20e-6, "~ open, read, close of a cached file"),
        "probe_latency_s": (1.1e-3, "measured on a 2-core VM: exists of 129 keys, 1.0 to 1.2 ms"),
        "p99_over_p50": (8.0, "~ a page that is not cached: fio, 64 KiB, 0.11 and 4 ms"),
        "objects": ("page", "SGLang v0.5.7 HiCacheFile: a file a page"),
        "eviction": ("none", "SGLang v0.5.7 HiCacheFile: never deletes"),
        "high_watermark": (1.0, "SGLang v0.5.7 HiCacheFile: never deletes"),
        "low_watermark": (1.0, "SGLang v0.5.7 HiCacheFile: never deletes"),
        "partial_get": ("per_page", "SGLang HiCacheFile: a missing file is None"),
        "partial_set": ("stops", "SGLang HiCacheFile: batch_set stops at the first failure"),
    },
)

_REDIS = _make(
    StoreProfile,
    "redis-local",
    "Redis on the same machine, through SGLang's dynamic backend",
    {
        "backend": ("dynamic", "SGLang's name"),
        "read_bytes_per_s": (0.25e9, "measured on a 2-core VM: MGET of 128 pages, 0.19 to 0.26 GB/s (Python parses)"),
        "write_bytes_per_s": (0.7e9, "measured on a 2-core VM: pipeline of 128 SET, 0.35 to 0.88 GB/s"),
        "capacity_bytes": (2 * 2**30, "~ maxmemory 2gb"),
        "concurrency": (128, "one pipeline a batch"),
        "batch_latency_s": (0.2e-3, "measured on a 2-core VM: a round trip, 0.17 to 0.31 ms"),
        "object_latency_s": (0.0, "in the bandwidth"),
        "probe_latency_s": (0.2e-3, "~ measured on a 2-core VM: one exists 0.17 ms, pipelined"),
        "p99_over_p50": (2.0, _NO_TAIL),
        "write_times": (1.0, "~ a write's round trips as a read's"),
        "compute_share": (0.0, "~ its threads run on processors of the host that compute does not need"),
        "objects": ("page", "SGLang's dynamic backend: batch_set of pages"),
        "nic_share": (0.0, "a local store"),
        "eviction": ("lru", "maxmemory-policy allkeys-lru"),
        "high_watermark": (1.0, "Redis: evicts at maxmemory"),
        "low_watermark": (1.0, "Redis: evicts what it needs"),
        "lease_s": (0.0, "Redis: none"),
        "partial_get": ("per_page", "Redis: a missing key is nil"),
        "partial_set": ("per_page", "Redis: a reply for each SET"),
        "client_ttl_s": (0.0, "Redis: the server holds the data"),
        "owner_dead_s": (0.0, "~ Redis: connection refused at once"),
        "master_dead_s": (0.0, "~ Redis: connection refused at once"),
    },
)

_LMDB = _vary(
    _REDIS,
    "lmdb-local",
    "LMDB in the same process (sync off), through SGLang's dynamic backend",
    {
        "read_bytes_per_s": (3e9, "measured on a 2-core VM: 128 pages, 2.1 to 3.9 GB/s, zero-copy read"),
        "write_bytes_per_s": (1.1e9, "measured on a 2-core VM: a transaction of 128 pages, 0.8 to 1.2 GB/s"),
        "capacity_bytes": (8 * 2**30, "~ map_size 8 GiB"),
        "batch_latency_s": (0.1e-3, "~ a transaction"),
        "probe_latency_s": (0.2e-3, "~ 128 lookups in a B+ tree"),
        "eviction": ("none", "LMDB: a full map refuses writes"),
        "high_watermark": (1.0, "LMDB: never deletes"),
        "low_watermark": (1.0, "LMDB: never deletes"),
        "lease_s": (0.0, "LMDB: none"),
        "partial_get": ("per_page", "LMDB: a missing key is None"),
        "partial_set": ("all_or_nothing", "LMDB: one transaction a batch"),
        "client_ttl_s": (0.0, "LMDB: in the same process"),
        "owner_dead_s": (0.0, "LMDB: in the same process"),
        "master_dead_s": (0.0, "LMDB: in the same process"),
    },
)

STORES: dict[str, StoreProfile] = {
    each.name: each for each in (_MOONCAKE, _MOONCAKE_400, _MOONCAKE_TCP, _3FS, _NIXL, _FILE, _REDIS, _LMDB)
}
DEFAULT_STORES = {
    "mooncake": "mooncake-4x200-roce",
    "hf3fs": "3fs-client",
    "nixl": "nixl-posix-nvme",
    "file": "file-local",
    "dynamic": "redis-local",
    "redis": "redis-local",
    "lmdb": "lmdb-local",
}
"""Upstream's `--hicache-storage-backend` to the profile taken where none is named."""

# --- finding and changing -------------------------------------------------------------------------------------------


def load_profile(name_or_path: str | Path = DEFAULT_HARDWARE, **overrides: Any) -> HardwareProfile:
    """A hardware profile by name, or from a JSON file, with single numbers overridden."""
    return _load(HARDWARE, name_or_path, overrides, "hardware profile")


def load_store(name_or_path: str | Path, **overrides: Any) -> StoreProfile:
    """A store profile by name, or from a JSON file, with single numbers overridden."""
    return _load(STORES, name_or_path, overrides, "store profile")


def _load(known: Mapping[str, _P], name_or_path: str | Path, overrides: Mapping[str, Any], what: str) -> _P:
    name = str(name_or_path)
    if name in known:
        profile = known[name]
    elif name.endswith(".json"):
        profile = _read(known, Path(name), what)
    else:
        raise ProfileError(f"unknown {what} {name!r}; known: {', '.join(known)}; or give a .json file")
    if not overrides:
        return profile
    changed = {each: (value, "overridden by the caller") for each, value in overrides.items()}
    return _vary(profile, profile.name, profile.description, changed)


def _read(known: Mapping[str, _P], path: Path, what: str) -> _P:
    """A file is an object: `base` (a known name), optional `name` and `description`, and numbers.

    A number is a number, or an object of `value` and `source`. A calibration's machine is its `hardware`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise ProfileError(f"{path} is not JSON") from None
    if isinstance(content, dict) and isinstance(content.get("hardware"), dict):
        content = content["hardware"]
    return _of_mapping(known, content, path, what)


def _of_mapping(known: Mapping[str, _P], given: Any, path: Path, what: str) -> _P:
    if not isinstance(given, dict) or given.get("base") not in known:
        raise ProfileError(f"{path} needs a 'base', the {what} it changes: one of {', '.join(known)}")
    content = dict(given)
    base = known[content.pop("base")]
    name, description = content.pop("name", path.stem), content.pop("description", f"{base.description}, changed")
    numbers = {each: _with_source(value, path) for each, value in content.items()}
    return _vary(base, str(name), str(description), numbers)


def store_of(given: Any, path: Path, name: str, **overrides: Any) -> StoreProfile:
    """A store profile from an object that a calibration holds."""
    profile = replace(_of_mapping(STORES, given, path, "store profile"), name=name)
    changed = {each: (value, "overridden by the caller") for each, value in overrides.items()}
    return _vary(profile, name, profile.description, changed) if changed else profile


def _with_source(value: Any, path: Path) -> tuple[Any, str]:
    if isinstance(value, dict):
        return value.get("value"), str(value.get("source", path.name))
    return value, path.name
