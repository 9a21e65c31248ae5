"""Points over two metrics, in groups, later ones larger and above; one group may be joined to a front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..inks import Ink
from ..units import Unit
from .base import FRAME, TOOLTIP, Figure, Option, Table, axis, legend, tools

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SYMBOLS = {"o": "circle", "s": "rect", "^": "triangle", "D": "diamond", "v": "pin", "P": "roundRect", "X": "arrow"}


@dataclass(frozen=True)
class Point:
    """words: what it stands for, in one line."""

    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Points(Figure):
    """groups: name, ink, points. joined: name of the group that a line joins, in the order of x."""

    x_label: str
    y_label: str
    x_unit: Unit
    y_unit: Unit
    groups: tuple[tuple[str, Ink, tuple[Point, ...]], ...]
    joined: str | None = None

    @property
    def empty(self) -> bool:
        return not any(points for _, _, points in self.groups)

    @property
    def height_px(self) -> int:
        return 380

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{len(points)} {name}" for name, _, points in self.groups)
        return f"{self.title}. {self.y_label} against {self.x_label}; points: {counts}."

    def option(self) -> Option:
        tip = TOOLTIP | {"trigger": "item", "formatter": "@point"}
        series: list[Option] = []
        for at, (name, ink, points) in enumerate(self.groups):
            data = [{"value": [p.x, p.y], "words": p.words} for p in sorted(points, key=lambda p: (p.x, p.y))]
            joined = name == self.joined
            series.append(
                {
                    "type": "line" if joined else "scatter",
                    "name": name,
                    "data": data,
                    "color": ink.css,
                    "symbol": _SYMBOLS[ink.marker],
                    "symbolSize": 8 + 2 * at,
                    "showAllSymbol": True,
                    "lineStyle": {"width": 1.5, "type": list(ink.dash) or "solid", "color": ink.css},
                    "itemStyle": {"borderColor": "var(--panel)", "borderWidth": 0.5},
                    "z": 2 + at,
                    "axes": [[self.x_label, self.x_unit.name], [self.y_label, self.y_unit.name]],
                }
            )
        return FRAME | {
            "tooltip": tip,
            "legend": legend(itemWidth=14),
            "toolbox": tools("dataZoom", "restore"),
            "grid": {"left": 72, "right": 24, "top": "@under_legend", "bottom": 52},
            "xAxis": axis("value", self.x_label, self.x_unit.name, scale=True),
            "yAxis": axis("value", self.y_label, self.y_unit.name, scale=True, nameGap=56),
            "series": series,
        }

    def draw(self, axes: Axes) -> None:
        for at, (name, ink, points) in enumerate(self.groups):
            ordered = sorted(points, key=lambda p: (p.x, p.y))
            line = ink.line_style if name == self.joined else "none"
            xs, ys = [p.x for p in ordered], [p.y for p in ordered]
            axes.plot(xs, ys, marker=ink.marker, color=ink.light, ls=line, lw=1, ms=4 + at, label=name, alpha=0.85)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.xaxis.set_major_formatter(lambda value, _: self.x_unit(value))
        axes.yaxis.set_major_formatter(lambda value, _: self.y_unit(value))
        axes.tick_params(axis="x", labelrotation=20)
        axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), fontsize="small")

    def table(self) -> Table:
        rows = [
            (point.words, name, self.x_unit(point.x), self.y_unit(point.y))
            for name, _, points in self.groups
            for point in points
        ]
        return Table(("point", "group", self.x_label, self.y_label), rows)
