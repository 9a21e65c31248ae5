"""Numbers with units, written the same way in the page, in tables and in figures for papers.

Rules of this file
- A unit is named once; `assets/report.js` has a function of the same name for what the browser formats.
- Nothing is rounded away that a reader needs: three significant digits, thin spaces between number and unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_GAP = "\u202f"


@dataclass(frozen=True)
class Unit:
    """How a kind of number is written. `name` is that of the browser's function."""

    name: str
    format: Callable[[float], str]

    def __call__(self, value: float | None) -> str:
        return "–" if value is None or math.isnan(value) else self.format(value)


def _digits(value: float) -> str:
    """Three significant digits, never an exponent."""
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    places = max(2 - math.floor(math.log10(size)), 0)
    text = f"{value:.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for size, unit in steps:
        if abs(value) >= size:
            return f"{_digits(value / size)}{_GAP}{unit}".rstrip()
    size, unit = steps[-1]
    return f"{_digits(value / size)}{_GAP}{unit}".rstrip()


def _count(value: float) -> str:
    if abs(value) < 10_000:
        return f"{value:,.0f}" if float(value).is_integer() else _digits(value)
    return _scaled(value, ((1e9, "G"), (1e6, "M"), (1e3, "k")))


_BYTES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SPANS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), *_SECONDS)


def _time(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    return f"0{_GAP}s" if value == 0 else _scaled(value, steps)


COUNT = Unit("count", _count)
TOKENS = Unit("tokens", lambda value: f"{_count(value)}{_GAP}tok")
BYTES = Unit("bytes", lambda value: _scaled(value, _BYTES))
RATE = Unit("rate", lambda value: f"{_scaled(value, _BYTES)}/s")
SECONDS = Unit("seconds", lambda value: _time(value, _SECONDS))
SPAN = Unit("span", lambda value: _time(value, _SPANS))
"""Seconds in the largest unit that fits: for long times that are read once, not compared."""
SHARE = Unit("share", lambda value: f"{_digits(100 * value)}{_GAP}%")
PLAIN = Unit("plain", lambda value: _digits(value))
