"""The figures of a run.

Rules of this file
- One function a figure, from a run to an object that draws itself. Each says in its `help` what is drawn.
- Sums over time are read off the timeline by interpolation: a window is as exact as the samples around its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boxes import boxes_of
from .clock import Clock, clock_of
from .inks import BOTH, COMPUTED, L1, L2, L3, TOTAL, Ink, series_ink
from .kinds import Bars, Figure, Flow, Lines, Prefixes, Series
from .load import RunData
from .units import COUNT, RATE, SECONDS, SHARE, TOKENS

WINDOWS = 80
CURVE_POINTS = 200

Array = NDArray[np.float64]


def hit_rate(run: RunData) -> Lines:
    """Shares of prompt tokens by level, over time; a window holds equally many prompt tokens."""
    x, label, hits, asked = _token_windows(run)
    rates = {name: _list(values / asked) for name, values in hits.items()}
    total = _list(sum(hits.values(), np.zeros(len(asked))) / asked) if len(asked) else []
    series = [Series(name, ink, x, rates[name]) for name, ink in _sources()[:3] if any(rates[name])]
    series.append(Series("all levels", TOTAL, x, total))
    what = (
        "Share of prompt tokens found on each level when their request was first admitted. "
        f"Each of up to {WINDOWS} windows covers the same number of prompt tokens. "
        "What was prefetched for the request itself counts as L3's."
    )
    return Lines("hit-rate", "Hit rate over time", what, label, "share of prompt tokens", tuple(series), y_top=1.0)


def sources(run: RunData) -> Lines:
    """Prompt tokens a second by where they came from, stacked."""
    clock = clock_of(run.timeline)
    edges, x = _time_windows(clock)
    width_s = np.diff(edges)
    columns = _hit_columns(run.timeline) | {"prompt_tokens": run.timeline["prompt_tokens"]}
    found = {name: _between(clock, column, edges) for name, column in columns.items()}
    asked = found.pop("prompt_tokens")
    found["computed"] = np.maximum(asked - sum(found.values(), np.zeros(len(asked))), 0.0)
    series = tuple(Series(name, ink, x, _list(found[name] / width_s)) for name, ink in _sources() if found[name].any())
    what = (
        "Prompt tokens of admitted requests per second, by where they came from: matched on L1, loaded back from L2, "
        "prefetched from L3 for the request itself, or computed."
    )
    title = "Where prompt tokens came from"
    return Lines("sources", title, what, clock.label, "prompt tokens/s", series, y_unit=COUNT, stacked=True)


def ttft(run: RunData) -> Lines:
    """Time to first token: share of requests that had it by then."""
    return ttft_of([(run.label, L1, run.ttft_s)])


def ttft_of(curves: list[tuple[str, Ink, Array]]) -> Lines:
    """The same of several runs."""
    shares = np.linspace(0.0, 1.0, CURVE_POINTS)
    series = tuple(
        Series(name, ink, _list(np.maximum(np.quantile(times, shares), 1e-6)), _list(shares))
        for name, ink, times in curves
        if len(times)
    )
    what = (
        "Share of requests whose first token came within this time of their arrival (logarithmic). "
        "Where the curve crosses 50 % is the median, 99 % the p99."
    )
    title = "Time to first token"
    labels = ("time to first token", "share of requests")
    return Lines("ttft", title, what, *labels, series, x_unit=SECONDS, log_x=True, y_top=1.0)


def flow(run: RunData) -> Flow:
    """Bytes between levels: what was read on the left of L1, what was written on its right."""
    levels, tokens, config = run.summary["levels"], run.summary["tokens"], run.summary["config"]
    token_bytes = config["kv_bytes_per_token_per_rank"] * config.get("attention_ranks", 1)
    store = levels.get("L3", {"read_bytes": 0, "written_bytes": 0})
    moves = (
        ("L3 read", "L2 read", store["read_bytes"]),
        ("L2 read", "L1", levels["L1"]["written_bytes"]),
        ("computed", "L1", (tokens["prefilled"] + tokens["output"]) * token_bytes),
        ("L1", "L2 written", levels["L2"]["written_bytes"]),
        ("L2 written", "L3 written", store["written_bytes"]),
    )
    places = (
        ("L3 read", L3, 0),
        ("L2 read", L2, 1),
        ("computed", COMPUTED, 1),
        ("L1", L1, 2),
        ("L2 written", L2, 3),
        ("L3 written", L3, 4),
    )
    what = (
        "Bytes moved during the whole run, on all ranks. Left of L1: what was fetched from the store, loaded from host "
        "memory, and computed. Right of it: what was backed up to host memory and written to the store."
    )
    kept = tuple((a, b, float(value)) for a, b, value in moves if value > 0)
    return Flow("flow", "Bytes between levels", what, places, kept)


def links(run: RunData) -> Lines:
    """How much of what each link can carry it carried, over time."""
    clock = clock_of(run.timeline)
    edges, x = _time_windows(clock)
    width_s, makespan_s = np.diff(edges), run.summary["run"]["makespan_s"]
    known = {name: run.summary["links"][name] for name in run.links}
    rates = {name: _between(clock, run.timeline[f"{name}_bytes"], edges) / width_s for name in known}
    shares = all(link["use"] for link in known.values())
    what = "Bytes carried per second, averaged over windows of equal time."
    if shares:
        # A link's full rate: what it carried, over the share of the makespan that this took at full rate.
        rates = {
            name: rate * link["use"] * makespan_s / link["bytes"]
            for (name, link), rate in zip(known.items(), rates.values(), strict=True)
        }
        what = "Bytes carried, as a share of what the link could have carried; averaged over windows of equal time."
    series = tuple(Series(name, series_ink(at), x, _list(rate)) for at, (name, rate) in enumerate(rates.items()))
    unit, words = (SHARE, "share of full rate") if shares else (RATE, "bytes/s")
    return Lines("links", "Link use over time", what, clock.label, words, series, y_unit=unit)


def occupancy(run: RunData) -> Lines:
    """Tokens held by L1 and L2, over time, as shares of their capacity."""
    clock = clock_of(run.timeline)
    kept = _thinned(len(clock.times_s))
    x = _list(clock.times_s[kept] / clock.divisor_s)
    levels = run.summary["levels"]
    parts = (
        ("L1 used", L1, "l1_used_tokens", levels["L1"]["capacity_tokens"]),
        ("L1 held by requests", BOTH, "l1_locked_tokens", levels["L1"]["capacity_tokens"]),
        ("L2 used", L2, "l2_used_tokens", levels["L2"]["capacity_tokens"]),
        ("L3 used", L3, "l3_pages", _store_pages(run)),
    )
    series = tuple(
        Series(words, ink, x, _list(run.timeline[column][kept] / capacity))
        for words, ink, column, capacity in parts
        if capacity
    )
    what = "Tokens on each level as a share of its capacity. Held by requests: in use by running ones, not evictable."
    return Lines("occupancy", "How full the levels are", what, clock.label, "share of capacity", series, y_top=1.0)


def queue(run: RunData) -> Lines:
    """Requests waiting and running."""
    clock = clock_of(run.timeline)
    kept = _thinned(len(clock.times_s))
    x = _list(clock.times_s[kept] / clock.divisor_s)
    series = tuple(
        Series(words, ink, x, _list(run.timeline[words][kept]))
        for words, ink in (("running", series_ink(0)), ("waiting", series_ink(1)))
    )
    what = (
        "Requests in the queue, and requests being prefilled or decoded. Samples are taken before the scheduler acts, "
        "so a request that has just come is waiting."
    )
    return Lines("queue", "Requests waiting and running", what, clock.label, "requests", series, y_unit=COUNT)


def misses(run: RunData) -> Bars:
    """Why tokens missed."""
    return misses_of([(run.label, L1, run.summary["misses"])])


def misses_of(runs: list[tuple[str, Ink, Mapping[str, int]]]) -> Bars:
    """The same of several runs; reasons that never occurred in any are left out."""
    reasons = dict.fromkeys(reason for _, _, found in runs for reason in found)
    rows = tuple(reason for reason in reasons if any(found.get(reason) for _, _, found in runs))
    parts = tuple((name, ink, [found.get(reason, 0) for reason in rows]) for name, ink, found in runs)
    what = "Prompt tokens that had to be computed, each with its one reason; they add up to all computed prompt tokens."
    return Bars("misses", "Why tokens missed", what, "prompt tokens", rows, parts, TOKENS)


def shares_of(runs: list[RunData]) -> Bars:
    """Where prompt tokens came from, a row a run."""
    rows = tuple(run.label for run in runs)
    columns = {
        "L1": [run.summary["hit_rates"]["device"] for run in runs],
        "L2": [run.summary["hit_rates"]["host"] for run in runs],
        "L3": [run.summary["hit_rates"]["storage"] for run in runs],
    }
    columns["computed"] = [1.0 - run.summary["hit_rates"]["total"] for run in runs]
    parts = tuple((name, ink, columns[name]) for name, ink in _sources())
    what = "Share of prompt tokens matched on L1, loaded back from L2, prefetched from L3 for the request, or computed."
    title = "Where prompt tokens came from, in all"
    return Bars("shares", title, what, "share of prompt tokens", rows, parts, SHARE, stacked=True, most=1.0)


def prefixes(run: RunData) -> Prefixes:
    """The largest shared prefixes, as boxes."""
    shown = run.prefixes["shown"] if run.prefixes is not None else []
    boxes = tuple(boxes_of(shown))
    inks = {"L1": L1, "L1 and L2": BOTH, "L2": L2, "gone": COMPUTED}
    columns = ("tokens × uses", "starts at", "where", "in L3", "hits", "continuations", "below, not drawn")
    what = (
        "The radix tree when the run ended: its stretches with the most tokens × uses, and what is above them. A box "
        "is a stretch of prompt, what continues it stands right of it. Its width is its tokens, its height how often "
        "it was used, so its area is what sharing it is worth. Uses: insertions that ran over it, about two a request, "
        "or its different continuations if there are more."
    )
    return Prefixes("tree", "The largest shared prefixes", what, boxes, inks, columns)


RunFigure = Callable[[RunData], Figure]

TIMED: tuple[RunFigure, ...] = (hit_rate, sources, ttft, flow, links, occupancy, queue, misses, prefixes)
"""Figures of a timed run, in the order of the page."""


def all_of(run: RunData) -> list[Figure]:
    """Every figure that has something to draw."""
    if not run.timed:
        return [shares_of([run])]
    return [figure for figure in (make(run) for make in TIMED) if not figure.empty]


# Windows


def _sources() -> tuple[tuple[str, Ink], ...]:
    return ("L1", L1), ("L2", L2), ("L3", L3), ("computed", COMPUTED)


def _hit_columns(timeline: Mapping[str, Array]) -> dict[str, Array]:
    """Tokens found on each level, sums since the start."""
    stored = timeline["storage_hit_tokens"]
    return {"L1": timeline["device_hit_tokens"], "L2": timeline["loaded_tokens"] - stored, "L3": stored}


def _token_windows(run: RunData) -> tuple[list[float], str, dict[str, Array], Array]:
    """Middles of windows with equally many prompt tokens, the axis, tokens found in each by level, tokens asked for."""
    asked, clock = run.timeline["prompt_tokens"], clock_of(run.timeline)
    count = min(WINDOWS, len(np.unique(asked)) - 1)
    if count < 1:
        return [], clock.label, dict.fromkeys(("L1", "L2", "L3"), np.empty(0)), np.empty(0)
    edges = np.linspace(asked[0], asked[-1], count + 1)
    middle = np.interp((edges[:-1] + edges[1:]) / 2, asked, clock.times_s)
    hits = {level: np.diff(np.interp(edges, asked, column)) for level, column in _hit_columns(run.timeline).items()}
    return _list(middle / clock.divisor_s), clock.label, hits, np.diff(edges)


def _time_windows(clock: Clock) -> tuple[Array, list[float]]:
    """Edges of windows of equal time in seconds, their middles on the axis."""
    edges = np.linspace(0.0, max(float(clock.times_s[-1]), 1e-9), WINDOWS + 1)
    return edges, _list((edges[:-1] + edges[1:]) / 2 / clock.divisor_s)


def _between(clock: Clock, column: Array, edges: Array) -> Array:
    """What a sum since the start grew by in each window."""
    sums = np.interp(edges, clock.times_s, column)
    sums[0] = 0.0  # what the first instant brought belongs to the first window
    return np.maximum(np.diff(sums), 0.0)


def _thinned(rows: int) -> slice:
    return slice(None, None, max(rows // 400, 1))


def _store_pages(run: RunData) -> float:
    capacity = run.summary["levels"].get("L3", {}).get("capacity_tokens")
    return capacity / run.summary["config"]["page_tokens"] if capacity else 0.0


def _list(values: Any) -> list[float]:
    """Plain numbers, short ones: six digits are enough to draw."""
    return [float(f"{value:.6g}") for value in values]
