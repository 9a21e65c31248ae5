"""How large L1 and L2 become: upstream's arithmetic, and its guesses from the size of the GPU.

Rules of this file
- Pure functions of numbers; whoever decides which of them applies is `resolve`.
- GPU memory enters in bytes. Upstream's tables think in MiB (`server_args.py`, `_handle_gpu_memory_settings`; 0.5.23:
  `memory_hook.py`), host sizes in 10^9 bytes (`memory_pool_host.py`).
- Not modelled: vision models' extra headroom, MoE all-to-all buffers, graphs that were switched off.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
HOST_RESERVE_BYTES = 10 * GIB
"""Host memory that upstream leaves to everybody else."""
AUTO_SIZE_SLACK = 0.05
"""0.5.23's auto-sizing keeps this share for what page rounding and staging add (`hicache_auto_size.py`)."""
AUTO_SIZE_FRACTION = 0.8
"""0.5.23's --hicache-host-memory-fraction where it is not given."""


@dataclass(frozen=True)
class Capacity:
    """What upstream takes for a GPU of this class where the user did not say."""

    below_mib: float
    chunk_tokens: int
    graph_batch: int
    """Largest batch of the decode graphs."""
    graph_batch_tp4: int
    """The same where four ranks or more share a layer."""


_GPU = (
    Capacity(20 * 1024, 2048, 8, 8),
    Capacity(35 * 1024, 2048, 24, 80),
    Capacity(60 * 1024, 4096, 32, 160),
    Capacity(160 * 1024, 8192, 256, 512),
    Capacity(float("inf"), 16384, 512, 512),
)
_GPU_V0523 = (_GPU[0], Capacity(35 * 1024, 4096, 48, 160), *_GPU[2:])
_NPU = (Capacity(32 * 1024 + 1, 4096, 16, 64), Capacity(64 * 1024 + 1, 8192, 64, 256))
_UNKNOWN = Capacity(float("inf"), 4096, 160, 160)
_CAPACITIES = {"v0.5.7": _GPU, "v0.5.23": _GPU_V0523}


def capacity_of(upstream: str, gpu_mem_bytes: int | None, is_npu: bool) -> Capacity:
    """The class a device belongs to; a device nobody described has one of its own."""
    if gpu_mem_bytes is None:
        return _UNKNOWN
    classes = (*_NPU, *_CAPACITIES[upstream]) if is_npu else _CAPACITIES[upstream]
    return next(c for c in classes if gpu_mem_bytes // MIB < c.below_mib)


@dataclass(frozen=True)
class Load:
    """What a server keeps on the GPU beside weights and cache, as far as upstream's guess asks."""

    chunk_tokens: int
    """Not above 0: whole prompts."""
    max_prefill_tokens: int
    graph_batch: int
    tp_size: int
    pp_size: int
    attention_groups: int
    """1 without DP attention."""
    speculative_algorithm: str | None
    max_total_tokens: int | None
    max_running_requests: int | None
    is_mla: bool
    decodes: bool
    """False: the prefill server of a pair."""


def mem_fraction_v057(gpu_mem_bytes: int | None, load: Load) -> float:
    """--mem-fraction-static where v0.5.7 has to guess it: what is left after activations, graphs and draft model."""
    if gpu_mem_bytes is None:
        return 0.88
    gpu_mib = gpu_mem_bytes // MIB
    reserved_mib = _activations_mib(load) + load.graph_batch * 2
    reserved_mib += _padding_mib(load.graph_batch, load.attention_groups)
    if gpu_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    reserved_mib += {None: 0, "NGRAM": 0, "STANDALONE": 6 * 1024}.get(load.speculative_algorithm, 2 * 1024)
    return round((gpu_mib - reserved_mib) / gpu_mib, 3)


def mem_fraction_v0523(gpu_mem_bytes: int | None, load: Load) -> float:
    """The same in 0.5.23, which counts prefill graphs and takes the draft model for weights."""
    if gpu_mem_bytes is None:
        return 0.95
    gpu_mib = gpu_mem_bytes // MIB
    reserved_mib = _activations_mib(load) + (1.5 * 1024 if load.is_mla else _prefill_graphs(load) * 8)
    if load.decodes:
        batch = min(load.graph_batch, load.max_running_requests or load.graph_batch)
        reserved_mib += batch * 2 + _padding_mib(batch, load.attention_groups)
    if gpu_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    return round((gpu_mib - reserved_mib) / gpu_mib, 3)


def _activations_mib(load: Load) -> float:
    tokens = load.chunk_tokens if load.chunk_tokens > 0 else load.max_prefill_tokens
    return 512 + max(tokens, 2048) * 1.5 + load.tp_size * load.pp_size / 8 * 1024


def _padding_mib(graph_batch: int, attention_groups: int) -> float:
    """What attention groups of unlike batch sizes waste, more of it where the graphs are large."""
    return 0 if attention_groups == 1 else graph_batch * attention_groups * (4.5 if graph_batch > 300 else 3)


def _prefill_graphs(load: Load) -> int:
    """How many prefill graphs 0.5.23 captures: finer steps for short batches (`cuda_graph_hook.py`)."""
    largest = min(load.chunk_tokens, load.max_total_tokens or load.chunk_tokens)
    if load.pp_size > 1:
        largest = min(largest, 8192)
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, largest + 1, 512))
    return sum(size <= largest for step in steps for size in range(*step))


def profiled_l1_tokens(gpu_mem_bytes: int, mem_fraction: float, weight_bytes: int, token_bytes: int) -> int:
    """L1 before it is cut to whole pages: the static share of the GPU, less the weights. Not above 0: no room."""
    return int(gpu_mem_bytes * mem_fraction - weight_bytes) // token_bytes


def l2_pages_by_ratio(l1_tokens: int, ratio: float, page_size: int) -> int:
    """Upstream rounds up by always adding a page, so that L2 exceeds L1 even at a ratio of 1."""
    return int(l1_tokens * ratio) // page_size + 1


def l2_pages_by_size(size_gb: float, token_bytes: int, page_size: int) -> int:
    return int(size_gb * 1e9 // token_bytes) // page_size + 1


def auto_ratio(ratio: float, fraction: float, l1_bytes: int, room_bytes: int, ranks_per_host: int) -> float:
    """0.5.23's default ratio, made smaller until the pools of all ranks of a host fit (`hicache_auto_size.py`)."""
    budget = int(room_bytes // ranks_per_host * fraction)
    return min(ratio, budget * (1 - AUTO_SIZE_SLACK) / l1_bytes)
