"""A run for people: the tables that `hicache replay` prints.

Rules of this file
- Only formatting: every figure comes from the summary, under the definition named there.
- Zero rows that say nothing are left out; what was changed behind the user's back never is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Summary = Mapping[str, Any]


def show(summary: Summary, console: Console) -> None:
    """Print everything about a run."""
    console.print(_head(summary))
    for table in _tables(summary):
        console.print(table)


def show_changes(changes: Iterable[Mapping[str, Any]], notes: Iterable[str], console: Console) -> None:
    """What resolving the flags rewrote or warned of, and what was ignored."""
    lines: list[RenderableType] = []
    for change in changes:
        style = "yellow" if change["kind"] == "rewrite" else "magenta"
        what = (
            f"{change['flag']}: {change['before']} → {change['after']}"
            if change["kind"] == "rewrite"
            else change["flag"]
        )
        lines.append(Text.assemble((f"{change['kind']}  ", style), (what, "bold"), f"  {change['reason']}"))
    lines += [Text.assemble(("note  ", "cyan"), note) for note in notes]
    if lines:
        console.print(Panel(Group(*lines), title="configuration", title_align="left", box=box.SIMPLE))


def _tables(summary: Summary) -> Iterable[RenderableType]:
    if "levels" in summary:
        yield _levels(summary)
        yield _latency(summary)
    else:
        yield _untimed_hits(summary)
    if "misses" in summary:
        yield _misses(summary)
    if "L3" in summary.get("levels", {}):
        yield _prefetch(summary)
    if "writes" in summary:
        yield _costs(summary)


def _head(summary: Summary) -> Text:
    config, workload, requests = summary["config"], summary["workload"], summary["requests"]
    words = [
        f"{workload['name']} ({workload['format']}, {workload['verdict']})",
        f"{requests['total']:,} requests",
        f"{config['model']} on {config['hardware']}",
        f"page {config['page_tokens']}",
        f"profile {config['profile']}",
    ]
    if requests.get("rejected") or requests.get("aborted"):
        words.append(f"{requests['rejected']:,} rejected, {requests.get('aborted', 0):,} aborted")
    return Text(" · ".join(words), style="bold")


def _grid(title: str, *columns: str, note: str = "") -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, caption=note or None)
    table.caption_justify = "left"
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right")
    return table


def _levels(summary: Summary) -> Table:
    tokens, total = summary["tokens"], summary["tokens"]["input"]
    note = "hits: share of prompt tokens at first admission; what was prefetched for the request itself counts as L3's"
    table = _grid("Levels", "", "capacity", "hits", "%", "evicted", "written", "read", "link in", "link out", note=note)
    ways = {"L1": ("pcie_h2d", None), "L2": ("pcie_d2h", "pcie_h2d"), "L3": ("store_write", "store_read")}
    for name, level in summary["levels"].items():
        use_in, use_out = (summary["links"].get(link or "", {}).get("use") for link in ways[name])
        table.add_row(
            name,
            f"{_count(level['capacity_tokens'])} tok",
            f"{_count(level['hit_tokens'])} tok",
            _percent(level["hit_tokens"], total),
            f"{_count(level['evicted_tokens'])} tok",
            _bytes(level["written_bytes"]),
            _bytes(level["read_bytes"]),
            _share(use_in),
            _share(use_out),
        )
    table.add_section()
    table.add_row("computed", "", f"{_count(tokens['computed'])} tok", _percent(tokens["computed"], total))
    table.add_row("prompt", "", f"{_count(total)} tok", "100.0")
    return table


def _untimed_hits(summary: Summary) -> Table:
    tokens, total = summary["tokens"], summary["tokens"]["input"]
    note = "whole pages of all prompts, in order, without time; host: matched on L2 beyond L1, loaded: of those"
    table = _grid("Hits", "", "tokens", "%", note=note)
    for name in ("device_hit", "host_hit", "loaded", "storage_hit", "computed", "input"):
        table.add_row(name.replace("_", " "), f"{tokens[name]:,}", _percent(tokens[name], total))
    return table


def _latency(summary: Summary) -> Table:
    through = summary["throughput"]
    note = (
        f"{through['requests_per_s']:.2f} requests/s, {_count(through['input_tokens_per_s'])} prompt and "
        f"{_count(through['output_tokens_per_s'])} output tokens/s; "
        f"makespan {summary['run']['makespan_s']:,.1f} s; "
        f"device busy {summary['stalls']['device_busy_share']:.1%}"
    )
    table = _grid("Latency (ms)", "", "mean", "p50", "p90", "p99", "requests", note=note)
    for name in ("ttft", "tpot", "e2e"):
        row = summary["latency"][name]
        figures = ("–" if row[q] is None else f"{row[q] * 1e3:,.1f}" for q in ("mean_s", "p50_s", "p90_s", "p99_s"))
        table.add_row(name.upper() if name != "e2e" else "end to end", *figures, f"{row['count']:,}")
    return table


def _misses(summary: Summary) -> Table:
    table = _grid("Why tokens missed", "", "tokens", "% of prompt tokens", note="adds up to the computed tokens")
    for reason, tokens in summary["misses"].items():
        if tokens:
            table.add_row(reason, f"{tokens:,}", _percent(tokens, summary["tokens"]["input"]))
    return table


def _prefetch(summary: Summary) -> Table:
    prefetch = summary["prefetch"]
    table = _grid("Prefetch from L3", "", "")
    table.add_row("issued", f"{prefetch['issued']:,}")
    for reason, count in prefetch["refused"].items():
        if count:
            table.add_row(f"refused: {reason}", f"{count:,}")
    for name in ("useful", "duplicate", "late", "failed", "wasted"):
        table.add_row(name, f"{_count(prefetch[f'{name}_tokens'])} tok")
    return table


def _costs(summary: Summary) -> Table:
    writes, stalls = summary["writes"], summary["stalls"]
    table = _grid("Costs", "", "")
    table.add_row("written to L2 per token computed", f"{writes['l2_amplification']:.2f}")
    if "L3" in summary["levels"]:
        table.add_row("written to L3 per token computed", f"{writes['l3_amplification']:.2f}")
    waits = f"{stalls['write_back_wait_s']:.2f} s in {stalls['write_back_waits']:,}"
    table.add_row("scheduler blocked by write_back", waits)
    table.add_row("device waited for loads", f"{stalls['device_waited_for_loads_s']:.2f} s")
    table.add_row("device slowed by copy kernels", f"{stalls['device_slowed_by_copies_s']:.2f} s")
    table.add_row("retractions", f"{summary['requests']['retractions']:,}")
    return table


def _count(value: float | None) -> str:
    if value is None:
        return "∞"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"


def _bytes(value: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "–"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
