"""A sweep for people: the tables at the end of `hicache sweep`.

Rules of this file
- Only formatting: figures come from the result. The last thing on the screen is the line to paste.
- 80 columns hold three goals: names and values fold where there is no room, figures never lose a digit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..report.units import BYTES, COUNT, SECONDS, Unit
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


def _grid(title: str, *names: str, left: int = 1, note: str = "") -> Table:
    """The first `left` columns hold words, the others figures."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        caption=note or None,
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
    )
    for at, name in enumerate(names):
        words = at < left
        heading = _spaced(name).replace(" ", "\n")
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return table


def _print_settings(swept: Sweep, console: Console) -> None:
    """The front, or ten of it: the best first, then by the goal that decided. Of those that read the same, one."""
    frame = swept.settings
    goal, way = swept.asked["decided_by"][0].split(":")
    choices = [axis["column"] for axis in swept.asked["vary"] if not axis["condition"]]
    metrics = swept.effects["metrics"]
    front = frame[frame.pareto | frame.best].sort_values(["best", goal], ascending=[False, way == "min"])
    shown = front[~front[metrics].apply(lambda column: column.map(partial(_figure, column.name))).duplicated()]
    slo = swept.asked["slo"]
    notes = [f"{int(frame.qualifies.sum())} of {len(frame)} settings keep {' and '.join(slo)}"] if slo else []
    notes += [f"of {', '.join(swept.asked['pareto'])}", f"● best, decided by {swept.asked['decided_by'][0]}"]
    notes += [f"{len(front) - len(shown)} equal to one of these left out"] if len(front) > len(shown) else []
    notes += [f"{len(shown) - MOST_ROWS} more in the files"] if len(shown) > MOST_ROWS else []
    table = _grid("Pareto front", "", *choices, *metrics, left=1 + len(choices), note="; ".join(notes))
    table.columns[0].min_width = 1
    for _, row in shown.head(MOST_ROWS).iterrows():
        mark = "●" if row.best else ("" if not slo or row.qualifies else "✗")
        table.add_row(mark, *(_word(row[name]) for name in choices), *(_figure(name, row[name]) for name in metrics))
    console.print(table)


def _effects(swept: Sweep) -> Table:
    metrics = swept.effects["metrics"]
    note = "means over points that differ in the knob alone, or (≈) over all points; %: share of the variance explained"
    table = _grid("What each knob does", "", *metrics, note=note)
    for knob, effect in swept.effects["knobs"].items():
        table.add_row(Text(_spaced(knob) + ("" if effect["matched"] else " ≈"), style="bold"))
        for each in effect["values"]:
            table.add_row(f"  {_word(each['value'])}", *(_figure(name, each["figures"][name]) for name in metrics))
        shares = ("" if share is None else f"{share:.0%}" for share in effect["share"].values())
        table.add_row(Text("  %", style="dim"), *(Text(share, style="dim") for share in shares))
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
    table = _grid("What each flag buys", "", *names, note=note)
    for row in swept.best["worth"]:
        table.add_row(_set(row), *(_change(name, row["change"][name]) for name in names))
    console.print(table)
    for row in swept.best["worth"]:
        if row["error"]:
            console.print(Text(f"not without {row['flag']}: {row['error']}", style="dim"))


def _set(row: dict[str, Any]) -> Text:
    """A flag at its value, and below it the default that it replaces, if that is a value."""
    if row["value"] is True:
        return Text(row["flag"])
    default = "" if row["default"] is None else f"\n  default {_word(row['default'])}"
    return Text.assemble(f"{row['flag']} {_word(row['value'])}", (default, "dim"))


def _print_answer(swept: Sweep, console: Console) -> None:
    best = swept.best
    if best["qualifies"] is False:
        console.print(Text(f"No setting keeps {' and '.join(swept.asked['slo'])}. The nearest:", style="bold red"))
    if best["beyond"] is not None:
        words = ", ".join(f"{name} {_word(value)}" for name, value in best["beyond"]["setting"].items())
        figures = ", ".join(f"{name} {_figure(name, value)}" for name, value in best["beyond"]["figures"].items())
        text = f"better still, but not offered by SGLang's command line: {words} ({figures})"
        console.print(Text(text, style="yellow"))
    for note in best["not_sglang"]:
        console.print(Text(f"not on the line: {note}", style="yellow"))
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in best["beside"].items())
    console.print(Text.assemble(("Set these flags", "bold"), f"  (for {rest})"))
    console.print(best["line"], soft_wrap=True, style="green")


def _spaced(name: str) -> str:
    """A column's name as words. That it is HiCache's goes without saying."""
    return name.removeprefix("hicache_").replace("_", " ")


def _word(value: Any) -> str:
    if value is None or value != value:
        return "not given"
    return f"{value:g}" if type(value) is float else str(value)


def _figure(name: str, value: float | None) -> str:
    return _FORMATS[METRICS[name].unit](value)


def _change(name: str, value: float | None) -> str:
    if not value:
        return "–" if value is None else "±0"
    share = METRICS[name].unit == "share"
    text = f"{100 * abs(value):.1f} pp" if share else _figure(name, abs(value))
    good = (value < 0) == METRICS[name].low
    return f"[{'green' if good else 'red'}]{'+' if value > 0 else '−'}{text}[/]"


def _plain(unit: Unit) -> Callable[[float | None], str]:
    """As on the page, with spaces that every terminal has."""
    return lambda value: unit(value).replace("\u202f", " ")


_FORMATS: dict[str, Callable[[float | None], str]] = {
    "s": _plain(SECONDS),
    "share": lambda value: "–" if value is None or value != value else f"{value:.1%}",
    "bytes": _plain(BYTES),
    "tokens": _plain(COUNT),
    "/s": _plain(COUNT),
    "": _plain(COUNT),
}
