"""A sweep for people: the tables at the end of `hicache sweep`.

Rules of this file
- Only formatting: figures come from the result. The last thing on the screen is the line to paste.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .api import Sweep
from .metrics import METRICS

MOST_ROWS = 10
MOST_ERRORS = 5
_FIRST = ("hit_rate", "ttft_mean", "ttft_p99")


def show(swept: Sweep, console: Console) -> None:
    """Print everything about a sweep."""
    console.print(_head(swept))
    settings = swept.settings
    if len(settings):
        _print_settings(swept, console)
        console.print(_effects(swept))
    errors = swept.points[swept.points.error.notna() & (swept.points.part == "sweep")]
    if len(errors):
        console.print(_failures(errors))
    if swept.best["setting"] is not None:
        if swept.best["worth"]:
            _print_worth(swept, console)
        _print_answer(swept, console)


def _head(swept: Sweep) -> Text:
    counts, ran = swept.asked["counts"], swept.asked["ran"]
    words = [
        f"{counts['settings']:,} settings",
        f"{counts['points']:,} points",
        f"{counts['reused']:,} reused",
        f"{ran['wall_s']:,.1f} s with {ran['workers']} at once",
    ]
    if counts["failed"]:
        words.insert(3, f"{counts['failed']:,} failed")
    return Text(" · ".join(words), style="bold")


def _grid(title: str, *columns: str, left: int = 1, note: str = "") -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, caption=note or None)
    table.caption_justify = "left"
    for at, column in enumerate(columns):
        table.add_column(column.replace("_", "\n"), justify="left" if at < left else "right", no_wrap=at > 0)
    return table


def _print_settings(swept: Sweep, console: Console) -> None:
    """The front, or the best ten of it: the best first, then by the goal that decided."""
    frame = swept.settings
    goal, way = swept.asked["decided_by"][0].split(":")
    front = frame[frame.pareto | frame.best]
    shown = front.sort_values(["best", goal], ascending=[False, way == "min"])
    choices = [axis["column"] for axis in swept.asked["vary"] if not axis["condition"]]
    metrics = swept.effects["metrics"]
    more = f"; {len(shown) - MOST_ROWS} more in the files" if len(shown) > MOST_ROWS else ""
    slo = swept.asked["slo"]
    kept = f"{int(frame.qualifies.sum())} of {len(frame)} settings keep {' and '.join(slo)}; " if slo else ""
    note = f"{kept}of {', '.join(swept.asked['pareto'])}; ● best, decided by {swept.asked['decided_by'][0]}{more}"
    table = _grid("Pareto front", "", *choices, *metrics, left=1 + len(choices), note=note)
    for _, row in shown.head(MOST_ROWS).iterrows():
        mark = "●" if row.best else ("" if not slo or row.qualifies else "✗")
        table.add_row(mark, *(_word(row[name]) for name in choices), *(_figure(name, row[name]) for name in metrics))
    console.print(table)


def _effects(swept: Sweep) -> Table:
    metrics = swept.effects["metrics"]
    note = "means over points that differ in the knob alone, or (≈) over all points; %: share of the variance explained"
    table = _grid("What each knob does", "", "", *metrics, left=2, note=note)
    for knob, effect in swept.effects["knobs"].items():
        title = knob.replace("_", " ") + ("" if effect["matched"] else " ≈")
        for at, each in enumerate(effect["values"]):
            figures = (_figure(name, each["figures"][name]) for name in metrics)
            table.add_row(title if at == 0 else "", _word(each["value"]), *figures)
        shares = ("" if share is None else f"{share:.0%}" for share in effect["share"].values())
        table.add_row("", Text("%", style="dim"), *(Text(share, style="dim") for share in shares))
        table.add_section()
    return table


def _failures(errors: Any) -> Table:
    table = _grid("Failed points", "", "points", note="recorded; the rest went on")
    counts = errors.error.value_counts()
    for error, count in counts.head(MOST_ERRORS).items():
        table.add_row(str(error), f"{count:,}")
    if len(counts) > MOST_ERRORS:
        table.add_row(f"{len(counts) - MOST_ERRORS} other reasons", f"{counts.iloc[MOST_ERRORS:].sum():,}")
    return table


def _print_worth(swept: Sweep, console: Console) -> None:
    names = sorted(swept.effects["metrics"], key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    note = "the best setting less the same without this flag alone (L3 and HiCache with all that hangs on them)"
    table = _grid("What each flag buys", "", "default", *names, left=2, note=note)
    for row in swept.best["worth"]:
        flag = row["flag"] if row["value"] is True else f"{row['flag']} {_word(row['value'])}"
        default = "–" if row["default"] is None else _word(row["default"])
        table.add_row(flag, default, *(_change(name, row["change"][name]) for name in names))
    console.print(table)
    for row in swept.best["worth"]:
        if row["error"]:
            console.print(Text(f"not without {row['flag']}: {row['error']}", style="dim"))


def _print_answer(swept: Sweep, console: Console) -> None:
    best = swept.best
    if best["qualifies"] is False:
        console.print(Text(f"No setting keeps {' and '.join(swept.asked['slo'])}. The nearest:", style="bold red"))
    if best["beyond"] is not None:
        words = ", ".join(f"{name} {_word(value)}" for name, value in best["beyond"]["setting"].items())
        figures = ", ".join(f"{name} {_figure(name, value)}" for name, value in best["beyond"]["figures"].items())
        console.print(Text(f"better still, but no SGLang has it: {words} ({figures})", style="yellow"))
    for note in best["not_sglang"]:
        console.print(Text(f"not on the line: {note}", style="yellow"))
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in best["beside"].items())
    console.print(Text.assemble(("Set these flags", "bold"), f"  (for {rest})"))
    console.print(best["line"], soft_wrap=True, style="green")


def _word(value: Any) -> str:
    if value is None or value != value:
        return "not given"
    return f"{value:g}" if type(value) is float else str(value)


def _figure(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return _FORMATS[METRICS[name].unit](value)


def _change(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    text = f"{100 * value:+.1f} pp" if METRICS[name].unit == "share" else _figure(name, abs(value))
    sign = "" if METRICS[name].unit == "share" else ("+" if value >= 0 else "−")
    good = (value < 0) == METRICS[name].low
    return f"[{'green' if good else 'red'}]{sign}{text}[/]" if value else f"{sign}{text}"


def _scaled(units: Sequence[tuple[float, str]]) -> Callable[[float], str]:
    def write(value: float) -> str:
        for size, unit in units:
            if abs(value) >= size:
                return f"{value / size:,.4g} {unit}".strip()
        return f"{value:.3g}"

    return write


_BYTES = _scaled([(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")])
_COUNT = _scaled([(1e9, "G"), (1e6, "M"), (1e3, "k")])

_FORMATS: dict[str, Callable[[float], str]] = {
    "s": lambda value: f"{value:,.2f} s" if abs(value) >= 1 else f"{1e3 * value:,.1f} ms",
    "share": lambda value: f"{value:.1%}",
    "bytes": _BYTES,
    "tokens": _COUNT,
    "/s": lambda value: f"{value:,.3g} /s",
    "": lambda value: f"{value:,.0f}",
}
