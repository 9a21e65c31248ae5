"""`hicache trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import workloads
from hicache_ref.commandline.console import make_console
from hicache_ref.commandline.flags import key_values
from hicache_ref.commandline.options import open_workload, workload_options


@click.group()
def trace() -> None:
    """Look at workloads."""


@trace.command()
@click.argument("workload")
@workload_options
@click.option("--lru", multiple=True, type=int, metavar="TOKENS", help="Also the hits of an LRU pool of this size.")
def stats(workload: str, lru: tuple[int, ...], **options: Any) -> None:
    """What a trace holds, and what any cache could hit of it, by each definition of a hit."""
    from ..trace_tables import show_stats

    source, schedule = open_workload(workload, options)
    show_stats(source, schedule, lru, make_console())


@trace.command()
@click.argument("generator", type=click.Choice(list(workloads.GENERATORS)))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of the generator.")
@click.option("--block-tokens", type=int, default=512, show_default=True)
def generate(generator: str, out: Path, parameters: tuple[str, ...], block_tokens: int) -> None:
    """Write a generated workload as a Mooncake trace (open loop, times as if answers took none)."""
    source = workloads.open_workload(generator, key_values(parameters, "--set") or None)
    rows = workloads.write_mooncake(source.requests(workloads.OpenLoop()), out, block_tokens)
    click.echo(f"{rows:,} requests in {out}")
