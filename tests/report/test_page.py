"""The page: one file, nothing from outside, nothing unescaped, everything labelled."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from hicache_sim.cli import main
from hicache_sim.report.asked import schedule
from hicache_sim.report.build import read
from hicache_sim.report.load import RunData
from hicache_sim.report.run_figures import TIMED
from hicache_sim.report.sweep_figures import SweepData, pareto
from hicache_sim.report.units import SHARE
from hicache_sim.sweeps.api import Sweep


class Elements(HTMLParser):
    """All tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(folders: Path) -> str:
    return read([folders / "first", folders / "second", folders / "untimed", folders / "sweep"]).page()


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    return Elements(page)


def test_nothing_comes_from_outside(elements: Elements) -> None:
    for _, attributes in elements.tags:
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert "default-src 'none'" in str(elements.all("meta"))


def test_ids_are_unique_and_references_exist(elements: Elements) -> None:
    ids = Counter(attributes["id"] for _, attributes in elements.tags if attributes.get("id"))
    assert ids.most_common(1)[0][1] == 1
    for _, attributes in elements.tags:
        for name in ("aria-labelledby", "href"):
            target = attributes.get(name) or ""
            if name == "aria-labelledby" or target.startswith("#"):
                assert not target or target.lstrip("#") in ids


def test_every_chart_has_a_name_and_a_table(elements: Elements) -> None:
    charts = [attributes for attributes in elements.all("div") if attributes.get("class") == "chart"]
    assert len(charts) > 20
    assert all(len(chart["aria-label"] or "") > 30 and chart["tabindex"] == "0" for chart in charts)
    assert len(elements.all("figure")) == len(charts)
    assert len(
        [each for each in elements.all("div") if (each.get("aria-label") or "").startswith("As a table: ")]
    ) == len(charts)


def test_landmarks_and_headings(elements: Elements) -> None:
    for tag in ("header", "nav", "main", "footer", "h1"):
        assert len(elements.all(tag)) == 1
    levels = [int(tag[1]) for tag, _ in elements.tags if re.fullmatch("h[1-6]", tag)]
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_what_was_asked_and_rewritten_is_there(page: str) -> None:
    assert "layer_first → page_first" in page
    assert "--hicache-write-policy" in page and "differs" in page
    assert "What each flag buys" in page
    assert "What could not run" in page and "page" in page


def test_a_sweep_says_what_it_rests_on_and_what_would_be_without(folders: Path) -> None:
    swept = Sweep.open(folders / "sweep")
    page = read([folders / "sweep"]).page()
    assert '<th scope="row">Limit</th><td>40</td>' in page
    bare = next(row for row in swept.best["worth"] if row["flag"] == "--enable-hierarchical-cache")["without"]
    assert f"prompt tokens not computed; {SHARE(bare['hit_rate'])} without HiCache" in page


def test_a_metric_that_is_the_same_for_all_is_not_drawn(folders: Path) -> None:
    """Without L3 nothing is written there."""
    data = SweepData("sweep", Sweep.open(folders / "sweep"))
    assert {row["store_bytes"] for row in data.settings} == {0.0}
    assert data.shown == ["ttft_p99", "host_bytes", "hit_rate"]
    assert [figure.name for figure in pareto(data)] == ["pareto-ttft_p99-host_bytes"]


def test_differences_say_whose_flags_they_are(folders: Path) -> None:
    page = read([folders / "first", folders / "second"]).page()
    help_ = re.search(r'id="figures".*?class="help">(.*?)</p>', page, re.DOTALL)
    assert help_ is not None
    for words in ("first: --hicache-ratio 2.0, ", "second: --hicache-ratio 3.0, ", "--hicache-write-policy write_back"):
        assert words in help_[1]
    assert "--page-size" not in help_[1]


def test_figures_come_before_what_was_asked(folders: Path) -> None:
    sections = [each["id"] for each in Elements(read([folders / "first"]).page()).all("section")]
    assert sections[:2] == ["figures", "asked"]


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ("ClosedLoop(speed=1.0, arrivals=None)", "closed, by answers"),
        ("OpenLoop(speed=2.0, spread=True, arrivals=None)", "open, by the clock, speed=2.0, spread=True"),
        (
            "ClosedLoop(speed=1.0, arrivals=Poisson(rate=0.1, seed=3))",
            "closed, by answers, arrivals=Poisson(rate=0.1, seed=3)",
        ),
    ],
)
def test_schedules_in_words(recorded: str, words: str) -> None:
    assert schedule(recorded) == words


def test_names_are_escaped(folders: Path, tmp_path: Path) -> None:
    bad = tmp_path / "<script>alert(1)<"
    shutil.copytree(folders / "first", bad)
    summary = bad / "summary.json"
    text = summary.read_text()
    summary.write_text(text.replace('"never seen"', '"</script><b>"').replace('"llama', '"<img>llama'))
    page = read([bad]).page()
    assert "<script>alert" not in page
    assert "</script><b>" not in page
    assert len(Elements(page).all("script")) == 3


def test_a_run_alone_has_every_figure(folders: Path, run: RunData) -> None:
    ids = {attributes.get("id") for attributes in Elements(read([folders / "first"]).page()).all("section")}
    assert {figure.name for figure in (make(run) for make in TIMED)} <= ids


def test_a_run_without_time_has_its_shares(folders: Path) -> None:
    assert "Where prompt tokens came from" in read([folders / "untimed"]).page()


def test_the_command_writes_page_and_figures(folders: Path, tmp_path: Path) -> None:
    words = ["report", str(folders / "untimed"), "--out", str(tmp_path / "new" / "page.html")]
    done = CliRunner().invoke(main, [*words, "--figures", str(tmp_path / "figures")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!doctype html>")
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures == {"shares.png", "shares.pdf"}
    assert (tmp_path / "figures" / "shares.pdf").read_bytes().startswith(b"%PDF")
