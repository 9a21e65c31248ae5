"""What every figure is: title, definition, table, ECharts option, matplotlib drawing.

Rules of this file
- An option is plain JSON. Colours are `var(--…)` and formatters `@unit`; the page's script puts in what they stand for,
  so that one option serves light, dark and print.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Self

Option = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A figure in words: the first column names the row."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Figure(ABC):
    """name: of files and anchors. help: what is drawn, in a sentence. height_px: on the page."""

    name: str
    title: str
    help: str

    @property
    def height_px(self) -> int:
        return 320

    @property
    def narrow_px(self) -> int:
        """Height where it is less than 480 px wide."""
        return self.height_px

    @property
    def size_in(self) -> tuple[float, float]:
        """Width and height on paper."""
        return 6.4, 3.4

    @property
    def empty(self) -> bool:
        """Nothing to draw."""
        return False

    @property
    @abstractmethod
    def summary(self) -> str:
        """One sentence for who cannot see the figure."""

    @abstractmethod
    def option(self) -> Option:
        """ECharts' option."""

    @abstractmethod
    def draw(self, axes: Axes) -> None:
        """The same on matplotlib's axes."""

    @abstractmethod
    def table(self) -> Table:
        """The same in words."""

    @property
    def top(self) -> float:
        """The largest value of a scale that figures beside each other share; 0: none to share."""
        return 0.0

    def scaled_to(self, top: float) -> Self:
        """The same figure on a scale up to `top`."""
        return self


def share_scale(figures: Sequence[Figure]) -> list[Figure]:
    """Figures that stand beside each other, on one scale. A lone one keeps its own."""
    top = max((figure.top for figure in figures), default=0.0)
    return [figure.scaled_to(_round_up(top)) for figure in figures] if len(figures) > 1 else list(figures)


def _round_up(value: float) -> float:
    """The next number that looks well at the end of an axis."""
    if value <= 0:
        return 0.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * size >= value)


FRAME: Option = {
    "animation": False,
    "textStyle": {"color": "var(--text)", "fontFamily": "var(--font)"},
    "aria": {"enabled": True, "decal": {"show": False}},
}
TOOLTIP: Option = {
    "confine": True,
    "backgroundColor": "var(--panel)",
    "borderColor": "var(--line)",
    "textStyle": {"color": "var(--text)"},
}


def tools(*features: str) -> Option:
    """The corner of buttons: zoom where it makes sense, and the picture as a file."""
    known: Option = {
        "dataZoom": {"yAxisIndex": "none", "title": {"zoom": "Zoom", "back": "Undo zoom"}},
        "restore": {"title": "Reset"},
        "saveAsImage": {"type": "svg", "title": "Save as SVG"},
    }
    style = {"iconStyle": {"borderColor": "var(--muted)"}, "emphasis": {"iconStyle": {"borderColor": "var(--text)"}}}
    return {
        "show": "@wide",
        "right": 0,
        "top": 0,
        "itemSize": 14,
        "feature": {name: known[name] for name in (*features, "saveAsImage")},
        **style,
    }


def axis(kind: str, label: str, unit: str, round_ends: bool = False, **more: Any) -> Option:
    """A value or category axis in the page's colours. round_ends: no number at an end that is the data's."""
    form: Option = {"formatter": f"@{unit}"} if unit else {}
    if round_ends:
        form |= {"showMinLabel": more.get("min") == 0, "showMaxLabel": False}
    return {
        "type": kind,
        "name": label,
        "nameLocation": "middle",
        "nameTextStyle": {"color": "var(--muted)"},
        "nameGap": 30,
        "axisLine": {"show": True, "lineStyle": {"color": "var(--line)"}},
        "axisTick": {"show": False},
        "axisLabel": {"color": "var(--muted)", "hideOverlap": True, **form},
        "splitLine": {"lineStyle": {"color": "var(--grid)"}},
        **more,
    }


def legend(**more: Any) -> Option:
    return {
        "type": "@legend_type",
        "left": 0,
        "right": "@legend_right",
        "top": 0,
        "itemWidth": 30,
        "textStyle": {"color": "var(--text)"},
        "pageTextStyle": {"color": "var(--muted)"},
        "pageIconColor": "var(--text)",
        "pageIconInactiveColor": "var(--line)",
        **more,
    }
