"""The figures of a run say what its summary says."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_sim.report import compare, run_figures, tiles
from hicache_sim.report.clock import clock_of
from hicache_sim.report.load import RunData


def series(figure: Any) -> dict[str, Any]:
    return {each.name: np.array(each.y) for each in figure.series}


def test_windows_of_the_hit_rate_average_to_the_run_s(run: RunData) -> None:
    """They hold equally many prompt tokens."""
    rates = series(run_figures.hit_rate(run))
    totals = run.summary["hit_rates"]
    assert rates["all levels"].mean() == pytest.approx(totals["total"], rel=1e-4)
    for name, key in (("L1", "device"), ("L2", "host"), ("L3", "storage")):
        found = rates[name].mean() if name in rates else 0.0
        assert found == pytest.approx(totals[key], rel=1e-4)


def test_sources_add_up_to_the_prompt_tokens(run: RunData) -> None:
    figure = run_figures.sources(run)
    clock = clock_of(run.timeline)
    width_s = clock.times_s[-1] / run_figures.WINDOWS
    tokens = {name: rates.sum() * width_s for name, rates in series(figure).items()}
    assert sum(tokens.values()) == pytest.approx(run.summary["tokens"]["input"], rel=1e-4)
    assert tokens["computed"] == pytest.approx(run.summary["tokens"]["computed"], rel=1e-4)


def test_ttft_curve_passes_through_the_quantiles(run: RunData) -> None:
    (curve,) = run_figures.ttft(run).series
    assert np.interp(0.5, curve.y, curve.x) == pytest.approx(run.summary["latency"]["ttft"]["p50_s"], rel=0.02)
    assert (np.diff(curve.x) >= 0).all()


def test_flow_is_the_summary_s_bytes(run: RunData) -> None:
    moves = {(a, b): value for a, b, value in run_figures.flow(run).moves}
    levels, tokens, config = run.summary["levels"], run.summary["tokens"], run.summary["config"]
    assert moves["L1", "L2 written"] == levels["L2"]["written_bytes"]
    assert moves["L2 written", "L3 written"] == levels["L3"]["written_bytes"]
    assert moves["L2 read", "L1"] == levels["L1"]["written_bytes"]
    assert moves["computed", "L1"] == (tokens["prefilled"] + tokens["output"]) * config["kv_bytes_per_token_per_rank"]


def test_link_use_averages_to_the_run_s(run: RunData) -> None:
    shares = series(run_figures.links(run))
    cut = clock_of(run.timeline).times_s[-1] / run.summary["run"]["makespan_s"]
    for name, values in shares.items():
        assert values.mean() * cut == pytest.approx(run.summary["links"][name]["use"], rel=1e-3)


def test_a_link_of_unknown_rate_is_shown_in_bytes(run: RunData) -> None:
    links = {name: link | {"use": None} for name, link in run.summary["links"].items()}
    figure = run_figures.links(replace(run, summary={**run.summary, "links": links}))
    assert figure.y_label == "bytes/s"
    assert figure.top > 1.0


def test_misses_add_up_to_the_computed_tokens(run: RunData) -> None:
    ((_, _, tokens),) = run_figures.misses(run).parts
    assert sum(tokens) == run.summary["tokens"]["computed"]
    assert all(tokens)


def test_boxes_lie_right_of_their_parents_and_within_their_height(run: RunData) -> None:
    assert run.prefixes is not None
    boxes, shown = run_figures.prefixes(run).boxes, run.prefixes["shown"]
    assert len(boxes) == len(shown) > 3
    for box, node in zip(boxes, shown, strict=True):
        assert box.right - box.left == node["tokens"]
        assert box.high - box.low >= max(node["uses"], 1)
        if node["parent"] >= 0:
            parent = boxes[node["parent"]]
            assert box.left == parent.right
            assert parent.low <= box.low < box.high <= parent.high + 1e-9
    for one, two in combinations(boxes, 2):
        assert one.right <= two.left or one.high <= two.low or two.high <= one.low or one.left >= two.right


@given(st.lists(st.tuples(st.floats(0.1, 100), st.booleans()), min_size=2, max_size=30), st.floats(0, 1e6))
def test_pauses_are_cut_and_work_never_is(steps: list[tuple[float, bool]], pause_s: float) -> None:
    times, busy = [0.0], [0.0]
    for length_s, works in [*steps, (pause_s, False), (5.0, True)]:
        times.append(times[-1] + length_s)
        busy.append(busy[-1] + (length_s if works else 0.0))
    clock = clock_of({"time_s": np.array(times), "compute_busy_s": np.array(busy)})
    kept = np.diff(clock.times_s)
    assert (kept <= np.diff(times) + 1e-6).all()
    assert (kept >= np.diff(busy) - 1e-6).all()
    assert ("cut out" in clock.label) == (clock.times_s[-1] < times[-1] * 0.999)
    if pause_s > 0.5 * times[-1] and pause_s > 100:
        assert "cut out" in clock.label


def test_runs_together_stand_on_one_figure(run: RunData, other: RunData) -> None:
    figures = {figure.name: figure for figure in compare.together([run, other])}
    assert set(figures) == {"shares", "hit-rates", "ttft", "misses"}
    assert figures["shares"].rows == ("first", "second")  # type: ignore[attr-defined]
    assert compare.together([run]) == []


def test_a_run_without_requests_has_figures_that_are_empty(run: RunData) -> None:
    timeline = {name: np.zeros(1) for name in run.timeline}
    nothing = replace(run, timeline=timeline, ttft_s=np.empty(0), prefixes=None)
    assert "hit-rate" not in {figure.name for figure in run_figures.all_of(nothing)}


def test_key_figures_say_what_is_better(run: RunData, other: RunData) -> None:
    rows = {row.label: row for row in tiles.differences([run, other])}
    base, changed = run.summary["hit_rates"]["total"], other.summary["hit_rates"]["total"]
    assert rows["Hit rate"].changes[0] == ""
    assert rows["Hit rate"].verdicts[1] == ("better" if changed > base else "worse")
    assert "points" in rows["Hit rate"].changes[1]
    same = tiles.differences([run, run])
    assert {verdict for row in same for verdict in row.verdicts} == {""}
