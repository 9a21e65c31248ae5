"""A store as somebody else would write it for SGLang: a dictionary with the interface of `HiCacheStorage`.

Rules of this file
- It knows upstream's interface and nothing of this project, and imports neither.
- `extra_config["space"]` names a dictionary that all objects of one process share.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from typing import Any

SPACES: dict[str, dict[str, bytes]] = defaultdict(dict)


class DictStore:
    def __init__(self, storage_config: Any, kwargs: dict[str, Any]) -> None:
        self.config = storage_config
        extra = storage_config.extra_config
        if extra.get("broken"):
            raise RuntimeError("no server there")
        self.data = SPACES[extra["space"]]
        self.room = extra.get("room", 1 << 30)
        self.lock = threading.Lock()
        rank = "" if storage_config.is_mla_model else f"_{storage_config.tp_rank}_{storage_config.tp_size}"
        stage = f"_{storage_config.pp_rank}_{storage_config.pp_size}"
        self.suffix = f"_{extra.get('extra_backend_tag', '')}_{storage_config.model_name}{rank}{stage}"
        self.pools_seen: list[Any] = []
        self.bursts = self.closed = 0

    def register_mem_pool_host(self, pool: Any) -> None:
        self.pool = pool
        self.pools_seen.append(pool)

    def on_host_pools_registered(self) -> None:
        self.bursts += 1

    def close(self) -> None:
        self.closed += 1

    def _parts(self, keys: list[str]) -> list[list[str]]:
        parts = ["k"] if self.config.is_mla_model else ["k", "v"]
        return [[f"{key}{self.suffix}_{part}" for part in parts] for key in keys]

    def _buffers(self, host_indices: Any) -> list[list[tuple[int, int]]]:
        addresses, sizes = self.pool.get_page_buffer_meta(host_indices)
        pages = len(host_indices) // self.pool.page_size
        each = len(addresses) // pages
        assert each == (1 if self.config.is_mla_model else 2)
        both = list(zip(addresses, sizes, strict=True))
        low = self.pool.kv_buffer.data_ptr()
        assert all(low <= a and a + n <= low + self.pool.kv_buffer.numel() for a, n in both), "not registered"
        return [both[at : at + each] for at in range(0, len(both), each)]

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        results = []
        for parts, buffers in zip(self._parts(keys), self._buffers(host_indices), strict=True):
            with self.lock:
                fits = parts[0] in self.data or len(self.data) + len(parts) <= self.room
                for part, (address, size) in zip(parts, buffers, strict=True):
                    if fits:
                        self.data.setdefault(part, ctypes.string_at(address, size))
            results.append(fits)
        return results

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        results = []
        for parts, buffers in zip(self._parts(keys), self._buffers(host_indices), strict=True):
            values = [self.data.get(part) for part in parts]
            good = all(
                value is not None and len(value) == size for value, (_, size) in zip(values, buffers, strict=True)
            )
            for value, (address, size) in zip(values, buffers, strict=True):
                if good:
                    ctypes.memmove(address, value, size)
            results.append(good)
        return results

    def batch_set(self, keys: list[str], values: Any = None, locations: Any = None, sizes: Any = None) -> bool:
        for key, value in zip(keys, values, strict=True):
            with self.lock:
                if len(self.data) >= self.room:
                    return False
                self.data.setdefault(key + self.suffix, value.numpy().tobytes())
        return True

    def batch_get(self, keys: list[str], targets: Any = None, sizes: Any = None) -> list[Any]:
        return [self._get(key, target) for key, target in zip(keys, targets, strict=True)]

    def _get(self, key: str, target: Any) -> Any:
        value = self.data.get(key + self.suffix)
        if value is None or len(value) != target.numel():
            return None
        target.numpy()[:] = memoryview(value)
        return target

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        for at, (key, parts) in enumerate(zip(keys, self._parts(keys), strict=True)):
            if key + self.suffix not in self.data and not all(part in self.data for part in parts):
                return at
        return len(keys)

    def clear(self) -> None:
        for key in [key for key in list(self.data) if self.suffix in key]:
            if key.partition(self.suffix)[2] in ("", "_k", "_v"):
                self.data.pop(key, None)
