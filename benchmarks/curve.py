"""Hit rates at many sizes: our one pass, beside kvcache-simulator and libcachesim on the same 20,000 requests.

Rules of this file
- Every prompt is rounded up to whole blocks first, so that a block counts the same for all three.
- Where definitions are equal hits must be, to the block, at every size, or there is no row: flat LRU (libcachesim);
  leaf-first LRU and offline-best with prompts that may pass the cache by, over the last half (kvcache-simulator).
- Whole processes are compared: each reads the trace and answers for all sizes. kvcache-simulator's compiler ran before.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import peers
from .inputs import speed_trace
from .measure import ROOT, Row, Table, Usage, run, spread
from .ratios import Report
from .scale import Scale, chosen, options, tell

BLOCK = 512
SIZES = [16 << step for step in range(12)]
BUDGETS_GIB = [size // 16 for size in SIZES]
"""Of Llama 3.1 8B in 16 bits, a block of 512 tokens is 64 MiB."""
KNOWN = 16_384, 289_976
"""Blocks, and what LRU of that many hits on the whole trace (three programs agree)."""
OURS, FLAT, TRIE = "hicache", "libcachesim 0.3.5", "kvcache-simulator 0.1.3"
SIDES = ROOT / "benchmarks" / "sides"


def curve(scale: Scale) -> Table:
    """LRU and offline-best at twelve sizes."""
    table = Table("curve", "Hits at 12 sizes of one cache, from 16 to 32,768 blocks")
    trace = _whole_blocks(speed_trace(scale.work, scale.requests, table))
    sizes = ",".join(map(str, SIZES))
    commands = {OURS: [sys.executable, str(SIDES / "curves.py"), str(trace), sizes]}
    try:
        python = peers.caches(scale.peers).python
        commands[FLAT] = [python, str(SIDES / "caches.py"), str(trace), sizes]
        budgets = ",".join(map(str, BUDGETS_GIB))
        words = ["--trace", str(trace), "--block-size", str(BLOCK), "--model", "llama-3.1-8b", "--format", "json"]
        commands[TRIE] = [str(Path(python).with_name("kvcache-simulator")), "run", *words, "--budgets-gib", budgets]
        run(commands[TRIE])
    except (peers.Missing, RuntimeError) as why:
        table.notes.append(f"No row for a peer: {why}.")
        commands.pop(TRIE, None)
    usages: dict[str, list[Usage]] = {who: [] for who in commands}
    for _ in range(scale.repetitions):
        for who, argv in commands.items():
            table.ran(argv)
            usages[who].append(run(argv))
    _agree(usages, scale, table)
    table.rows = [_row(who, found) for who, found in usages.items()]
    return table


def _whole_blocks(trace: Path) -> Path:
    whole = trace.with_name(f"{trace.stem}-blocks.jsonl")
    with open(trace) as rows, open(whole, "w") as out:
        for line in rows:
            row = json.loads(line)
            row["input_length"] = BLOCK * len(row["hash_ids"])
            out.write(json.dumps(row) + "\n")
    return whole


def _agree(usages: dict[str, list[Usage]], scale: Scale, table: Table) -> None:
    """RuntimeError: hits differ where definitions do not."""
    ours = usages[OURS][0].json["hits"]
    if scale.requests == 20_000:
        _require(ours["tree"][str(KNOWN[0])] == KNOWN[1], f"{ours['tree'][str(KNOWN[0])]} hits at {KNOWN[0]} blocks")
    if FLAT in usages:
        _require(ours["flat"] == usages[FLAT][0].json["hits"], f"{FLAT} hits otherwise")
        table.notes.append("Flat LRU hits as often as libcachesim's, at every size, to the block.")
    if TRIE in usages:
        points = usages[TRIE][0].json["points"]
        for point in points:
            blocks = str(point["cacheBlocks"])
            for name, kind in (("lru", "last half"), ("optimal", "best of the last half")):
                theirs = point["results"][name]["hitTokens"] // BLOCK
                _require(ours[kind][blocks] == theirs, f"{TRIE}, {name}, {blocks} blocks: {theirs} hits")
        table.notes.append(
            f"Leaf-first LRU and offline-best hit as often as kvcache-simulator's, at {len(points)} sizes."
        )


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise RuntimeError(f"curves do not agree: {words}")


ANSWERS = {
    OURS: "LRU leaf-first, LRU flat, LRU of the last half: all sizes; offline-best: 12",
    FLAT: "LRU flat: 12 sizes",
    TRIE: "FIFO, LRU, offline-best of the last half: 12 sizes",
}


def _row(who: str, usages: list[Usage]) -> Row:
    return {
        "who": who,
        "answers": ANSWERS[who],
        "CPU s": spread([usage.cpu_s for usage in usages]),
        "wall s": spread([usage.wall_s for usage in usages]),
        "peak MiB": max(usage.peak_mib for usage in usages),
    }


HEAD = """# Hit rates at many sizes

One pass of ours, beside programs that answer the same question. Measured by `{command}`, as `make bench` does; the
programs are in `benchmarks/`.
"""


def main() -> None:
    parser = options(argparse.ArgumentParser(prog="python -m benchmarks.curve"))
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write report.md and results.json there")
    arguments = parser.parse_args()
    command = "python -m benchmarks.curve" + " --quick" * arguments.quick + " --no-peers" * arguments.no_peers

    def measure() -> dict[str, Table]:
        table = curve(chosen(arguments))
        tell(table)
        return {table.name: table}

    Report(HEAD, command).run(arguments.out, measure, lambda tables: Table("targets", "Targets"))


if __name__ == "__main__":
    main()
