"""Copies between L1 and L2, for each operator and layout, as ratios to `memcpy` of the same bytes in the same run.

Rules of this file
- A figure is memcpy's best time over the copy's best time, measured in turn. A load is all its layers, one after
  another; making the plan counts. 1 is memcpy's speed; the target is 0.8.
- One thread for both, and CPU time of that thread: a busy machine takes turns away from either, but not time. Memory
  is touched before, and larger than a core's caches.
- Adjacent: pages in order on both sides, as a fresh pool hands them out. Scattered on L1: adjacent on the host and
  anywhere on the device. Scattered: anywhere on both, the worst there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hicache_ref.config.layouts import OPERATORS, KvGeometry, find_layout
from hicache_ref.data.copy import Copier, make_copier
from hicache_ref.data.pools import DevicePool, HostPool

from .measure import Row, Table
from .scale import Scale, main

SEED = 1
TARGET = 0.8
TOTAL_BYTES = 48 << 20
PAGE_TOKENS = {
    "mha": (4, 16, 64),  # 64 KiB, 256 KiB and 1 MiB of 8 layers, 4 heads of 128 in bf16
    "mla": (8, 32, 128),  # 72 KiB, 288 KiB and 1.1 MiB of 8 layers, rows of 512 + 64 in bf16
}
Pages = NDArray[np.int64]


def copies(scale: Scale) -> Table:
    """L1 to L2 and back, per io backend and layout, over page sizes and the ways pages lie."""
    table = Table("copies", "Copies between L1 and L2, ratio to memcpy (1 thread)", seeds={"pages": SEED})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for io_backend, layout, pool in OPERATORS:
            for tokens in PAGE_TOKENS[pool]:
                table.rows += _rows(io_backend, layout, pool, tokens, 2 + 2 * scale.repetitions)
    finally:
        torch.set_num_threads(before)
    ratios = [row[way] for row in table.rows for way in ("load", "backup") if row["pages"] != "scattered"]
    reached = sum(ratio >= TARGET for ratio in ratios)
    table.notes.append(f"Adjacent on one side at least: {reached} of {len(ratios)} reach {TARGET}.")
    return table


def shape(pool: str, tokens: int) -> KvGeometry:
    components, heads, dim = (2, 4, 128) if pool == "mha" else (1, 1, 576)
    parts = (dim,) if pool == "mha" else (512, 64)
    return KvGeometry(pool, components, 8, tokens, heads, dim, torch.bfloat16.itemsize, parts)


def _rows(io_backend: str, layout: str, pool: str, tokens: int, rounds: int) -> list[Row]:
    geometry = shape(pool, tokens)
    count = TOTAL_BYTES // geometry.page_bytes
    pages = count + count // 4
    device = DevicePool(geometry, pages, torch.bfloat16)
    host = HostPool(find_layout(layout), geometry, pages, torch.bfloat16)
    copier, rows = make_copier(io_backend, device, host), []
    rng = np.random.default_rng(SEED)
    for name, host_pages, device_pages in (
        ("adjacent", np.arange(count), np.arange(count)),
        ("scattered on L1", np.arange(count), rng.permutation(pages)[:count]),
        ("scattered", rng.permutation(pages)[:count], rng.permutation(pages)[:count]),
    ):
        memcpy_s, load_s, backup_s = _best(copier, host_pages, device_pages, count * geometry.page_bytes, rounds)
        row: Row = {"io backend": io_backend, "layout": layout, "attention": pool}
        row |= {"page KiB": geometry.page_bytes // 1024, "pages": name}
        row |= {"load": memcpy_s / load_s, "backup": memcpy_s / backup_s}
        rows.append(row | {"memcpy GB/s": count * geometry.page_bytes / memcpy_s / 1e9})
    return rows


def _best(copier: Copier, host: Pages, device: Pages, size: int, rounds: int) -> list[float]:
    """Best seconds of a memcpy of `size` bytes, of a load, and of a backup; the first round only warms up."""
    here, there = torch.ones(size // 8, dtype=torch.int64), torch.ones(size // 8, dtype=torch.int64)

    def load() -> None:
        plan = copier.load(host, device)
        for part in range(plan.parts):
            plan.layer(part)

    ways: list[Callable[[], object]] = [lambda: there.copy_(here), load, lambda: copier.backup(device, host).run()]
    taken = [[_seconds(way) for way in ways] for _ in range(1 + rounds)][1:]
    return [min(times) for times in zip(*taken, strict=True)]


def _seconds(way: Callable[[], object]) -> float:
    began_s = time.thread_time()
    way()
    return time.thread_time() - began_s


if __name__ == "__main__":
    main(copies)
