"""The real caches of SGLang 0.5.7 on a CPU, given the same work as ours.

python theirs.py SOURCE radix PROMPTS TOKENS PAGE        RadixCache, as `ours.py` beside this file
python theirs.py SOURCE hiradix TRACE REQUESTS L1 L2 PAGE  HiRadixCache, as `hicache replay TRACE --untimed`

SOURCE is the folder that holds the wheel's `sglang/`. Prints what it took and what was decided, as JSON.

Rules of this file
- Glue only: whatever decides is imported from the wheel. What needs a GPU or the rest of the server is replaced by as
  little as it takes: copies move nothing and are done at once.
- Slots come from the wheel's own pools. Reading input is not counted.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import json
import sys
import time
import types
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

BLOCK_TOKENS = 512


class Done:
    """A CUDA event whose work is done."""

    def record(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def query(self) -> bool:
        return True


class Streams:
    """`torch.cuda`, as far as the cache controller knows it."""

    Event = Done

    class Stream:
        def wait_event(self, _: Any) -> None: ...

    class stream:
        def __init__(self, _: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: Any) -> None: ...

    current_stream = Stream


def install(source: str) -> None:
    """Make `sglang.srt.mem_cache` importable: packages without their `__init__`, stand-ins for what is around it."""
    for package in ("", ".srt", ".srt.mem_cache", ".srt.managers"):
        module = types.ModuleType("sglang" + package)
        module.__path__ = [f"{source}/sglang{package.replace('.', '/')}"]
        sys.modules[module.__name__] = module
    no, one = (lambda *_, **__: False), (lambda *_, **__: 1)
    triton = stand_in("triton", jit=lambda kernel: kernel)
    triton.language = stand_in("triton.language", constexpr=int)
    stand_in("psutil", virtual_memory=lambda: types.SimpleNamespace(available=1 << 60))
    for name, what in {
        "srt.disaggregation.kv_events": ("AllBlocksCleared", "BlockRemoved", "BlockStored"),
        "srt.metrics.collector": ("StorageMetricsCollector", "RadixCacheMetricsCollector"),
        "srt.mem_cache.memory_pool": ("KVCache", "MHATokenToKVPool", "MLATokenToKVPool", "ReqToTokenPool", "SWAKVPool"),
        "srt.mem_cache.utils": ("convert_to_bigram_key",),
    }.items():
        stand_in("sglang." + name, **{each: type(each, (), {}) for each in what})
    kernels = dict.fromkeys(("transfer_hicache_all_layer", "transfer_hicache_one_layer"))
    stand_in("sglang.jit_kernel.hicache", can_use_hicache_jit_kernel=no, **kernels)
    # On an XPU the host pool wants no kernels of CUDA's.
    platform = {
        "is_cuda": no,
        "is_npu": no,
        "is_xpu": one,
        "get_bool_env_var": no,
        "get_device_module": lambda: Streams,
    }
    stand_in("sglang.srt.utils", next_power_of_2=None, get_num_new_pages=None, **platform)
    tp = {"get_tensor_model_parallel_rank": no, "get_tensor_model_parallel_world_size": one}
    stand_in("sglang.srt.distributed", **tp)
    ranks = {"get_attention_dp_rank": no, "get_attention_tp_rank": no, "get_attention_tp_size": one}
    stand_in("sglang.srt.layers.dp_attention", is_dp_attention_enabled=no, **ranks)
    torch.distributed.get_world_size = one


def stand_in(name: str, **contents: Any) -> Any:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def device_slots(size: int, page: int, pool: Any = None) -> Any:
    """The wheel's pool of L1."""
    from sglang.srt.mem_cache import allocator  # type: ignore[import-not-found,unused-ignore]

    if page == 1:
        return allocator.TokenToKVPoolAllocator(size, torch.int64, "cpu", pool, need_sort=False)
    return allocator.PagedTokenToKVPoolAllocator(size, page, torch.int64, "cpu", pool, need_sort=False)


# RadixCache


def radix(path: str, tokens: int, page: int) -> dict[str, Any]:
    """Match and insert prompts."""
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # type: ignore[import-not-found,unused-ignore]

    with open(path, "rb") as file:
        words = array("I", file.read())
    prompts = [words[at : at + tokens].tolist() for at in range(0, len(words), tokens)]
    slots = device_slots(tokens * len(prompts), page)
    tree = RadixCache.create_simulated(mock_allocator=slots, page_size=page)

    def serve(prompt: list[int]) -> int:
        match = tree.match_prefix(RadixKey(prompt))
        held, node = match.device_indices, match.last_device_node
        tree.inc_lock_ref(node)
        tree.insert(RadixKey(prompt), torch.cat([held, slots.alloc(len(prompt) - len(held))]))
        tree.dec_lock_ref(node)
        return len(held)

    gc.freeze()
    began_s = time.process_time()
    found = [serve(prompt) for prompt in prompts]
    served_s = time.process_time() - began_s
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]
    return {"keys_s": 0.0, "serve_s": served_s, "matched": sum(found), "digest": digest}


