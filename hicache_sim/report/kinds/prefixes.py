"""Shared prefixes as boxes: to the right along the prompt, as high as often used, children right of their parent.

The area of a box is tokens x uses: what sharing it is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..inks import Ink
from ..units import COUNT, TOKENS
from .base import FRAME, TOOLTIP, Figure, Option, Table, axis, legend, tools

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Box:
    """left, right: tokens from the start of the prompt. low, high: uses. words: columns of the table."""

    left: float
    right: float
    low: float
    high: float
    place: str
    words: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{TOKENS(self.right - self.left)} × {COUNT(self.high - self.low)}"


@dataclass(frozen=True)
class Prefixes(Figure):
    """boxes: parents before children. inks: by `Box.place`. columns: names of `Box.words`."""

    boxes: tuple[Box, ...]
    inks: dict[str, Ink]
    columns: tuple[str, ...]

    @property
    def empty(self) -> bool:
        return not self.boxes

    @property
    def height_px(self) -> int:
        return 440

    @property
    def size_in(self) -> tuple[float, float]:
        return 6.4, 4.4

    @property
    def summary(self) -> str:
        largest = sorted(self.boxes, key=lambda box: (box.left - box.right) * (box.high - box.low))[:3]
        words = "; ".join(f"{box.label} uses, in {box.place}, from token {COUNT(box.left)}" for box in largest)
        return f"{self.title}. {len(self.boxes)} stretches of prompt are drawn. The largest: {words}."

    def option(self) -> Option:
        return FRAME | {
            "tooltip": TOOLTIP | {"trigger": "item", "formatter": "@box"},
            "legend": legend(itemWidth=14),
            "toolbox": tools("dataZoom", "restore")
            | {
                "feature": tools("dataZoom", "restore")["feature"]
                | {"dataZoom": {"title": {"zoom": "Zoom", "back": "Undo zoom"}}}
            },
            "grid": {"left": 64, "right": 16, "top": 44, "bottom": 52},
            "xAxis": axis(
                "value", "tokens from the start of the prompt", "count", round_ends=True, min=0, max="dataMax"
            ),
            "yAxis": axis(
                "value", "uses", "count", inverse=True, min=0, nameGap=44, max=max(b.high for b in self.boxes)
            ),
            "series": [
                {
                    "type": "custom",
                    "name": place,
                    "renderItem": "@boxes",
                    "color": ink.css,
                    "encode": {"x": [0, 1], "y": [2, 3]},
                    "data": [
                        {"value": [box.left, box.right, box.low, box.high], "name": box.label, "words": box.words}
                        for box in self.boxes
                        if box.place == place
                    ],
                    "columns": self.columns,
                }
                for place, ink in self.inks.items()
                if any(box.place == place for box in self.boxes)
            ],
        }

    def draw(self, axes: Axes) -> None:
        from matplotlib.patches import Patch, Rectangle

        right, high = max(box.right for box in self.boxes), max(box.high for box in self.boxes)
        for box in self.boxes:
            ink, wide, tall = self.inks[box.place], box.right - box.left, box.high - box.low
            axes.add_patch(
                Rectangle((box.left, box.low), wide, tall, fc=ink.light, ec="white", lw=0.4, hatch=ink.hatch[:2])
            )
            if wide > 0.13 * right and tall > 0.06 * high:
                middle = (box.left + wide / 2, box.low + tall / 2)
                axes.annotate(
                    box.label, middle, ha="center", va="center", fontsize=6, color="white", backgroundcolor=ink.light
                )
        axes.set_xlim(0, right)
        axes.set_ylim(high, 0)
        axes.set_xlabel("tokens from the start of the prompt")
        axes.set_ylabel("uses")
        axes.xaxis.set_major_formatter(lambda value, _: COUNT(value))
        used = [place for place in self.inks if any(box.place == place for box in self.boxes)]
        handles = [
            Patch(fc=self.inks[place].light, hatch=self.inks[place].hatch, ec="white", label=place) for place in used
        ]
        axes.legend(handles=handles, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), fontsize="small")

    def table(self) -> Table:
        return Table(self.columns, [box.words for box in self.boxes])
