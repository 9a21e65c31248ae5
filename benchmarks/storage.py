"""The file store against bare files and against upstream's way: `python -m benchmarks.storage [--folder DIR]`.

Rules of this file
- Ratios within one run. Three writers of the same pages take turns, batch by batch, so that what else the machine
  does strikes all of them; medians of their times are compared.
- Bare files: the least that leaves the same files behind (open, one write, close, rename) and fills the same memory,
  on as many threads, with nothing looked up and nothing counted.
- Upstream's way, as a small model of HiCacheFile under the generic path: page after page, each flattened into a
  tensor of its own before it is written, and read into one before it is put in its place.
- Warm: memory is touched, files are in the page cache. What a disk adds is the same for all.
- `bare vs upstream` is what there is to win: a small file is mostly its creation and its new name (on ext4 29 of 47 us
  of CPU for 64 KiB, and as many for a file without a name that is linked), which nobody who leaves it behind is spared.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from hicache_ref.config.layouts import LAYOUTS, KvGeometry
from hicache_ref.data.pools import HostPool
from hicache_ref.data.storage.client import StorageIdentity
from hicache_ref.data.storage.file import FileClient

from .measure import ROOT, Row, Table, spread, text

BATCH = 128
BARE_SHARE, UPSTREAM_TIMES = 0.9, 3.0
"""The targets: at least so much of bare files' speed, at least so many times upstream's."""
KIB = (64, 256, 1024)
LAYERS, TOKENS, HEADS = 16, 16, 4
NAMES = [f"{number:064x}" for number in range(BATCH)]
PAGES = np.arange(BATCH)


def pool(layout: str, kib: int) -> HostPool:
    """A batch of pages of `kib` KiB, keys and values, bf16, with something in them."""
    dim = kib * 1024 // (2 * LAYERS * TOKENS * HEADS * 2)
    host = HostPool(LAYOUTS[layout], KvGeometry("mha", 2, LAYERS, TOKENS, HEADS, dim, 2, (dim,)), BATCH, torch.bfloat16)
    host.memory.data.copy_(torch.arange(host.memory.size, dtype=torch.int64).remainder_(251).to(torch.uint8))
    return host


class Side(Protocol):
    """One way to keep a batch in files, and to get it back."""

    def put(self) -> None: ...
    def get(self) -> None: ...


class Ours:
    def __init__(self, host: HostPool, folder: str, threads: int) -> None:
        self.host, self.client = host, FileClient(StorageIdentity("bench"), folder, threads)

    def put(self) -> None:
        assert self.client.put(NAMES, self.host, PAGES) == BATCH

    def get(self) -> None:
        assert self.client.get(NAMES, self.host, PAGES) == BATCH


class Bare:
    def __init__(self, host: HostPool, folder: str, threads: int) -> None:
        self.host = host
        pages = [(f"{folder}/{name}_bench_0_1.bin", page) for page, name in enumerate(NAMES)]
        share = -(-BATCH // threads)
        self.shares = [pages[at : at + share] for at in range(0, BATCH, share)]
        self.threads = ThreadPoolExecutor(threads)

    def put(self) -> None:
        list(self.threads.map(self._put, self.shares))

    def get(self) -> None:
        assert all(self.threads.map(self._get, self.shares))

    def _put(self, share: list[tuple[str, int]]) -> None:
        for path, page in share:
            fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.writev(fd, self.host.page_memory(page))
            os.close(fd)
            os.rename(path + ".tmp", path)

    def _get(self, share: list[tuple[str, int]]) -> bool:
        whole = True
        for path, page in share:
            fd = os.open(path, os.O_RDONLY)
            whole &= os.readv(fd, self.host.page_memory(page)) == self.host.page_bytes
            os.close(fd)
        return whole


class Upstream:
    """Pages as tensors [C, axes of the layout without P], flattened on their way out, filled on their way in."""

    def __init__(self, host: HostPool, folder: str, threads: int) -> None:
        sizes, axes = host.geometry.sizes(BATCH), host.layout.axes
        whole = host.memory.data[: BATCH * host.page_bytes].view(torch.bfloat16)
        tensor = whole.view([host.geometry.components, *(sizes[axis] for axis in axes)])
        self.pages = tensor.unbind(1 + axes.index("P"))
        self.paths = [f"{folder}/{name}_bench_0_1.bin" for name in NAMES]

    def put(self) -> None:
        flat = [page.flatten() for page in self.pages]
        for path, page in zip(self.paths, flat, strict=True):
            if not os.path.exists(path):
                page.contiguous().view(torch.uint8).numpy().tofile(path + ".tmp")
                os.replace(path + ".tmp", path)

    def get(self) -> None:
        flat = [torch.zeros(page.shape, dtype=page.dtype).flatten() for page in self.pages]
        for path, page in zip(self.paths, flat, strict=True):
            with open(path, "rb", buffering=0) as file:
                buffer = page.view(torch.uint8).numpy()
                assert file.readinto(buffer) == buffer.nbytes  # type: ignore[arg-type]
        for page, data in zip(self.pages, flat, strict=True):
            page.copy_(data.view(page.shape))


SIDES: dict[str, Callable[[HostPool, str, int], Side]] = {"ours": Ours, "bare": Bare, "upstream": Upstream}


def measure(folder: Path, rounds: int, threads: int, sizes: Sequence[int] = KIB) -> Table:
    """Put and get of one batch, for each layout and page size, by all sides in turn."""
    table = Table("storage", f"The file store: {BATCH} pages a batch, {threads} threads")
    for layout in ("page_first", "layer_first"):
        for kib in sizes:
            seconds = _rounds(pool(layout, kib), folder, rounds, threads)
            table.rows += [_row(layout, kib, call, seconds) for call in ("put", "get")]
    table.notes.append("GB/s are medians. vs: medians (and range) of the ratios of single rounds.")
    return table


def _rounds(host: HostPool, folder: Path, rounds: int, threads: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of each round, by side and call. The first round warms up and does not count."""
    seconds: dict[tuple[str, str], list[float]] = {(side, call): [] for side in SIDES for call in ("put", "get")}
    for at in range(rounds + 1):
        for name, make in random.Random(at).sample(list(SIDES.items()), len(SIDES)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            side = make(host, str(folder), threads)
            for call, work in (("put", side.put), ("get", side.get)):
                began_s = time.perf_counter()
                work()
                if at:
                    seconds[name, call].append(time.perf_counter() - began_s)
    shutil.rmtree(folder)
    return seconds


def _row(layout: str, kib: int, call: str, seconds: dict[tuple[str, str], list[float]]) -> Row:
    gigabytes = BATCH * kib * 1024 / 1e9
    mine, bare, upstream = (np.array(seconds[side, call]) for side in SIDES)
    speeds = {f"{side} GB/s": gigabytes / float(np.median(seconds[side, call])) for side in SIDES}
    pairs = {"vs bare": bare / mine, "vs upstream": upstream / mine, "bare vs upstream": upstream / bare}
    ratios = {name: spread(values.tolist()) for name, values in pairs.items()}
    return {"layout": layout, "page KiB": kib, "call": call} | speeds | ratios


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the files go; default: a new one under out/")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=FileClient.THREADS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    (ROOT / "out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder or ROOT / "out") as folder:
        table = measure(Path(folder) / "pages", arguments.rounds, arguments.threads)
    print(f"{table.title}\n\n{text(table)}\n\n" + "\n".join(table.notes))


if __name__ == "__main__":
    main()
