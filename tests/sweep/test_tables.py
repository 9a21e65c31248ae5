"""What `hicache sweep` prints: whole figures at 80 columns, and no row twice."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from hicache_sim import Sweep, sweep
from hicache_sim.sweeps.ask import Ask
from hicache_sim.sweeps.tables import show

BASE = Ask(
    "bench-multiturn",
    parameters={"clients": 6, "rounds": 4},
    flags={"page_size": 64, "max_total_tokens": 4000, "hicache_storage_backend": "mooncake"},
)


@pytest.fixture(scope="module")
def swept() -> Sweep:
    """write_back keeps nothing in L3 here, so that all prefetch policies are one."""
    vary = {
        "hicache_ratio": [1.5, 4],
        "hicache_write_policy": ["write_back", "write_through_selective"],
        "hicache_storage_prefetch_policy": ["wait_complete", "timeout"],
    }
    return sweep(BASE, vary, slo=["ttft_p99<60"], jobs=1)


def shown(swept: Sweep, width: int) -> str:
    screen = StringIO()
    show(swept, Console(file=screen, width=width, highlight=False))
    return screen.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off(swept: Sweep, width: int) -> None:
    text = shown(swept, width)
    assert "…" not in text
    tables = text.partition("Set these flags")[0].splitlines()
    assert max(map(len, tables)) <= width
    assert sum("●" in line for line in tables if "best" not in line) == 1
    for value in swept.effects["knobs"]["hicache_write_policy"]["values"]:
        assert value["value"] in text


def test_what_reads_the_same_is_shown_once(swept: Sweep) -> None:
    front = swept.settings[swept.settings.pareto | swept.settings.best]
    text = shown(swept, 120).partition("What each knob does")[0]
    rows = [line for line in text.splitlines()[1:] if re.search(r"\d m?s\b", line)]
    figures = [tuple(line.split()[-10:]) for line in rows]
    assert len(figures) == len(set(figures)) < len(front)
    assert f"{len(front) - len(figures)} equal to one of these left out" in re.sub(r"\s+", " ", text)


def test_a_flag_names_the_default_that_it_replaces(swept: Sweep) -> None:
    text = shown(swept, 120).partition("What each flag buys")[2]
    rows = {row["flag"]: row for row in swept.best["worth"]}
    assert rows["--page-size"]["default"] is None
    changed = next(row for row in rows.values() if type(row["default"]) is float)
    assert f"default {changed['default']:g}" in text
