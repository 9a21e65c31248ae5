"""Values over time, or over anything that runs on: lines, or areas that add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inks import Ink
from ..units import PLAIN, SHARE, Unit
from .base import FRAME, TOOLTIP, Figure, Option, Table, axis, legend, tools

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Series:
    """x, y: numbers; y may hold None where there is nothing."""

    name: str
    ink: Ink
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True)
class Lines(Figure):
    """series: of one x where `stacked`."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_unit: Unit = PLAIN
    y_unit: Unit = SHARE
    stacked: bool = False
    log_x: bool = False
    y_top: float | None = field(default=None)

    @property
    def empty(self) -> bool:
        return not any(len(series.x) for series in self.series)

    @property
    def top(self) -> float:
        columns = [[value or 0.0 for value in series.y] for series in self.series if len(series.y)]
        if self.y_top is not None or not columns:
            return self.y_top or 0.0
        return float(np.sum(columns, axis=0).max()) if self.stacked else max(max(column) for column in columns)

    def scaled_to(self, top: float) -> Lines:
        return replace(self, y_top=top or None)

    @property
    def summary(self) -> str:
        parts = []
        for series in self.series:
            values = [value for value in series.y if value is not None]
            if values:
                spread = f"{self.y_unit(min(values))} to {self.y_unit(max(values))}, last {self.y_unit(values[-1])}"
                parts.append(f"{series.name}: {spread}")
        return f"{self.title}. {self.y_label} over {self.x_label}. {'; '.join(parts)}."

    def option(self) -> Option:
        x_more: dict[str, Any] = {"min": "dataMin" if self.log_x else 0, "max": "dataMax"}
        y_more: dict[str, Any] = {"min": 0, "max": self.y_top, "nameGap": 48}
        return FRAME | {
            "tooltip": TOOLTIP | {"trigger": "axis", "valueFormatter": f"@{self.y_unit.name}"},
            "legend": legend(icon="rect", itemWidth=18) if self.stacked else legend(itemStyle={"opacity": 0}),
            "toolbox": tools("dataZoom", "restore"),
            "grid": {"left": 64, "right": 16, "top": "@under_legend", "bottom": 52},
            "xAxis": axis("log" if self.log_x else "value", self.x_label, self.x_unit.name, round_ends=True, **x_more)
            | {"axisPointer": {"label": {"formatter": f"@{self.x_unit.name}"}}},
            "yAxis": axis("value", self.y_label, self.y_unit.name, **y_more),
            "series": [self._option_of(series) for series in self.series],
        }

    def _option_of(self, series: Series) -> Option:
        line: Option = {
            "type": "line",
            "name": series.name,
            "data": [[x, y] for x, y in zip(series.x, series.y, strict=True)],
            "symbol": "none" if len(series.x) > 1 else "circle",  # a lone point is no line
            "color": series.ink.css,
            "lineStyle": {"width": 2, "type": list(series.ink.dash) or "solid", "color": series.ink.css},
        }
        if self.stacked:
            line |= {"stack": "all", "lineStyle": {"width": 1, "color": series.ink.css}}
            line |= {"areaStyle": {"opacity": 0.85, "color": series.ink.css}}
            line |= {"itemStyle": series.ink.decal}
        return line

    def draw(self, axes: Axes) -> None:
        if self.stacked:
            below = np.zeros(len(self.series[0].x))
            for series in self.series:
                above = below + np.array([value or 0.0 for value in series.y])
                axes.fill_between(
                    series.x,
                    below,
                    above,
                    label=series.name,
                    color=series.ink.light,
                    hatch=series.ink.hatch,
                    ec="white",
                    lw=0,
                )
                below = above
        else:
            for series in self.series:
                values = [np.nan if value is None else value for value in series.y]
                marker = series.ink.marker if len(series.x) == 1 else ""
                axes.plot(
                    series.x,
                    values,
                    label=series.name,
                    marker=marker,
                    color=series.ink.light,
                    ls=series.ink.line_style,
                    lw=1.5,
                )
        axes.set_xscale("log" if self.log_x else "linear")
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.set_ylim(0, self.y_top)
        axes.yaxis.set_major_formatter(lambda value, _: self.y_unit(value))
        if self.x_unit is not PLAIN:
            axes.xaxis.set_major_formatter(lambda value, _: self.x_unit(value))
        axes.margins(x=0)
        axes.legend(
            frameon=False, ncols=min(len(self.series), 4), loc="lower left", bbox_to_anchor=(0, 1), fontsize="small"
        )

    def table(self) -> Table:
        if all(series.x is self.series[0].x for series in self.series):
            columns = (self.x_label, *(series.name for series in self.series))
            rows = zip(self.series[0].x, *(series.y for series in self.series), strict=True)
            return Table(columns, [(self.x_unit(x), *map(self.y_unit, ys)) for x, *ys in rows])
        rows_of = (zip(each.x, each.y, strict=True) for each in self.series)
        flat = [
            (series.name, self.x_unit(x), self.y_unit(y))
            for series, pairs in zip(self.series, rows_of, strict=True)
            for x, y in pairs
        ]
        return Table(("series", self.x_label, self.y_label), flat)
