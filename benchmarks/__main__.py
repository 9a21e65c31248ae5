"""Run all benchmarks and write `reports/speed/`: `python -m benchmarks [--quick]`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from . import report
from .flat import flat
from .hotspots import hotspots
from .machine import load, machine
from .match_insert import match_insert
from .measure import ROOT, Table
from .scale import WHOLE, Scale, chosen, options, tell
from .targets import verdicts
from .timed import timed
from .untimed import untimed

BENCHMARKS = (timed, untimed, match_insert, hotspots, flat)


def measure(scale: Scale) -> dict[str, Table]:
    tables = {}
    for benchmark in BENCHMARKS:
        began_s = time.perf_counter()
        table = benchmark(scale)
        tell(table)
        print(f"({time.perf_counter() - began_s:.0f} s)")
        tables[table.name] = table
    return tables


def main() -> None:
    parser = options(argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__))
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "speed", metavar="FOLDER")
    arguments = parser.parse_args()
    about, before = machine(), load()
    tables = measure(chosen(arguments))
    tell(verdicts(tables))
    after = machine()["revision"]
    if after != about["revision"]:
        about["revision"] += f", changed to {after} during the run"
    about["load averages"] = f"{before} before; {load()} after"
    command = "python -m benchmarks" + " --quick" * arguments.quick + " --no-peers" * arguments.no_peers
    command += f" --most-s {arguments.most_s:g}" if arguments.most_s != WHOLE.most_s else ""
    report.write(arguments.out, tables, about, command)
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