# HiRadixCache


def hiradix(path: str, requests: int, l1: int, l2: int, page: int) -> dict[str, Any]:
    """A trace, one request after the other: match, load back, lock, make room, insert, unlock."""
    from sglang.srt.mem_cache.radix_cache import RadixKey

    tree, slots = tiers(l1, l2, page)
    totals = dict.fromkeys(("requests", "rejected", "input", "device_hit", "host_hit", "loaded"), 0)
    spent_s = 0.0
    for prompt in prompts_of(path, requests, page):
        began_s = time.process_time()
        match = tree.match_prefix(RadixKey(prompt))
        held, node, loaded = match.device_indices, match.last_device_node, 0
        if match.host_hit_length:
            more, node = tree.init_load_back(match.last_host_node, match.host_hit_length)
            loaded, held = len(more), torch.cat([held, more])
            tree.ready_to_load_host_cache()
        tree.inc_lock_ref(node)
        missing = len(prompt) - len(held)
        if missing > slots.available_size():
            tree.evict(missing - slots.available_size())
        new = slots.alloc(missing)
        if new is not None:
            values = torch.cat([held, new])
            before = tree.insert(RadixKey(prompt), values)
            slots.free(values[len(held) : before])
        tree.dec_lock_ref(node)
        tree.check_hicache_events()
        spent_s += time.process_time() - began_s
        totals["requests"] += 1
        totals["rejected"] += new is None
        totals["input"] += len(prompt)
        totals["device_hit"] += len(match.device_indices)
        totals["host_hit"] += match.host_hit_length
        totals["loaded"] += loaded
    return {"cache_cpu_s": spent_s, "totals": totals}


def tiers(l1: int, l2: int, page: int) -> tuple[Any, Any]:
    """A HiRadixCache over two levels, write_through, lru, and the slots of L1."""
    import sglang.srt.mem_cache.hiradix_cache as module  # type: ignore[import-not-found,unused-ignore]
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # type: ignore[import-not-found,unused-ignore]

    class Device(module.MHATokenToKVPool):  # type: ignore[misc,name-defined,unused-ignore]
        """L1's memory: none."""

        size, device, store_dtype = l1, "cpu", torch.uint8
        layer_num = start_layer = end_layer = head_num = head_dim = 1

        def register_layer_transfer_counter(self, _: Any) -> None: ...

    class Host(module.MHATokenToKVPoolHost):  # type: ignore[misc,name-defined,unused-ignore]
        """L2: a byte a token, and no copies."""

        def init_kv_buffer(self) -> Any:
            return torch.empty((2, 1, self.size, 1, 1), dtype=torch.uint8)

        def backup_from_device_all_layer(self, *_: Any) -> None: ...
        def load_to_device_per_layer(self, *_: Any) -> None: ...

    module.MHATokenToKVPoolHost = Host
    slots = device_slots(l1, page, Device())
    flags = types.SimpleNamespace(
        hicache_io_backend="kernel",
        hicache_mem_layout="layer_first",
        hicache_ratio=l2 / l1,
        hicache_size=0,
        hicache_storage_backend=None,
        hicache_storage_backend_extra_config=None,
        hicache_storage_prefetch_policy="best_effort",
        hicache_write_policy="write_through",
        served_model_name="none",
    )
    return module.HiRadixCache(CacheInitParams(False, None, slots, page), flags), slots


def prompts_of(path: str, requests: int, page: int) -> Iterator[list[int]]:
    """Whole pages of the trace's first prompts: block b stands for tokens 512 b to 512 b + 511."""
    with gzip.open(path, "rt") as lines:
        for _, line in zip(range(requests), lines, strict=False):
            row = json.loads(line)
            whole = row["input_length"] // page * page
            tokens = [t for b in row["hash_ids"] for t in range(b * BLOCK_TOKENS, (b + 1) * BLOCK_TOKENS)][:whole]
            if tokens:
                yield tokens


def main(source: str, what: str, path: str, *numbers: str) -> None:
    torch.set_num_threads(1)
    install(source)
    sides: dict[str, Callable[..., dict[str, Any]]] = {"radix": radix, "hiradix": hiradix}
    print(json.dumps(sides[what](path, *map(int, numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
