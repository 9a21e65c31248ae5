"""Colours, and what tells things apart for who does not see them.

Rules of this file
- One ink a meaning: L1 is the same blue on every figure. Each has a dash, a marker and a hatch of its own as well.
- Blue, vermilion, green and purple follow Okabe and Ito (2008), darkened until they stand out 3:1 from white; the dark
  theme has lighter ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_LINES = {"symbol": "rect", "dashArrayX": [1, 0], "color": "var(--decal)"}
_DOTS = {"dashArrayX": [[6, 6], [0, 6, 6, 0]], "dashArrayY": [5, 0], "color": "var(--decal)"}
DECALS: dict[str, dict[str, Any]] = {
    "///": {**_LINES, "dashArrayY": [2, 6], "rotation": 0.785},
    "\\\\\\": {**_LINES, "dashArrayY": [2, 6], "rotation": -0.785},
    "xx": {**_LINES, "dashArrayY": [1, 8], "rotation": -0.785},
    "---": {**_LINES, "dashArrayY": [2, 6], "rotation": 0},
    "...": {**_DOTS, "symbol": "circle", "symbolSize": 0.7},
    "oo": {**_DOTS, "symbol": "rect", "symbolSize": 0.7},
    "++": {**_DOTS, "symbol": "triangle", "symbolSize": 0.8},
}
"""ECharts' patterns by matplotlib's hatches, roughly the same to look at."""


@dataclass(frozen=True)
class Ink:
    """`name` is the CSS variable `--ink-NAME`. dash: lengths on and off, empty: a solid line. hatch: matplotlib's."""

    name: str
    light: str
    dark: str
    dash: tuple[int, ...]
    marker: str
    hatch: str

    @property
    def css(self) -> str:
        return f"var(--ink-{self.name})"

    @property
    def decal(self) -> dict[str, Any]:
        """ECharts' style of an area: its pattern, if it has one."""
        return {"decal": DECALS[self.hatch]} if self.hatch else {}

    @property
    def line_style(self) -> tuple[int, tuple[int, ...] | None]:
        """For matplotlib."""
        return 0, self.dash or None


L1 = Ink("l1", "#0072b2", "#56b4e9", (), "o", "")
L2 = Ink("l2", "#00805d", "#2dc79b", (7, 3), "s", "///")
L3 = Ink("l3", "#c65400", "#f0a348", (2, 2), "^", "...")
COMPUTED = Ink("computed", "#737373", "#a3a9b0", (9, 3, 2, 3), "D", "xx")
TOTAL = Ink("total", "#1f2328", "#f0f3f6", (), "o", "")
BEST = Ink("best", "#c65400", "#f0a348", (), "^", "")
BOTH = Ink("both", "#7a4fa3", "#c79bea", (), "P", "\\\\\\")

SERIES = (
    Ink("a", "#0072b2", "#56b4e9", (), "o", ""),
    Ink("b", "#c65400", "#f0a348", (7, 3), "s", "///"),
    Ink("c", "#00805d", "#2dc79b", (2, 2), "^", "..."),
    Ink("d", "#a4488c", "#e08fc4", (9, 3, 2, 3), "D", "xx"),
    Ink("e", "#7a6a00", "#d8c84a", (12, 4), "v", "---"),
    Ink("f", "#5b6b7a", "#a9b8c6", (4, 2, 1, 2, 1, 2), "P", "++"),
    Ink("g", "#4b3fa8", "#a79cf0", (1, 3), "X", "oo"),
)
"""For things without a meaning of their own: runs, links."""

ALL = (L1, L2, L3, COMPUTED, TOTAL, BOTH, BEST, *SERIES)


def series_ink(at: int) -> Ink:
    return SERIES[at % len(SERIES)]
