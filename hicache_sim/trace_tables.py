"""Tables about workloads, machines and stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

import workloads

from .hardware import HardwareProfile, StoreProfile


def show_stats(
    source: workloads.Workload, schedule: workloads.Schedule | None, lru: Sequence[int], console: Console
) -> None:
    """Counts, hit ratios by definition, warnings."""
    stats = workloads.trace_stats(source.requests(schedule), source.block_tokens)
    console.print(f"{source.name}: {source.format}, blocks of {source.block_tokens} tokens ({source.verdict}:", end=" ")
    console.print(f"{workloads.MEANING[source.verdict]})")
    table = _table("", "")
    table.add_row("requests", f"{stats.requests:,}")
    if stats.sessions:
        table.add_row("sessions", f"{stats.sessions:,}")
    table.add_row("span", f"{stats.span_s:,.1f} s, {stats.instants:,} instants, up to {stats.largest_tie} on one")
    table.add_row(
        "input tokens",
        f"{stats.input_tokens:,}, mean {stats.mean_input_tokens:,.0f}, longest {stats.longest_input_tokens:,}",
    )
    table.add_row("output tokens", f"{stats.output_tokens:,}, mean {stats.mean_output_tokens:,.0f}")
    table.add_row("blocks", f"{stats.blocks:,}, {stats.distinct_blocks:,} distinct, {stats.once_blocks:,} used once")
    table.add_row("reuse ceiling", f"{stats.reuse_ceiling:.4f} of blocks")
    console.print(table)
    table = _table("hit ratio with an infinite cache", "")
    for definition, ratio in stats.hit_ratios.items():
        table.add_row(definition, f"{ratio:.4f}")
    console.print(table)
    if lru:
        table = _table("LRU pool, tokens", "blocks", "tokens")
        for size, hits in zip(
            lru, workloads.lru_hits(source.requests(schedule), lru, source.block_tokens), strict=True
        ):
            table.add_row(f"{size:,}", f"{hits.hit_ratio_blocks:.4f}", f"{hits.hit_ratio_tokens:.4f}")
        console.print(table)
    if stats.forked_blocks:
        console.print(
            f"[yellow]{stats.forked_blocks:,} ids follow two different ids: they hash single blocks; use --chain"
        )


def show_names(names: Mapping[str, Sequence[str]], console: Console) -> None:
    for what, each in names.items():
        console.print(f"[bold]{what}[/]  {'  '.join(each)}", soft_wrap=True)


def show_numbers(profiles: Iterable[HardwareProfile | StoreProfile], console: Console) -> None:
    """Every number of the profiles, with its source; ~ marks assumptions."""
    for profile in profiles:
        table = _table(profile.name, "value", "source")
        for row in profile.table():
            value = row.value if isinstance(row.value, str) else f"{row.value:g}"
            table.add_row(row.name, value, ("~ " if row.assumption else "") + row.source)
        console.print(profile.description, style="bold")
        console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns))
    for column in columns:
        table.add_column(column)
    return table
