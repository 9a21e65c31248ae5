"""Bars that lie: a row a thing, in one colour or in parts that add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..inks import Ink
from ..units import COUNT, Unit
from .base import FRAME, TOOLTIP, Figure, Option, Table, axis, legend, tools

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Bars(Figure):
    """rows: names from top to bottom. parts: (name, ink, a value a row), beside each other or stacked."""

    label: str
    rows: tuple[str, ...]
    parts: tuple[tuple[str, Ink, Sequence[float]], ...]
    unit: Unit = COUNT
    stacked: bool = False
    most: float | None = None

    @property
    def empty(self) -> bool:
        return not self.rows

    @property
    def height_px(self) -> int:
        bars = len(self.rows) * (1 if self.stacked else len(self.parts))
        return 100 + max(bars * 22, len(self.rows) * 34)

    @property
    def narrow_px(self) -> int:
        # Long names fold into lines of about 14 letters.
        lines = max(math.ceil(len(row) / 12) for row in self.rows)
        return max(self.height_px, 100 + len(self.rows) * (14 * lines + 8))

    @property
    def size_in(self) -> tuple[float, float]:
        return 6.4, 0.9 + self.height_px / 110

    @property
    def top(self) -> float:
        if self.empty:
            return 0.0
        values = np.array([values for _, _, values in self.parts])
        return float(values.sum(axis=0).max() if self.stacked else values.max())

    def scaled_to(self, top: float) -> Bars:
        return replace(self, most=top or None)

    @property
    def summary(self) -> str:
        parts = []
        for name, _, values in self.parts:
            pairs = ", ".join(f"{row} {self.unit(value)}" for row, value in zip(self.rows, values, strict=True))
            parts.append(f"{name}: {pairs}")
        return f"{self.title}. {'; '.join(parts)}."

    def option(self) -> Option:
        several = len(self.parts) > 1
        top = "@under_legend" if several else "@bare_top"
        return FRAME | {
            "tooltip": TOOLTIP
            | {"trigger": "axis", "axisPointer": {"type": "shadow"}, "valueFormatter": f"@{self.unit.name}"},
            "legend": legend(show=several),
            "toolbox": tools(),
            "grid": {
                "left": "@labels",
                "right": "@values",
                "top": top,
                "bottom": 44,
            },
            "xAxis": axis("value", self.label, self.unit.name, max=self.most, splitNumber="@ticks"),
            "yAxis": axis("category", "", "", inverse=True, data=list(self.rows), splitLine={"show": False})
            | {
                "axisLabel": {
                    "color": "var(--text)",
                    "width": "@label_width",
                    "overflow": "break",
                    "formatter": "@wrapped",
                    "lineHeight": 14,
                    "margin": 10,
                }
            },
            "series": [self._option_of(*part) for part in self.parts],
        }

    def _option_of(self, name: str, ink: Ink, values: Sequence[float]) -> Option:
        bar: Option = {
            "type": "bar",
            "name": name,
            "data": [float(value) for value in values],
            "color": ink.css,
            "barMaxWidth": 22,
            "itemStyle": ink.decal,
        }
        if self.stacked:
            return bar | {"stack": "all"}
        label = {"show": True, "position": "right", "formatter": f"@{self.unit.name}", "color": "var(--text)"}
        return bar | {"label": label}

    def draw(self, axes: Axes) -> None:
        places = np.arange(len(self.rows))
        left = np.zeros(len(self.rows))
        thick = 0.7 if self.stacked else 0.7 / len(self.parts)
        for at, (name, ink, values) in enumerate(self.parts):
            row = places if self.stacked else places + (at - (len(self.parts) - 1) / 2) * thick
            drawn = axes.barh(
                row, values, thick, left=left, label=name, color=ink.light, hatch=ink.hatch, ec="white", lw=0.5
            )
            if self.stacked:
                left = left + np.asarray(values, float)
            else:
                axes.bar_label(drawn, [self.unit(value) for value in values], padding=2, fontsize="small")
        axes.set_yticks(places, self.rows)
        axes.invert_yaxis()
        axes.set_xlabel(self.label)
        room = 1.0 if self.stacked else 1.14  # for the number at a bar's end
        axes.set_xlim(0, room * (self.most or self.top) or 1.0)
        axes.xaxis.set_major_formatter(lambda value, _: self.unit(value))
        if len(self.parts) > 1:
            axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), fontsize="small")

    def table(self) -> Table:
        columns = ("row", *(name for name, _, _ in self.parts))
        rows = zip(self.rows, *(values for _, _, values in self.parts), strict=True)
        return Table(columns, [(row, *map(self.unit, values)) for row, *values in rows])
