"""Everything that needs a GPU, in ten minutes, into `reports/gpu/`: `make gpu`. Without one it does nothing.

Rules of this file
- Four parts: tests marked `gpu`, the copy matrix against a pinned cudaMemcpyAsync of the same bytes, how much of a load
  hides behind the batch that reads it, and a validation of the simulator. A part that fails is reported, and the others
  go on.
- Parts have times of their own; what is left is theirs to use, never more.
- Measuring takes the device as an argument: on a CPU the same code runs, for its tests.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hicache_ref.calibrate.rig import Batch, Rig, batch_of
from hicache_ref.calibrate.samples import rounds, seconds, spread
from hicache_ref.config.layouts import OPERATORS, find_layout
from hicache_ref.config.server_args import ServerArgs
from hicache_ref.data.copy import Copier, make_copier
from hicache_ref.data.pools import DevicePool, HostPool
from hicache_ref.run.setup import RealConfig, make_machine, plan

from .copies import Pages, shape
from .machine import load, machine
from .measure import ROOT, Row, Table, text
from .report import bullets, lines
from .scale import tell

LIMIT_S = 570.0
TESTS_S, VALIDATE_S = 120.0, 300.0
MATRIX_S, OVERLAP_S = 60.0, 30.0
TOTAL_BYTES = 256 << 20
PAGE_TOKENS = {"mha": 64, "mla": 128}
TARGET = 0.9
FAST = ("page_first", "page_first_direct")
"""Layouts the target is for."""
MODEL, SCALE, PAGE, L1_TOKENS, RATIO, RESERVE_GIB = "llama-3.1-8b", 0.25, 64, 40_000, 1.5, 4
FLAGS = [
    *("--model-path", MODEL, "--model-scale", str(SCALE), "--device", "cuda", "--host-reserve", str(RESERVE_GIB)),
    *("--page-size", str(PAGE), "--max-total-tokens", str(L1_TOKENS), "--hicache-ratio", str(RATIO)),
    *("--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", "wait_complete"),
    *("--hicache-mem-layout", "page_first"),
]
WORKLOAD = ("claude-code", "--schedule", "closed", "--limit", "40")


def matrix(device: torch.device, budget_s: float, total_bytes: int = TOTAL_BYTES) -> Table:
    """Every operator over a copy of the same bytes by one pinned memcpy, both ways."""
    table = Table("copies", "L1 and L2: ratio to one memcpy of the same bytes from pinned memory")
    for io_backend, layout, pool in OPERATORS:
        geometry = shape(pool, PAGE_TOKENS[pool])
        count = max(2, total_bytes // geometry.page_bytes)
        here = DevicePool(geometry, count, torch.bfloat16, device)
        there = HostPool(find_layout(layout), geometry, count, torch.bfloat16)
        copier = make_copier(io_backend, here, there)
        host, dev = np.arange(count), np.random.default_rng(1).permutation(count)
        size = count * geometry.page_bytes
        flat_host, flat_dev = there.memory.data[:size], here.whole.view(torch.uint8).flatten()[:size]
        ways: dict[str, Callable[[], object]] = {
            "memcpy in": partial(flat_dev.copy_, flat_host, non_blocking=True),
            "memcpy out": partial(flat_host.copy_, flat_dev, non_blocking=True),
            "load": partial(_load, copier, host, dev),
            "backup": partial(_backup, copier, host, dev),
        }
        taken = rounds({name: partial(_timed, way, device) for name, way in ways.items()}, budget_s / len(OPERATORS))
        times = {name: spread(each).median for name, each in taken.items()}
        row: Row = {"io backend": io_backend, "layout": layout, "attention": pool}
        row |= {"page KiB": geometry.page_bytes // 1024, "memcpy in GB/s": size / times["memcpy in"] / 1e9}
        row |= {"load": times["memcpy in"] / times["load"], "backup": times["memcpy out"] / times["backup"]}
        table.rows.append(row)
    wanted = [row[way] for row in table.rows if row["layout"] in FAST for way in ("load", "backup")]
    reached = sum(ratio >= TARGET for ratio in wanted)
    table.notes.append(f"{' and '.join(FAST)}: {reached} of {len(wanted)} reach {TARGET}.")
    return table


def _load(copier: Copier, host: Pages, device: Pages) -> None:
    made = copier.load(host, device)
    for part in range(made.parts):
        made.layer(part)


def _backup(copier: Copier, host: Pages, device: Pages) -> None:
    copier.backup(device, host).run()


def _timed(work: Callable[[], object], device: torch.device) -> float:
    def whole() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return seconds(whole)


def overlap(config: RealConfig, budget_s: float, new_tokens: int = 2048, before_tokens: int = 8192) -> Table:
    """A prefill on top of pages that are being loaded: alone, the load alone, and both."""
    made = plan(config)
    table = Table("overlap", "Loads behind compute")
    with make_machine(made, batch_of) as real:
        rig, page = Rig(real.plane), made.page_tokens
        count = min(before_tokens // page, made.resolved.l1_pages // 2, made.resolved.l2_pages)
        pages = np.arange(count)

        def batch(loads: tuple[int, ...] = ()) -> Batch:
            return Batch([(count * page, new_tokens)], page, made.resolved.l1_pages, loads=loads)

        def both() -> float:
            brought = rig.load(pages, pages)
            return max(rig.seconds(brought, rig.compute(batch((brought.id,)))))

        ways: dict[str, Callable[[], float]] = {
            "compute": lambda: rig.seconds(rig.compute(batch()))[0],
            "load": lambda: rig.seconds(rig.load(pages, pages))[0],
            "both": both,
        }
        times = {name: spread(taken).median for name, taken in rounds(ways, budget_s).items()}
    hidden = (times["compute"] + times["load"] - times["both"]) / min(times["compute"], times["load"])
    milliseconds = {f"{name} ms": time_s * 1e3 for name, time_s in times.items()}
    table.rows = [{"cached tokens": count * page, "new tokens": new_tokens, **milliseconds, "hidden": hidden}]
    table.notes.append("hidden: of the shorter of the two, the share that cost nothing beside the longer; 1 is all.")
    return table


# The parts that are commands


def tests(limit_s: float) -> dict[str, Any]:
    """Those marked `gpu`, and those whose kernels are compiled where there is a device."""
    return _command([sys.executable, "-m", "pytest", "-q", "tests/gpu", "tests/data/test_triton_copies.py"], limit_s)


def validation(folder: Path, limit_s: float) -> dict[str, Any]:
    """A calibration, and real runs beside the simulated one."""
    hicache = [sys.executable, "-m", "hicache_sim.cli"]
    calibration = folder / "calibration.json"
    end_s = time.monotonic() + limit_s
    measured = _command([*hicache, "calibrate", "--out", str(calibration), "--seconds", "60", *FLAGS], limit_s)
    if measured["exit"]:
        return measured
    out = folder / "validation"
    line = [*hicache, "validate", *WORKLOAD, *FLAGS, "--hardware", str(calibration), "--out", str(out)]
    found = _command(line, max(1.0, end_s - time.monotonic()))
    for each in out.glob("real-*"):
        shutil.rmtree(each)
    return found


def _command(argv: list[str], limit_s: float) -> dict[str, Any]:
    began_s = time.monotonic()
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
        status, words = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        status, words = 124, f"ended after {limit_s:.0f} s"
    line = " ".join(["python", *argv[1:]])
    return {"command": line, "exit": status, "seconds": time.monotonic() - began_s, "output": words[-6000:]}


def about() -> dict[str, str]:
    facts = machine()
    del facts["compared with"], facts["builds"]
    driver = _command(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], 20)
    device = torch.cuda.get_device_properties(0)
    return facts | {
        "GPU": f"{device.name}, {device.total_memory / 2**30:.0f} GiB, {device.multi_processor_count} processors",
        "driver": driver["output"].strip(),
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "load averages": load(),
    }


def write(folder: Path, facts: Mapping[str, str], tables: list[Table], parts: Mapping[str, Mapping[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    results = {"about": dict(facts), "commands": dict(parts), **{table.name: asdict(table) for table in tables}}
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    words = ["# On a GPU\n\nMeasured by `make gpu`; the program is `benchmarks/gpu.py`.", bullets(facts)]
    for table in tables:
        words += [f"## {table.title}", text(table), lines(table.notes)]
    for name, part in parts.items():
        head = f"`{part['command']}`: exit code {part['exit']}, {part['seconds']:.0f} s"
        words += [f"## {name}", head, f"```\n{part['output'].strip()}\n```"]
    (folder / "report.md").write_text("\n\n".join(words) + "\n")


def gpu_config() -> RealConfig:
    """Of the overlap: pages in the layout and by the operator that leave the processors to compute."""
    args = ServerArgs(
        model_path=MODEL,
        page_size=PAGE,
        max_total_tokens=L1_TOKENS,
        hicache_ratio=RATIO,
        hicache_mem_layout="page_first_direct",
        hicache_io_backend="direct",
    )
    return RealConfig(args, device="cuda", model_scale=SCALE, host_reserve_bytes=RESERVE_GIB << 30)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "gpu", metavar="FOLDER")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here: nothing to do")
        return
    end_s = time.monotonic() + LIMIT_S
    facts, tables = about(), []
    found: dict[str, dict[str, Any]] = {"Tests": tests(TESTS_S)}
    for name, make in {
        "copies": partial(matrix, torch.device("cuda"), MATRIX_S),
        "overlap": partial(overlap, gpu_config(), OVERLAP_S),
    }.items():
        try:
            tables.append(make())
            tell(tables[-1])
        except Exception as error:
            found[name] = {"command": name, "exit": 1, "seconds": 0.0, "output": f"{type(error).__name__}: {error}"}
        write(arguments.out, facts, tables, found)
    left_s = min(VALIDATE_S, end_s - time.monotonic())
    found["Real and simulated"] = validation(arguments.out, left_s)
    write(arguments.out, facts, tables, found)
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
