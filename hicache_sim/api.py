"""Replay a workload through HiCache: the library behind `hicache replay`.

import hicache_sim
result = hicache_sim.replay("conversation", page_size=64, hicache_ratio=2.0)
print(result.summary["hit_rates"]); result.requests.ttft_s.describe()
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from simpy import Environment

from hicache_ref.account.arrow import table
from hicache_ref.account.files import LOG_ROWS, MOST_SLICES, RunFolder, request_columns
from hicache_ref.account.metrics import Columns, Recorder
from hicache_ref.account.misses import MissReasons
from hicache_ref.account.prefixes import shared_prefixes
from hicache_ref.account.summary import describe_workload, timed_summary
from hicache_ref.build import activator, make_cache, make_engine
from hicache_ref.config.server_args import ServerArgs
from hicache_ref.control.log import EventLog
from workloads import Schedule, Workload, open_workload
from workloads.request import Request

from .build import Plan, RunConfig, make_faulty_store, make_plane, plan
from .run import Simulation
from .summary import facts, untimed_summary
from .untimed import replay as replay_untimed

if TYPE_CHECKING:  # pandas takes as long to import as a short replay; only who looks at the tables needs it.
    import pandas as pd
    from matplotlib.axes import Axes

    from .report.load import RunData

Progress = Callable[[int, float], None]


@dataclass
class Result:
    """A finished replay. `summary` is `summary.json`; the tables are those of the files, empty for untimed replays."""

    plan: Plan
    summary: dict[str, Any]
    arrow_requests: list[pa.Table] = field(default_factory=list, repr=False)
    arrow_timeline: list[pa.Table] = field(default_factory=list, repr=False)
    prefixes: dict[str, Any] | None = field(default=None, repr=False)
    """The largest shared prefixes, as in `tree.json`; None for untimed replays."""

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, columns as in `requests.parquet`."""
        return _frame(self.arrow_requests)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row a sample, columns as in `timeline.parquet`."""
        return _frame(self.arrow_timeline)

    # The figures of `hicache report`, on matplotlib's axes (new ones unless given). They need the tables (`keep`).

    def plot_levels(self, axes: Axes | None = None) -> Axes:
        """Hit rate of each level over time."""
        return _plot("hit_rate", self, axes)

    def plot_sources(self, axes: Axes | None = None) -> Axes:
        """Where prompt tokens came from, over time, stacked."""
        return _plot("sources", self, axes)

    def plot_ttft(self, axes: Axes | None = None) -> Axes:
        """Share of requests by time to first token."""
        return _plot("ttft", self, axes)

    def plot_flow(self, axes: Axes | None = None) -> Axes:
        """Bytes between levels."""
        return _plot("flow", self, axes)

    def plot_links(self, axes: Axes | None = None) -> Axes:
        """Link use over time."""
        return _plot("links", self, axes)

    def plot_misses(self, axes: Axes | None = None) -> Axes:
        """Why tokens missed."""
        return _plot("misses", self, axes)

    def plot_tree(self, axes: Axes | None = None) -> Axes:
        """The largest shared prefixes at the end."""
        return _plot("prefixes", self, axes)

    def report_data(self, label: str = "run") -> RunData:
        """What the report's figures are made of."""
        from .report.load import run_data

        return run_data(label, self.summary, self.arrow_timeline, self.arrow_requests, self.prefixes)


@dataclass(frozen=True)
class Options:
    """How to replay, beside what.

    limit: only so many requests. sequential: one request at a time, each when the one before has ended.
    check: the laws after every step (slow). out: folder for the files. keep: tables in the result; a stream without
    end cannot.
    """

    limit: int | None = None
    sequential: bool = False
    check: bool = False
    out: Path | None = None
    keep: bool = True
    progress: Progress | None = None


def replay(
    workload: str | Workload,
    schedule: Schedule | None = None,
    options: Options | None = None,
    config: RunConfig | None = None,
    **flags: Any,
) -> Result:
    """Replay a trace file, shipped sample or generator (by name), or a `Workload`.

    `flags` are SGLang's, underscored (`hicache_ratio=2.0`); `config` holds them and all the rest instead.
    ValueError: bad input, in one line.
    """
    if isinstance(workload, str):
        workload = open_workload(workload)
    if config is None:
        config = RunConfig(ServerArgs(**flags))
    elif flags:
        raise ValueError("give flags, or a config that holds them, not both")
    made = plan(config)
    runner = _untimed if config.untimed else _timed
    return runner(made, workload, schedule, options or Options())


def _requests(workload: Workload, schedule: Schedule | None, options: Options) -> Iterator[Request]:
    return itertools.islice(workload.requests(schedule), options.limit)


def _described(workload: Workload, schedule: Schedule | None, options: Options) -> dict[str, Any]:
    return describe_workload(workload, schedule, options.limit, options.sequential)


