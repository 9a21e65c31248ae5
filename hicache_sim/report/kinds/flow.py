"""What goes where, and how much of it: bands between columns (a Sankey diagram)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..inks import Ink
from ..units import BYTES, Unit
from .base import FRAME, TOOLTIP, Figure, Option, Table, tools

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAP = 0.06


@dataclass(frozen=True)
class Flow(Figure):
    """places: name, ink and column of each. moves: from, to, amount; only to columns further right."""

    places: tuple[tuple[str, Ink, int], ...]
    moves: tuple[tuple[str, str, float], ...]
    unit: Unit = BYTES

    @property
    def empty(self) -> bool:
        return not self.moves

    @property
    def summary(self) -> str:
        return f"{self.title}. " + "; ".join(f"{a} to {b}: {self.unit(value)}" for a, b, value in self.moves) + "."

    def option(self) -> Option:
        used = {name for a, b, _ in self.moves for name in (a, b)}
        return FRAME | {
            "tooltip": TOOLTIP | {"trigger": "item", "valueFormatter": f"@{self.unit.name}"},
            "toolbox": tools(),
            "series": [
                {
                    "type": "sankey",
                    "left": 4,
                    "right": "@flow_right",
                    "top": 36,
                    "bottom": 12,
                    "nodeWidth": 14,
                    "nodeGap": 18,
                    "draggable": False,
                    "layoutIterations": 32,
                    "emphasis": {"focus": "adjacency"},
                    "label": {
                        "color": "var(--text)",
                        "formatter": f"@flow_{self.unit.name}",
                        "fontSize": "@small",
                        "lineHeight": 15,
                    },
                    "lineStyle": {"color": "source", "opacity": 0.4, "curveness": 0.5},
                    "data": [
                        {"name": name, "depth": column, "itemStyle": {"color": ink.css, "borderColor": ink.css}}
                        for name, ink, column in self.places
                        if name in used
                    ],
                    "links": [{"source": a, "target": b, "value": value} for a, b, value in self.moves],
                }
            ],
        }

    def draw(self, axes: Axes) -> None:
        from matplotlib.patches import PathPatch, Rectangle
        from matplotlib.path import Path

        size, low = self._layout()
        inks = {name: (ink, column) for name, ink, column in self.places}
        out, into = dict(low), dict(low)
        whole = max(size.values())
        for a, b, value in self.moves:
            x0, x1 = inks[a][1] + 0.06, inks[b][1] - 0.06
            y0, y1, thick = out[a], into[b], value / whole
            out[a] += thick
            into[b] += thick
            middle = (x0 + x1) / 2
            points = [(x0, y0), (middle, y0), (middle, y1), (x1, y1)]
            back = [(x1, y1 + thick), (middle, y1 + thick), (middle, y0 + thick), (x0, y0 + thick), (x0, y0)]
            codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
            axes.add_patch(PathPatch(Path([*points, *back], codes), fc=inks[a][0].light, alpha=0.4, lw=0))
        for name, bottom in low.items():
            ink, column = inks[name]
            height = size[name] / whole
            axes.add_patch(Rectangle((column - 0.06, bottom), 0.12, height, fc=ink.light))
            axes.text(
                column,
                bottom + height + 0.015,
                f"{name}\n{self.unit(size[name])}",
                ha="center",
                va="bottom",
                fontsize=7,
            )
        columns = [column for _, _, column in self.places]
        tall = max(low[name] + size[name] / whole for name in low)
        axes.set_xlim(min(columns) - 0.5, max(columns) + 0.5)
        axes.set_ylim(-0.05, tall + 0.25)
        axes.set_axis_off()

    def _layout(self) -> tuple[dict[str, float], dict[str, float]]:
        """How much passes through each place, and where it starts: columns are stacked from below."""
        size: dict[str, float] = {}
        for name, _, _ in self.places:
            given = sum(value for a, _, value in self.moves if a == name)
            got = sum(value for _, b, value in self.moves if b == name)
            if max(given, got):
                size[name] = max(given, got)
        whole, filled, low = max(size.values()), dict.fromkeys((column for _, _, column in self.places), 0.0), {}
        for name, _, column in self.places:
            if name in size:
                low[name] = filled[column]
                filled[column] += size[name] / whole + _GAP * 4
        return size, low

    def table(self) -> Table:
        return Table(("from", "to", "amount"), [(a, b, self.unit(value)) for a, b, value in self.moves])
