"""What holds for every kind of figure: it draws itself for the page and for paper, and says the same in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from hicache_sim.report import inks, units
from hicache_sim.report.kinds import (
    Bars,
    Box,
    Dimension,
    Figure,
    Flow,
    Lines,
    Parallel,
    Point,
    Points,
    Prefixes,
    Series,
)

ASSETS = files("hicache_sim.report") / "assets"
SCRIPT = (ASSETS / "report.js").read_text(encoding="utf-8")
STYLE = (ASSETS / "report.css").read_text(encoding="utf-8")
WORDS = ("name", "Title", "What it shows.")


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


class Contract:
    """Inherited by each kind: `figure`, and a word that its summary and table must hold."""

    figure: Figure
    says: str

    def test_the_option_is_json_of_known_names(self) -> None:
        option = self.figure.option()
        json.dumps(option, allow_nan=False)
        known = {ink.css for ink in inks.ALL}
        for text in strings(option):
            for variable in re.findall(r"var\(--[\w-]+\)", text):
                assert variable in known or f"{variable[4:-1]}:" in STYLE, text
            if text.startswith("@"):
                name = text[1:].partition(":")[0]
                assert re.search(rf"^    {name}[:,]", SCRIPT, re.MULTILINE), text

    def test_words(self) -> None:
        table = self.figure.table()
        assert table.rows
        assert all(len(row) == len(table.columns) and all(isinstance(cell, str) for cell in row) for row in table.rows)
        assert self.figure.title in self.figure.summary
        assert self.says in self.figure.summary
        assert self.says in " ".join(cell for row in (table.columns, *table.rows) for cell in row)

    def test_it_draws_on_paper(self) -> None:
        canvas = Canvas(figsize=self.figure.size_in, layout="constrained")
        FigureCanvasAgg(canvas)
        axes = canvas.add_subplot()
        self.figure.draw(axes)
        canvas.draw_without_rendering()
        assert axes.lines or axes.patches or axes.collections

    def test_a_shared_scale_changes_nothing_else(self) -> None:
        figure, scaled = self.figure, self.figure.scaled_to(self.figure.top * 2)
        assert (scaled.table(), scaled.name, scaled.empty) == (figure.table(), figure.name, False)
        assert scaled.top in (0.0, figure.top, figure.top * 2)


class TestLines(Contract):
    x = (0.5, 1.5, 2.5)
    figure = Lines(*WORDS, "time", "share", (Series("L1", inks.L1, x, [0.1, 0.5, None]), Series("L2", inks.L2, x, x)))
    says = "L1"

    def test_a_gap_stays_a_gap(self) -> None:
        assert self.figure.option()["series"][0]["data"][2] == [2.5, None]


class TestALonePoint(Contract):
    figure = Lines(*WORDS, "time", "share", (Series("L1", inks.L1, [2.0], [0.5]),))
    says = "L1"

    def test_it_can_be_seen(self) -> None:
        assert self.figure.option()["series"][0]["symbol"] == "circle"


class TestStacked(Contract):
    x = (0.0, 1.0)
    parts = (Series("L1", inks.L1, x, [3.0, 1.0]), Series("computed", inks.COMPUTED, x, [4.0, 1.0]))
    figure = Lines(*WORDS, "time", "tokens", parts, y_unit=units.COUNT, stacked=True)
    says = "computed"

    def test_the_scale_holds_the_sum(self) -> None:
        assert self.figure.top == 7.0


class TestLogarithmic(Contract):
    figure = Lines(
        *WORDS, "TTFT", "share", (Series("run", inks.L1, [0.01, 1.0], [0.0, 1.0]),), units.SECONDS, log_x=True
    )
    says = "run"


class TestBars(Contract):
    figure = Bars(*WORDS, "tokens", ("never seen", "evicted"), (("a", inks.L1, [3, 4]), ("b", inks.L2, [1, 0])))
    says = "never seen"


class TestStackedBars(Contract):
    parts = (("L1", inks.L1, [0.4, 0.2]), ("L2", inks.L2, [0.6, 0.8]))
    figure = Bars(*WORDS, "share", ("first", "second"), parts, units.SHARE, stacked=True, most=1.0)
    says = "second"


class TestFlow(Contract):
    places = (("host", inks.L2, 0), ("device", inks.L1, 1), ("unused", inks.L3, 2))
    figure = Flow(*WORDS, places, (("host", "device", 5e9),))
    says = "host"

    def test_places_without_a_move_are_left_out(self) -> None:
        assert [node["name"] for node in self.figure.option()["series"][0]["data"]] == ["host", "device"]


class TestPrefixes(Contract):
    boxes = (Box(0, 640, 0, 10, "L1", ("640 tok × 10", "L1")), Box(640, 700, 0, 4, "L2", ("60 tok × 4", "L2")))
    figure = Prefixes(*WORDS, boxes, {"L1": inks.L1, "L2": inks.L2}, ("size", "where"))
    says = "L1"


class TestPoints(Contract):
    groups = (
        ("others", inks.COMPUTED, (Point(1, 2, "ratio 2"),)),
        ("front", inks.L1, (Point(0, 3, "ratio 4"), Point(2, 1, "x"))),
    )
    figure = Points(*WORDS, "ttft", "bytes", units.SECONDS, units.BYTES, groups, "front")
    says = "front"


class TestParallel(Contract):
    dimensions = (Dimension("policy", choices=("write_back", "write_through")), Dimension("hit rate", units.SHARE))
    groups = (("others", inks.COMPUTED, (("write_back", 0.5),)), ("best", inks.L3, (("write_through", 0.7),)))
    figure = Parallel(*WORDS, dimensions, groups)
    says = "best"


def test_every_kind_that_is_abstract_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Figure(*WORDS)  # type: ignore[abstract]


def test_inks_are_told_apart_without_colours() -> None:
    """Of those that meet on one figure, no two have the same dash, or the same hatch."""
    for together in ((inks.L1, inks.L2, inks.L3, inks.COMPUTED), inks.SERIES):
        assert len({ink.dash for ink in together}) == len(together)
        assert len({ink.hatch for ink in together}) == len(together)


@pytest.mark.parametrize("ink", inks.ALL, ids=lambda ink: ink.name)
def test_inks_stand_out_from_their_page(ink: inks.Ink) -> None:
    """At least 3:1, what WCAG 2 asks of graphics."""
    assert contrast(ink.light, "#ffffff") >= 3.0
    assert contrast(ink.dark, "#1b2027") >= 3.0


@pytest.mark.parametrize(("text", "page"), [("#59636e", "#f3f5f8"), ("#a9b3bd", "#20262e"), ("#a33c00", "#ffffff")])
def test_text_can_be_read(text: str, page: str) -> None:
    assert text in STYLE and page in STYLE
    assert contrast(text, page) >= 4.5


def contrast(one: str, two: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(two)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
