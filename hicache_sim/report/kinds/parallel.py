"""Parallel coordinates: an axis a flag or metric, a line a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..inks import Ink
from ..units import Unit
from .base import FRAME, TOOLTIP, Figure, Option, Table, legend, tools

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Dimension:
    """One axis. A unit: numbers; none: words, spread evenly in the order given by `choices`."""

    name: str
    unit: Unit | None = None
    choices: tuple[str, ...] = ()

    def words(self, value: Any) -> str:
        return self.unit(value) if self.unit is not None else str(value)

    def option(self, at: int) -> Option:
        scale: Option = {"type": "category", "data": list(self.choices)}
        if self.unit is not None:
            scale = {"type": "value", "scale": True, "axisLabel": {"formatter": f"@{self.unit.name}"}}
        return {"dim": at, "name": f"@folded:{self.name}"} | scale

    def marks(self, column: Sequence[Any]) -> Sequence[Any]:
        """What is written at the axis on paper: all choices, the ends of numbers."""
        return self.choices if self.unit is None else sorted({min(column), max(column)})

    def share(self, value: Any, column: Sequence[Any]) -> float:
        """Where `value` stands on an axis from 0 to 1."""
        if self.unit is None:
            return self.choices.index(str(value)) / max(len(self.choices) - 1, 1)
        low, high = min(column), max(column)
        return (value - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True)
class Parallel(Figure):
    """groups: name, ink, rows with a value a dimension; later groups are drawn over earlier ones."""

    dimensions: tuple[Dimension, ...]
    groups: tuple[tuple[str, Ink, tuple[tuple[Any, ...], ...]], ...]

    @property
    def empty(self) -> bool:
        return not any(rows for _, _, rows in self.groups)

    @property
    def height_px(self) -> int:
        return 420

    @property
    def narrow_px(self) -> int:
        # The axes lie below each other.
        return 120 + 60 * len(self.dimensions)

    @property
    def size_in(self) -> tuple[float, float]:
        return max(6.4, 1.1 * len(self.dimensions)), 3.8

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{len(rows)} {name}" for name, _, rows in self.groups)
        return f"{self.title}. Axes: {', '.join(each.name for each in self.dimensions)}. Lines: {counts}."

    def option(self) -> Option:
        halo = {"textBorderColor": "var(--panel)", "textBorderWidth": 3}
        quiet = {"color": "var(--muted)", "fontSize": "@small", "hideOverlap": True} | halo
        default = {
            "nameTextStyle": {
                "color": "var(--text)",
                "fontSize": "@small",
                "width": "@axis_name",
                "overflow": "break",
                "lineHeight": 14,
            }
            | halo,
            "nameLocation": "@parallel_name",
            "nameGap": "@parallel_gap",
            "axisLine": {"lineStyle": {"color": "var(--muted)"}},
            "axisTick": {"lineStyle": {"color": "var(--line)"}},
            "axisLabel": quiet,
            "areaSelectStyle": {"color": "var(--ink-a)", "opacity": 0.15},
        }
        return FRAME | {
            "tooltip": TOOLTIP,
            "legend": legend(),
            "toolbox": tools(),
            "parallel": {
                "layout": "@parallel_layout",
                "left": "@parallel_left",
                "right": "@parallel_right",
                "top": 92,
                "bottom": "@parallel_bottom",
                "parallelAxisDefault": default,
            },
            "parallelAxis": [each.option(at) for at, each in enumerate(self.dimensions)],
            "series": [
                {
                    "type": "parallel",
                    "name": name,
                    "color": ink.css,
                    "lineStyle": {
                        "width": 1.5 + at / 2,
                        "opacity": min(0.4 + 0.3 * at, 1.0),
                        "color": ink.css,
                        "type": list(ink.dash) or "solid",
                    },
                    "data": [list(row) for row in rows],
                }
                for at, (name, ink, rows) in enumerate(self.groups)
            ],
        }

    def draw(self, axes: Axes) -> None:
        from matplotlib.patheffects import withStroke

        halo = [withStroke(linewidth=2, foreground="white")]
        places = range(len(self.dimensions))
        columns = list(zip(*(row for _, _, rows in self.groups for row in rows), strict=True))
        for at, (name, ink, rows) in enumerate(self.groups):
            for number, row in enumerate(rows):
                heights = [each.share(v, column) for each, v, column in zip(self.dimensions, row, columns, strict=True)]
                label = name if number == 0 else None
                axes.plot(
                    places,
                    heights,
                    color=ink.light,
                    ls=ink.line_style,
                    alpha=min(0.4 + 0.3 * at, 1.0),
                    lw=1 + at / 2,
                    label=label,
                )
        for place, each, column in zip(places, self.dimensions, columns, strict=True):
            axes.axvline(place, color="0.3", lw=0.8)
            for value in each.marks(column):
                height = each.share(value, column)
                axes.text(place + 0.04, height, each.words(value), va="center", fontsize=6, path_effects=halo)
        axes.set_xticks(places, [each.name for each in self.dimensions], rotation=20, ha="right", fontsize="small")
        axes.tick_params(axis="x", pad=12, length=0)
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.08), fontsize="small")

    def table(self) -> Table:
        columns = (*(each.name for each in self.dimensions), "group")
        rows = [
            (*(each.words(value) for each, value in zip(self.dimensions, row, strict=True)), name)
            for name, _, rows in self.groups
            for row in rows
        ]
        return Table(columns, rows)
