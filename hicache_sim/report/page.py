"""The page: sections of figures, put into one HTML file that needs nothing else.

Rules of this file
- A section says what belongs together; the templates say how it looks; the browser draws.
- Everything that comes from a file is escaped: by the templates in HTML, by `_json` inside the script.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from . import inks
from .kinds import Figure


@dataclass(frozen=True)
class Panel:
    """A figure in its place. anchor: unique on the page; label: whose it is, where several stand beside each other."""

    figure: Figure
    anchor: str
    label: str = ""


@dataclass(frozen=True)
class Section:
    """template: what comes before the figures, with `data`. title: None hides the heading of a lone figure row."""

    anchor: str
    title: str
    help: str = ""
    template: str | None = None
    data: Any = None
    panels: Sequence[Panel] = field(default_factory=tuple)


def beside(anchor: str, figures: Sequence[tuple[str, Figure]]) -> Section:
    """One figure, of each of several runs beside each other. figures: whose, and the figure."""
    first = figures[0][1]
    several = len(figures) > 1
    panels = [Panel(figure, f"{anchor}-{at}", label if several else "") for at, (label, figure) in enumerate(figures)]
    return Section(anchor, first.title, first.help, panels=panels)


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    page = _environment().get_template("page.html")
    options = {panel.anchor: panel.figure.option() for section in sections for panel in section.panels}
    return page.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        inks=inks.ALL,
        options=Markup(_json(options)),
        echarts=Markup(_asset("vendor/echarts.min.js")),
        script=Markup(_asset("assets/report.js")),
        style=Markup(_asset("assets/report.css")),
    )


@cache
def _environment() -> Environment:
    # The package may be a folder or an archive: the loader asks it, not the file system.
    return Environment(
        loader=PackageLoader("hicache_sim.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    text = files("hicache_sim.report").joinpath(name).read_text(encoding="utf-8")
    assert "</script" not in text
    return text


def _json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
