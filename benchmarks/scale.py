"""How much is measured: the whole, a quick look, or so little that a test can wait for it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from .measure import ROOT, Table, text


@dataclass(frozen=True)
class Scale:
    """requests: of the speed trace. repetitions: runs of each command. peers: install what is compared with.

    oracle_requests: of the conversation trace, which has 12,031. prompts: of 8,192 tokens. curve, timed_curve: lengths
    of the stream. work: folder for traces and files of runs. most_s: wall clock that a run of the curve may take.
    """

    requests: int = 20_000
    repetitions: int = 3
    oracle_requests: int = 12_031
    prompts: int = 1_000
    curve: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    timed_curve: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    peers: bool = True
    most_s: float = 420.0
    work: Path = field(default=ROOT / "out" / "bench")


WHOLE = Scale()
QUICK = Scale(4_000, 1, 1_000, 200, (1_000, 10_000, 100_000), (1_000, 10_000))


def chosen(arguments: argparse.Namespace) -> Scale:
    scale = QUICK if arguments.quick else WHOLE
    return replace(scale, peers=not arguments.no_peers, most_s=arguments.most_s)


def options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--quick", action="store_true", help="less of everything, once: under two minutes")
    parser.add_argument("--no-peers", action="store_true", help="install nothing; compare with what is there")
    parser.add_argument(
        "--most-s", type=float, default=WHOLE.most_s, help="wall clock that a run of the curve may take"
    )
    return parser


def main(benchmark: Callable[[Scale], Table]) -> None:
    """One benchmark as a command."""
    parser = options(argparse.ArgumentParser(description=(benchmark.__doc__ or "").splitlines()[0]))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here as well")
    arguments = parser.parse_args()
    table = benchmark(chosen(arguments))
    tell(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(table), indent=2) + "\n")


def tell(table: Table) -> None:
    print(f"\n{table.title}\n\n{text(table)}\n")
    for note in table.notes:
        print(f"- {note}")
