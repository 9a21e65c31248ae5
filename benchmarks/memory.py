"""Real memory: copies, files and fences in one run, into `reports/memory/`: `python -m benchmarks.memory [--quick]`.

Rules of this file
- Every figure is a ratio to what the machine can do, taken in the same run, or a time of its own; each benchmark says
  how. Nothing in the report is written by hand.

What falls short of memcpy: loads from page_first and page_head, where a row of a layer is followed by the other layers'
(1 KiB or 256 bytes every 8 or 2 KiB), so that a load reads all of the host's memory once a layer in small pieces. Where
memcpy moves 4.5 GB/s they keep up with it (but for page_head at 64 KiB), where it moves 6.6 GB/s they reach 0.6 to 0.8,
at any size; backups, which write these pieces with all layers at hand, reach 0.8 to 1.2. Of page_head at 64 KiB,
scattered on L1, to bring the rows of 48 MiB into the cache takes 6.1 to 8.5 ms, to write them from there to pages
anywhere 7.5 to 7.9 ms; memcpy takes 7.1 ms, ours 18.4. Tried in vain: a buffer of 64 pages in between (a tenth better
here, a quarter worse where rows are longer), two layers at a time over pages in the cache (a twentieth to a tenth), a
call a page or a column of rows, torch's index_copy_.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from hicache_ref.data.storage.file import FileClient

from . import ratios, storage
from .copies import TARGET, copies
from .fences import fences
from .measure import ROOT, Table
from .ratios import Report, Tables, Target
from .scale import QUICK, WHOLE, Scale, options, tell

HEAD = """# Real memory

Measured by `{command}`, as `make bench` does; the programs are in `benchmarks/`.
"""
QUICK_ROUNDS, ROUNDS = 3, 15


def _copies(way: str) -> Callable[[Tables], list[float]]:
    def found(tables: Tables) -> list[float]:
        rows = [row for row in tables["copies"].rows if row["page KiB"] >= 64 and row["pages"] != "scattered"]
        return [row[way] for row in rows]

    return found


def _files(column: str, call: str) -> Callable[[Tables], list[float]]:
    def found(tables: Tables) -> list[float]:
        return [row[column]["median"] for row in tables["storage"].rows if row["call"] == call]

    return found


TARGETS = (
    Target("L2 to L1 over memcpy, pages adjacent on one side at least", TARGET, _copies("load")),
    Target("L1 to L2 over memcpy, pages adjacent on one side at least", TARGET, _copies("backup")),
    Target("files written, over bare files", storage.BARE_SHARE, _files("vs bare", "put")),
    Target("files read, over bare files", storage.BARE_SHARE, _files("vs bare", "get")),
    Target("files written, times HiCacheFile's way", storage.UPSTREAM_TIMES, _files("vs upstream", "put")),
    Target("files read, times HiCacheFile's way", storage.UPSTREAM_TIMES, _files("vs upstream", "get")),
)


def verdicts(tables: Tables) -> Table:
    return ratios.verdicts(TARGETS, tables)


def measure(scale: Scale, rounds: int) -> dict[str, Table]:
    """All tables, by name."""
    tables = {"copies": copies(scale)}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scale.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scale.work) as folder:
            tables["storage"] = storage.measure(Path(folder) / "pages", rounds, FileClient.THREADS)
    finally:
        torch.set_num_threads(before)
    tables["fences"] = fences(scale)
    for table in tables.values():
        tell(table)
    return tables


def main() -> None:
    parser = options(argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__))
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "memory", metavar="FOLDER")
    arguments = parser.parse_args()
    scale, rounds = (QUICK, QUICK_ROUNDS) if arguments.quick else (WHOLE, ROUNDS)
    command = "python -m benchmarks.memory" + " --quick" * arguments.quick
    Report(HEAD, command, ["torch"]).run(arguments.out, lambda: measure(scale, rounds), verdicts)


if __name__ == "__main__":
    main()
