"""Figures for papers, and from Python."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot

import hicache_sim
from hicache_sim.api import Options, replay
from hicache_sim.report import build, run_figures, sweep_figures
from hicache_sim.report.load import RunData
from hicache_sim.report.plots import FORMATS, plot

PLOTS = ("plot_levels", "plot_sources", "plot_ttft", "plot_flow", "plot_links", "plot_misses", "plot_tree")


@pytest.fixture(scope="module")
def result() -> hicache_sim.Result:
    return replay("chat", options=Options(limit=60), max_total_tokens=50_000, page_size=64)


def test_results_plot_themselves(result: hicache_sim.Result) -> None:
    before = mpl.rcParams["font.size"]
    for name in PLOTS:
        axes = getattr(result, name)()
        assert axes.lines or axes.patches or axes.collections
        pyplot.close(axes.figure)
    assert mpl.rcParams["font.size"] == before


def test_on_axes_of_one_s_own(result: hicache_sim.Result) -> None:
    figure, axes = pyplot.subplots()
    assert result.plot_misses(axes) is axes
    pyplot.close(figure)


def test_without_tables_there_is_nothing_to_plot() -> None:
    result = replay("chat", options=Options(limit=5, keep=False), max_total_tokens=50_000)
    with pytest.raises(ValueError, match="keep"):
        result.plot_levels()


def test_several_runs_have_a_folder_each(
    run: RunData, other: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_figures, "TIMED", (run_figures.misses,))
    monkeypatch.setattr(build, "together", lambda runs: [run_figures.shares_of(runs)])
    written = build.Report([run, other]).save_figures(tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in written}
    assert names == {f"{name}.{form}" for name in ("shares", "first/misses", "second/misses") for form in FORMATS}
    assert all(path.stat().st_size > 2000 for path in written)


def test_a_sweep_has_its_figures(folders: Path) -> None:
    (data,) = build.read([folders / "sweep"]).sweeps
    figures = {figure.name: figure for figure in sweep_figures.all_of(data)}
    assert {"pareto-ttft_p99-host_bytes", "parallel", "explained", "effect-hit_rate"} <= set(figures)
    assert len(data.settings) == 4
    for figure in figures.values():
        axes = plot(figure)
        assert axes.lines or axes.patches
        pyplot.close(axes.figure)
