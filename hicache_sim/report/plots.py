"""The same figures on paper: matplotlib, PNG and PDF.

Rules of this file
- Drawn in a style of their own, restored afterwards: nobody's settings change.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .kinds import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "pdf")
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "hatch.linewidth": 0.5,
    "hatch.color": "white",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "svg.hashsalt": "hicache",
}


def plot(figure: Figure, axes: Axes | None = None) -> Axes:
    """Draw on `axes`, or on new ones of the size that suits the figure."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        if axes is None:
            from matplotlib import pyplot

            _, axes = pyplot.subplots(figsize=figure.size_in, layout="constrained")
        if figure.empty:
            axes.text(0.5, 0.5, "nothing to draw", ha="center", transform=axes.transAxes)
        else:
            figure.draw(axes)
    return axes


def save(figures: Iterable[Figure], folder: Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """A file a figure and format, named after the figure; no window system is touched."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        for figure in figures:
            canvas = Canvas(figsize=figure.size_in, layout="constrained")
            FigureCanvasAgg(canvas)
            figure.draw(canvas.add_subplot())
            for suffix in formats:
                path = folder / f"{figure.name}.{suffix}"
                canvas.savefig(path)
                written.append(path)
    return written
