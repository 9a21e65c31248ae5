"""Sweep a workload over flags, traces and seeds: the library behind `hicache sweep`.

import hicache_sim
swept = hicache_sim.sweep("claude-code", {"hicache_ratio": [1.5, 2, 4], "hicache_write_policy": "all"}, page_size=64)
print(swept.best["line"]); swept.points; swept.plot_pareto()
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import files
from .ask import Ask
from .engines import make_engine
from .errors import SweepError
from .journal import Journal
from .knobs import find_knob
from .metrics import read_goal, read_limit
from .search import Wanted
from .study import Answer, Axis, Study, Watch, run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

GOALS = ("ttft_p99", "host_bytes", "store_bytes")
UNTIMED_GOALS = ("hit_rate", "host_bytes")


@dataclass
class Sweep:
    """A finished sweep. `asked`, `effects`, `best` are the JSON files of its folder; see `sweeps.files`."""

    asked: dict[str, Any]
    effects: dict[str, Any]
    best: dict[str, Any]
    arrow_points: pa.Table

    @cached_property
    def points(self) -> pd.DataFrame:
        """One row a point, columns as in `points.parquet`."""
        frame: pd.DataFrame = self.arrow_points.to_pandas()
        return frame

    @cached_property
    def settings(self) -> pd.DataFrame:
        """One row a setting that ran: its choices, and means of all figures over its conditions."""
        rows = self.points[(self.points.part == "sweep") & self.points.error.isna()]
        rows = rows.astype({"setting": int, "qualifies": bool, "pareto": bool, "best": bool})
        choices = [axis["column"] for axis in self.asked["vary"] if not axis["condition"]]
        figures = list(rows.columns[list(rows.columns).index("best") + 1 :])
        grouped = rows.groupby("setting")
        frame: pd.DataFrame = grouped[[*choices, "qualifies", "pareto", "best"]].first().join(grouped[figures].mean())
        return frame

    def plot_pareto(self, x: str | None = None, y: str | None = None) -> Figure:
        """All settings in the plane of two metrics, the front joined; by default of the first two goals."""
        from .plots import pareto

        return pareto(self, x, y)

    def plot_effects(self, metric: str | None = None) -> Figure:
        """Mean of a metric by value, a panel for each knob; by default of the first goal."""
        from .plots import effects

        return effects(self, metric)

    def plot(self) -> Figure:
        """The front and, beside it, what each flag of the best is worth."""
        from .plots import overview

        return overview(self)

    @staticmethod
    def open(folder: str | Path) -> Sweep:
        """A finished sweep from its folder. SweepError: there is none."""
        folder = Path(folder)
        try:
            read = [json.loads((folder / name).read_text()) for name in (files.SWEEP, files.EFFECTS, files.BEST)]
            return Sweep(read[0], read[1], read[2], pq.read_table(folder / files.POINTS))
        except (OSError, ValueError) as error:
            raise SweepError(f"{folder}: not a finished sweep ({error})", "run hicache sweep --out") from None


def sweep(
    workload: str | Ask,
    vary: Mapping[str, str | Iterable[Any]],
    *,
    search: str = "grid",
    points: int | None = None,
    search_seed: int = 0,
    pareto: Sequence[str] | None = None,
    slo: Sequence[str] = (),
    best: str | None = None,
    worth: bool = True,
    out: str | Path | None = None,
    jobs: int | None = None,
    cluster: str = "local",
    watch: Watch | None = None,
    **flags: Any,
) -> Sweep:
    """Replay `workload` with all that `vary` says, and say which flags to set.

    vary: knob (any option of `hicache replay`; see `sweeps.knobs`) to values, or to text as on the command line.
    search: grid, random or optuna; `points` settings for the latter two. pareto: metrics (`sweeps.metrics`); the first
    decides first. slo: limits like "ttft_p99<2". worth: also run the best without each of its flags. out: folder, by
    which a killed sweep continues. flags: SGLang's, the same for all points; an `Ask` instead of a name holds all the
    rest. ValueError: bad input, in one line, before anything runs. A point that cannot run is a row with its error.
    """
    base = Ask(workload) if isinstance(workload, str) else workload
    for name, value in flags.items():
        knob = find_knob(name)
        base = knob.put(base, knob.read(str(value)))
    goals = tuple(read_goal(each) for each in pareto or (UNTIMED_GOALS if base.untimed else GOALS))
    wanted = Wanted(goals, tuple(read_limit(each) for each in slo), points, search_seed)
    study = Study(base, axes(vary, base), wanted, search, read_goal(best) if best else None, worth)
    began_s = time.monotonic()
    folder = None if out is None else Path(out)
    journal, engine = Journal(folder), make_engine(cluster, jobs)
    try:
        answer = run(study, engine, journal, watch)
    finally:
        engine.close()
    asked = files.asked_of(answer, cluster, engine.workers, time.monotonic() - began_s)
    return _finished(answer, asked, folder)


def _finished(answer: Answer, asked: dict[str, Any], folder: Path | None) -> Sweep:
    if folder is not None:
        files.write(folder, answer, asked)
    return Sweep(asked, files.effects_of(answer), files.best_of(answer), files.points_table(answer))


def axes(vary: Mapping[str, str | Iterable[Any]], base: Ask) -> tuple[Axis, ...]:
    """The knobs and their domains. SweepError and others: unknown names, values that cannot be read, nothing varied."""
    if not vary:
        raise SweepError("nothing to vary", "say what: --vary hicache-ratio=1.5,2,4")
    found = [(find_knob(name), wanted) for name, wanted in vary.items()]
    profiles = {base.profile}
    for knob, wanted in found:
        if knob.name == "profile":
            profiles |= set(knob.domain(wanted, profiles).values())
    return tuple(Axis(knob, knob.domain(wanted, profiles)) for knob, wanted in found)
