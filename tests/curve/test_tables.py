"""What `hicache curve` prints at 80 columns, and what it draws."""

from __future__ import annotations

import re
from io import StringIO
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from hicache_sim.curve import Wanted, study
from hicache_sim.curve.study import Study
from hicache_sim.curve.tables import LEAST_WAY, tables
from workloads import open_workload


@pytest.fixture(scope="module")
def done() -> Study:
    wanted = Wanted(
        points=3, ratios=(1.0, 2.0), evictions=("lru", "belady"), writes=("write_through", "write_through_selective")
    )
    return study(islice(open_workload("conversation").requests(None), 300), 512, wanted)


def test_eighty_columns_hold_everything(done: Study) -> None:
    screen = StringIO()
    for table in tables(done):
        Console(file=screen, width=80, highlight=False).print(table)
    text = screen.getvalue()
    lines = text.splitlines()
    assert max(map(len, lines[1:])) <= 80
    strategies = text.partition("Strategies")[2]
    sizes = {(row["l1_tokens"], row["l2_ratio"]) for row in done.strategy_rows}
    assert sum(" ×: " in line for line in lines) == len(sizes) == 6
    for row in done.strategy_rows:
        name = f"{row['eviction']}{'†' if row['reads_future'] else ''}, {row['write']} "
        mine = [line for line in strategies.splitlines() if name in line and f"{100 * row['rate']:.2f}" in line]
        assert mine, name
    shown = [row for row in done.strategy_rows if row["best_rate"] - row["lru_rate"] >= LEAST_WAY]
    assert len(re.findall(r"\d %", strategies)) == len(shown) < len(done.strategy_rows)


def test_the_picture_tells_strategies_apart(done: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    done.plot(tmp_path / "curve.png")
    monkeypatch.undo()
    (figure,) = drawn
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.axes[1].get_lines()]
    assert len(looks) == len(set(looks)) == 5
    pyplot.close(figure)
