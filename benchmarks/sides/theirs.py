"""The real caches of SGLang 0.5.7 on a CPU, given the same work as ours.

python theirs.py SOURCE radix PROMPTS TOKENS PAGE        RadixCache, as `ours.py` beside this file
python theirs.py SOURCE hiradix TRACE REQUESTS L1 L2 PAGE  HiRadixCache, as `hicache replay TRACE --untimed`

SOURCE is the folder that holds the wheel's `sglang/`. Prints what it took and what was decided, as JSON.

Rules of this file
- Glue only: whatever decides is imported from the wheel. What needs a GPU or the rest of the server is replaced by as
  little as it takes: copies move nothing and are done at once.
- Whatever is ours must cost next to nothing: slots are a stack in a tensor, and reading input is not counted.
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
from collections.abc import Iterator
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

BLOCK_TOKENS = 512


class Slots:
    """A pool of token slots, with the little that both caches ask of one."""

    device = "cpu"
    layer_num = 1
    layout = "layer_first"

    def __init__(self, size: int, page: int) -> None:
        self.size, self.page_size = size, page
        self.clear()

    def clear(self) -> None:
        self._stack = torch.arange(self.size - 1, -1, -1, dtype=torch.int64)
        self._free = self.size

    def available_size(self) -> int:
        return self._free

    def alloc(self, size: int) -> Any:
        if size > self._free:
            return None
        self._free -= size
        return self._stack[self._free : self._free + size].clone()

    def free(self, slots: Any) -> int:
        self._stack[self._free : self._free + len(slots)] = slots
        self._free += len(slots)
        return len(slots)


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

    class stream:  # noqa: N801
        def __init__(self, _: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: Any) -> None: ...

    current_stream = Stream


class Named:
    """A class that is only named: never made, or made and never asked anything."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def install(source: str) -> None:
    """Make `sglang.srt.mem_cache` importable: packages without their `__init__`, stand-ins for the rest."""
    for package in ("", ".srt", ".srt.mem_cache", ".srt.managers"):
        module = types.ModuleType("sglang" + package)
        module.__path__ = [f"{source}/sglang{package.replace('.', '/')}"]
        sys.modules[module.__name__] = module
    for package in ("disaggregation", "layers", "metrics"):
        stand_in(package).__path__ = []  # type: ignore[attr-defined]
    names = ("AllBlocksCleared", "BlockRemoved", "BlockStored")
    stand_in("disaggregation.kv_events", **{name: Named for name in names})
    stand_in("metrics.collector", StorageMetricsCollector=Named, RadixCacheMetricsCollector=Named)
    stand_in("utils", get_device_module=lambda: Streams)
    one, none = (lambda *_: 1), (lambda *_: 0)
    stand_in("distributed", get_tensor_model_parallel_rank=none, get_tensor_model_parallel_world_size=one)
    ranks = {"get_attention_dp_rank": none, "get_attention_tp_rank": none, "get_attention_tp_size": one}
    stand_in("layers.dp_attention", is_dp_attention_enabled=lambda: False, **ranks)
    stand_in("mem_cache.utils", convert_to_bigram_key=None)
    stand_in("mem_cache.allocator", BaseTokenToKVPoolAllocator=Named)
    device, host = type("MHA", (), {}), type("MHAHost", (), {})
    others = {"MLATokenToKVPool": type("MLA", (), {}), "KVCache": Named, "ReqToTokenPool": Named}
    stand_in("mem_cache.memory_pool", MHATokenToKVPool=device, **others)
    stand_in("mem_cache.memory_pool_host", MHATokenToKVPoolHost=host, MLATokenToKVPoolHost=Named, HostKVCache=Named)
    torch.distributed.get_world_size = one


def stand_in(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType("sglang.srt." + name)
    module.__dict__.update(contents)
    sys.modules[module.__name__] = module
    return module


# RadixCache


def radix(path: str, tokens: int, page: int) -> dict[str, Any]:
    """Match and insert prompts."""
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # type: ignore[import-not-found,unused-ignore]

    with open(path, "rb") as file:
        words = array("I", file.read())
    prompts = [words[at : at + tokens].tolist() for at in range(0, len(words), tokens)]
    slots = Slots(tokens * len(prompts), page)
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

    slots = Slots(l1, page)
    tree = tiers(slots, l2, page)
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


def tiers(slots: Slots, l2: int, page: int) -> Any:
    """A HiRadixCache over two levels, write_through, lru."""
    import sglang.srt.mem_cache.hiradix_cache as module  # type: ignore[import-not-found,unused-ignore]
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # type: ignore[import-not-found,unused-ignore]

    class Device(module.MHATokenToKVPool):  # type: ignore[misc,name-defined,unused-ignore]
        device = "cpu"
        layer_num = 1

        def register_layer_transfer_counter(self, _: Any) -> None: ...

    class Host(module.MHATokenToKVPoolHost, Slots):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self, *_: Any, **__: Any) -> None:
            Slots.__init__(self, l2, page)

        def backup_from_device_all_layer(self, *_: Any) -> None: ...
        def load_to_device_per_layer(self, *_: Any) -> None: ...

    module.MHATokenToKVPoolHost = Host
    device = Device()
    slots.get_kvcache = lambda: device  # type: ignore[attr-defined]
    flags = types.SimpleNamespace(
        hicache_io_backend="kernel",
        hicache_mem_layout="layer_first",
        hicache_ratio=l2 / slots.size,
        hicache_size=0,
        hicache_storage_backend=None,
        hicache_storage_backend_extra_config=None,
        hicache_storage_prefetch_policy="best_effort",
        hicache_write_policy="write_through",
        served_model_name="none",
    )
    return module.HiRadixCache(CacheInitParams(False, None, slots, page), flags)


def prompts_of(path: str, requests: int, page: int) -> Iterator[list[int]]:
    """Whole pages of the trace's first prompts: block b stands for tokens 512 b to 512 b + 511."""
    with gzip.open(path, "rt") as lines:
        for _, line in zip(range(requests), lines):
            row = json.loads(line)
            whole = row["input_length"] // page * page
            tokens = [t for b in row["hash_ids"] for t in range(b * BLOCK_TOKENS, (b + 1) * BLOCK_TOKENS)][:whole]
            if tokens:
                yield tokens


def main(source: str, what: str, path: str, *numbers: str) -> None:
    torch.set_num_threads(1)
    install(source)
    print(json.dumps({"radix": radix, "hiradix": hiradix}[what](path, *map(int, numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