def _untimed(made: Plan, workload: Workload, schedule: Schedule | None, options: Options) -> Result:
    cache, store = make_cache(made.resolved), make_faulty_store(made)
    requests = _requests(workload, schedule, options)
    began_s = time.process_time()
    totals = replay_untimed(_counted(requests, options.progress), cache, store.store if store else None)
    cpu_s = time.process_time() - began_s
    summary = untimed_summary(facts(made, _described(workload, schedule, options)), totals, cpu_s)
    if options.out is not None:
        with RunFolder(options.out) as folder:
            folder.write_summary(summary)
    return Result(made, summary)


def _counted(requests: Iterable[Request], progress: Progress | None) -> Iterable[Request]:
    if progress is None:
        return requests

    def count() -> Iterator[Request]:
        for number, request in enumerate(requests):
            yield request
            progress(number + 1, request.arrival_s)

    return count()


def _timed(made: Plan, workload: Workload, schedule: Schedule | None, options: Options) -> Result:
    with RunFolder(options.out) if options.out is not None else nullcontext() as folder:
        run = _Run(made, workload, schedule, options, folder)
        cpu_s = run.go()
        known = facts(made, _described(workload, schedule, options))
        more = {"events": run.events, "replay_cpu_s": cpu_s}
        summary = timed_summary(known, run.simulation, run.recorder, run.plane.meters, run.simulation.env.now, more)
        prefixes = run.prefixes()
        if folder is not None:
            folder.write_timeline(run.recorder.samples)
            folder.write_perfetto(run.plane.slices or [], run.recorder.samples)
            folder.write_tree(prefixes)
            folder.write_summary(summary)
        return Result(made, summary, run.kept, run.timeline(), prefixes)


class _Run:
    """One timed replay and all its parts."""

    def __init__(
        self, made: Plan, workload: Workload, schedule: Schedule | None, options: Options, folder: RunFolder | None
    ) -> None:
        requests = _requests(workload, schedule, options)
        store = make_faulty_store(made)
        lag = int(made.resolved.bigram_keys)
        reasons = MissReasons(made.page_tokens, lag, store.store.held if store else None)
        env = Environment()
        engine = make_engine(made.resolved, make_cache(made.resolved, reasons.facts))
        if not engine.cache.feeds_store:
            reasons.held = None
        self.plane = make_plane(made, env, store)
        if self.plane.client is not None:
            self.plane.client.stored = reasons.stored
        self._folder, self._options = folder, options
        self.kept: list[pa.Table] = []
        self._stored = store.store.held.__contains__ if store else None
        log = None
        if folder is not None:
            log = EventLog()
            self.plane.slices = []
            self.plane.most_slices = MOST_SLICES
        self._log = log
        self.recorder = Recorder(engine, self.plane.meters, reasons, self._spill, progress=options.progress)
        self.simulation = Simulation(
            env,
            engine,
            self.plane,
            requests,
            activator(made.page_tokens),
            self.recorder,
            log,
            options.check,
            linked=(schedule or workload.schedule).waits,
            max_parallel=1 if options.sequential else workload.max_parallel,
            arrival_s=made.calibration.arrival_s if made.calibration else 0.0,
        )
        self._env = env
        self.events = 0

    def go(self) -> float:
        """Run; the CPU seconds it took."""
        began_s = time.process_time()
        # The heap holds the tree and long columns: collections would walk them over and over and find nothing.
        gc.disable()
        try:
            self.simulation.run()
        finally:
            gc.enable()
        cpu_s = time.process_time() - began_s
        self.recorder.finish(self._env.now)
        if self._folder is not None and self._log is not None:
            self._folder.write_log(self._log)
        self.events = next(self._env._eid)
        return cpu_s

    def _spill(self, rows: Columns) -> None:
        if self._folder is not None:
            self._folder.write_requests(rows)
            if self._log is not None and len(self._log) > LOG_ROWS:
                self._folder.write_log(self._log)
        if self._options.keep:
            self.kept.append(table(request_columns(rows)))

    def prefixes(self) -> dict[str, Any]:
        """What `tree.json` holds: the largest shared prefixes of the tree as it is now."""
        return shared_prefixes(
            self.simulation.engine.cache.tree, self.simulation.engine.cache.shape.page_tokens, self._stored
        )

    def timeline(self) -> list[pa.Table]:
        if not self._options.keep:
            return []
        return [table(self.recorder.samples.arrays)]


def _plot(name: str, result: Result, axes: Axes | None) -> Axes:
    from .report import run_figures
    from .report.plots import plot

    if not result.arrow_timeline:
        raise ValueError("nothing to plot: the replay was untimed, or its tables were not kept (Options.keep)")
    return plot(getattr(run_figures, name)(result.report_data()), axes)


def _frame(tables: list[pa.Table]) -> pd.DataFrame:
    frame: pd.DataFrame = (pa.concat_tables(tables) if tables else pa.table({})).to_pandas()
    return frame
