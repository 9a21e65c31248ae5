"""The page in headless Chromium: every figure drawn, nothing cut off or complained about, on any screen and on paper.

Skipped where there is no Chromium with its driver, or no selenium.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_sim.report import inks, units
from hicache_sim.report.build import read

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with chromedriver on the path")

WIDE, NARROW = 1280, 360


class Browser:
    """Chromium on one page after the other."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(word)
        options.binary_location = BROWSER
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))

    def look(self, page: Path, width: int, scheme: str = "light", media: str = "screen") -> None:
        self.screen(width, scheme, media)
        self.driver.get(page.as_uri())

    def screen(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="module")
def pages(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("pages")
    made = {"one": ["first"], "all": ["first", "second", "untimed", "sweep"]}
    for name, names in made.items():
        (at / f"{name}.html").write_text(read([folders / each for each in names]).page(), encoding="utf-8")
    return {name: at / f"{name}.html" for name in made}


MARKS = """return Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) =>
  [chart.id, [chart.querySelectorAll("svg path").length, chart.querySelectorAll("svg text").length]]))"""

CUT_OFF = """const cut = [];
for (const chart of document.querySelectorAll(".chart")) {
  const frame = chart.getBoundingClientRect();
  for (const text of chart.querySelectorAll("svg text")) {
    const box = text.getBoundingClientRect();
    if (text.closest("[clip-path]")) continue;  // a legend's next page
    if (box.width && (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 ||
        box.bottom > frame.bottom + 2)) cut.push(chart.id + ": " + text.textContent);
  }
}
return cut;"""

OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["one", "all"])
def test_every_figure_is_drawn(browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    browser.look(pages[name], width, scheme)
    marks = browser.run(MARKS)
    assert len(marks) > 8
    for chart, (paths, texts) in marks.items():
        assert paths >= 2 and texts >= 3, chart
    assert browser.run(CUT_OFF) == []
    assert browser.run(OVERFLOW) <= 0
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.complaints() == []


def test_it_follows_the_screen(browser: Browser, pages: dict[str, Path]) -> None:
    """Turned, narrowed and darkened while it is open."""
    browser.look(pages["one"], WIDE)
    assert inks.L1.light in browser.run("return document.querySelector('.chart svg').outerHTML")
    browser.screen(600, "dark")
    browser.run("window.dispatchEvent(new Event('resize'))")
    wait = "const done = arguments[0]; setTimeout(done, 300)"
    browser.driver.execute_async_script(wait)
    assert inks.L1.dark in browser.run("return document.querySelector('.chart svg').outerHTML")
    widths = browser.run("return [...document.querySelectorAll('.chart svg')].map((svg) => svg.clientWidth)")
    assert max(widths) < 600
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"


def test_on_paper(browser: Browser, pages: dict[str, Path]) -> None:
    """White, without what one can only click, also from a dark screen."""
    browser.look(pages["all"], 720, "dark", "print")
    html = browser.run("return [...document.querySelectorAll('.chart svg')].map((svg) => svg.outerHTML).join('')")
    assert inks.L1.light in html
    assert inks.L1.dark not in html
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("return document.querySelector('nav').offsetHeight") == 0
    assert browser.run(OVERFLOW) <= 1  # of a column's fraction of a pixel
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
    assert browser.complaints() == []


UNDER_LEGEND = """return [...document.querySelectorAll(".chart")].flatMap((chart) => {
  const option = hicacheReport.charts.get(chart.id).getOption();
  if (!option.grid || !(option.legend && option.legend[0].show !== false)) return [];
  const names = new Set(option.series.map((series) => series.name));
  const legend = [...chart.querySelectorAll("svg text")].filter((text) => names.has(text.textContent.trim()));
  const lowest = Math.max(...legend.map((text) => text.getBoundingClientRect().bottom));
  const top = chart.getBoundingClientRect().top + option.grid[0].top;
  return lowest > top ? [`${chart.id}: ${lowest} > ${top}`] : [];
})"""


@pytest.mark.parametrize("media", ["screen", "print"])
def test_legends_do_not_lie_on_figures(browser: Browser, pages: dict[str, Path], media: str) -> None:
    """On paper they take several lines."""
    browser.look(pages["all"], 720, "light", media)
    assert browser.run(UNDER_LEGEND) == []


def test_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(key: str) -> None:
        ActionChains(browser.driver).send_keys(key).perform()

    browser.look(pages["one"], WIDE)
    press(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    assert browser.run("return document.activeElement.getBoundingClientRect().left") > 0
    for chart in ("hit-rate-0", "misses-0", "tree-0"):
        browser.run("document.getElementById(arguments[0]).focus()", chart)
        press(Keys.ARROW_RIGHT)
        told = browser.run("return document.getElementById(arguments[0]).innerText", chart)
        assert any(word in told for word in ("%", "tok")), chart
    browser.run("document.querySelector('#misses details summary').focus()")
    press(Keys.ENTER)
    assert browser.run("return document.querySelector('#misses table').offsetHeight") > 20


def test_it_writes_numbers_as_the_tables_do(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(pages["one"], WIDE)
    values = [0, 1, 9, 0.00396, 0.5, 3.14159, 42, 99.96, 999.6, 1234, 9999, 12345, 1.5e6, 2.303e12, 7.7e15]
    for name in ("COUNT", "TOKENS", "BYTES", "RATE", "SECONDS", "SPAN", "SHARE", "PLAIN"):
        unit = getattr(units, name)
        written = browser.run(f"return arguments[0].map(window.hicacheReport.units['{unit.name}'])", values)
        assert written == [unit(value) for value in values], name
