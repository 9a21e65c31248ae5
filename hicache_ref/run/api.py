"""Run a workload on real memory: the library behind `hicache run`.

from hicache_ref.run.api import run
result = run("claude-code", limit=100, page_size=64, hicache_ratio=2.0)
print(result.summary["hit_rates"])
"""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workloads import Schedule, Workload, open_workload

from ..account.files import LOG_ROWS, MOST_SLICES, RunFolder, request_columns
from ..account.metrics import Columns, Recorder
from ..account.misses import MissReasons
from ..account.prefixes import shared_prefixes
from ..account.summary import Facts, describe_workload, sizes, timed_summary
from ..build import activator, make_cache, make_engine
from ..config.server_args import ServerArgs
from ..control.active import Active
from ..control.cache import HiCache
from ..control.log import EventLog, Fingerprint
from ..data.storage.client import StorageClient, StoreFailed
from ..ranks.figures import figures, share_links, together
from ..ranks.processes import Ranks
from ..ranks.seats import ALONE, Place, Seat
from .clock import WallClock
from .driver import RealRun, RunFailed
from .rows import Listener, rows_of
from .setup import Machine, RealConfig, RealPlan, make_machine, plan, store_client
from .store_watch import OpWatch, StoreWatch
from .texts import Texts

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Options:
    """How to run, beside what. Fields as in `hicache_sim.api.Options`; listener: told of all logits, by rank 0.

    client: a store of one's own, in place of the one the flags name; for a run on one rank.
    ranks: processes for several ranks that serve one run after the other, in place of new ones.
    """

    limit: int | None = None
    sequential: bool = False
    check: bool = False
    out: Path | None = None
    progress: Progress | None = None
    listener: Listener | None = None
    client: StorageClient | None = None
    ranks: Ranks | None = None


@dataclass
class Result:
    """A finished run. `summary` is `summary.json`; `requests` columns as in `requests.parquet`, by name."""

    plan: RealPlan
    summary: dict[str, Any]
    requests: dict[str, Any]
    machine: Machine
    """Closed, but its pools still hold what they held."""
    cache: HiCache
    """What was decided about them, as the run has left it."""


def run(
    workload: str | Workload,
    schedule: Schedule | None = None,
    options: Options | None = None,
    config: RealConfig | None = None,
    **flags: Any,
) -> Result:
    """Run a trace file, shipped sample or generator (by name), or a `Workload`, on real memory.

    `flags` are SGLang's, underscored; `config` holds them and all the rest instead. ValueError: bad input, in one line.
    RunFailed: the device or a copy has failed, or a rank has died.

    With several ranks (tp_size) the others are processes that import the calling script: it runs below
    `if __name__ == "__main__":`.
    """
    if isinstance(workload, str):
        workload = open_workload(workload)
    if config is None:
        config = RealConfig(ServerArgs(**flags))
    elif flags:
        raise ValueError("give flags, or a config that holds them, not both")
    made, chosen = plan(config), options or Options()
    follow = Follow(made, workload, schedule, chosen.limit, chosen.sequential, chosen.check)
    with (
        RunFolder(chosen.out) if chosen.out is not None else nullcontext() as folder,
        _lead(follow, chosen) as seat,
    ):
        return _Run(made, workload, schedule, chosen, folder, seat).go()


@contextmanager
def _lead(follow: Follow, options: Options) -> Iterator[Seat]:
    """The seat of this process, in which the others follow."""
    size, config = follow.made.resolved.attention_tp_size, follow.made.config
    if size == 1:
        yield ALONE
        return
    if options.client is not None:
        raise ValueError(f"Options.client is the store of one rank, and there are {size}: name a store by flags")
    if options.ranks is not None and options.ranks.size != size:
        raise ValueError(f"Options.ranks are {options.ranks.size}, and the run has {size}")
    with (
        nullcontext(options.ranks) if options.ranks is not None else Ranks(size) as ranks,
        ranks.lead(follow, config.device, config.exact) as seat,
    ):
        yield seat


@contextmanager
def _fresh_store(made: RealPlan, rank: int) -> Iterator[None]:
    """The store is emptied before the run and after it, if it is to be fresh. RunFailed: it cannot be."""
    fresh = made.config.fresh_store
    if fresh:
        _empty(made, rank)
    yield
    if fresh:
        _empty(made, rank)


def _empty(made: RealPlan, rank: int) -> None:
    """By a client of its own: that of a run is closed with it."""
    client = store_client(made, rank)
    if client is not None:
        try:
            client.clear()
        except StoreFailed as error:
            raise RunFailed(f"--fresh-store: {error}") from None
        finally:
            client.close()


@dataclass(frozen=True)
class Follow:
    """The run as every rank but 0 does it: without output. Can be pickled if the workload can."""

    made: RealPlan
    workload: Workload
    schedule: Schedule | None
    limit: int | None
    sequential: bool
    check: bool

    def __call__(self, seat: Seat) -> None:
        options = Options(self.limit, self.sequential, self.check)
        _Run(self.made, self.workload, self.schedule, options, None, seat).go()


class _Run:
    """One run and all its parts."""

    def __init__(
        self,
        made: RealPlan,
        workload: Workload,
        schedule: Schedule | None,
        options: Options,
        folder: RunFolder | None,
        seat: Seat,
    ) -> None:
        self._made, self._workload, self._schedule = made, workload, schedule
        self._options, self._folder, self._seat = options, folder, seat
        self._kept: dict[str, list[Any]] = {}
        self._fingerprint = Fingerprint()
        self._log = EventLog() if folder is not None else None

    def go(self) -> Result:
        made, options = self._made, self._options
        resolved = made.resolved
        texts = Texts(made.page_tokens, made.spec.shape.vocab, resolved.bigram_keys)
        make_rows = rows_of(texts, made.page_tokens, options.listener)
        slices = MOST_SLICES if self._folder is not None else 0
        clock, seat = WallClock(), self._seat
        with (
            _fresh_store(made, seat.rank),
            make_machine(made, make_rows, slices, clock.now_s, options.client, seat) as machine,
        ):
            with seat.sit(machine.plane, clock, self._fingerprint) as place:
                loop, recorder = self._loop(machine, place, texts)
                place.start()
                began_s = time.process_time()
                loop.run()
                cpu_s = time.process_time() - began_s
            recorder.finish(loop.last_s)
            if machine.plane.workers is not None:
                machine.plane.workers.close(made.config.store_timeout_s)
            return self._result(machine, loop, recorder, cpu_s)

    def _loop(self, machine: Machine, place: Place, texts: Texts) -> tuple[RealRun, Recorder]:
        made, options, plane = self._made, self._options, place.plane
        requests = itertools.islice(self._workload.requests(self._schedule), options.limit)
        watch = StoreWatch(plane, texts)
        held = watch if plane.capabilities.storage else None
        reasons = MissReasons(made.page_tokens, int(made.resolved.bigram_keys), held)
        watch.stored = reasons.stored
        engine = make_engine(made.resolved, make_cache(made.resolved, reasons.facts, texts))
        if not engine.cache.feeds_store:
            reasons.held = None
        recorder = Recorder(engine, machine.plane.meters, reasons, self._spill, progress=options.progress)
        loop = RealRun(
            engine,
            plane,
            requests,
            texts.activator(activator(made.page_tokens)),
            _Forgetting(recorder, texts),
            self._log,
            options.check,
            linked=(self._schedule or self._workload.schedule).waits,
            max_parallel=1 if options.sequential else self._workload.max_parallel,
            clock=place.clock,
            door=OpWatch(watch, self._fingerprint),
        )
        return loop, recorder

    def _spill(self, rows: Columns) -> None:
        for name, column in request_columns(rows).items():
            self._kept.setdefault(name, []).extend(column.tolist())
        if self._folder is not None:
            self._folder.write_requests(rows)
            if self._log is not None and len(self._log) > LOG_ROWS:
                self._folder.write_log(self._log)

    def _result(self, machine: Machine, loop: RealRun, recorder: Recorder, cpu_s: float) -> Result:
        made, plane = self._made, machine.plane
        facts = Facts(made.resolved, describe(made), self._described(), made.stored_page_bytes)
        ranks = self._seat.gather(figures(self._seat.rank, self._fingerprint, cpu_s, machine))
        summary = timed_summary(facts, loop, recorder, plane.meters, loop.last_s, together(ranks))
        share_links(summary["links"], ranks)
        if self._folder is not None:
            if self._log is not None:
                self._folder.write_log(self._log)
            self._folder.write_timeline(recorder.samples)
            self._folder.write_perfetto(plane.slices, recorder.samples)
            self._folder.write_tree(shared_prefixes(loop.engine.cache.tree, made.page_tokens))
            self._folder.write_summary(summary)
        return Result(made, summary, self._kept, machine, loop.engine.cache)

    def _described(self) -> dict[str, Any]:
        return describe_workload(self._workload, self._schedule, self._options.limit, self._options.sequential)


class _Forgetting:
    """An observer that lets go of the text of each request that has ended."""

    def __init__(self, recorder: Recorder, texts: Texts) -> None:
        self._recorder = recorder
        self._texts = texts
        self.admitted = recorder.admitted
        self.stepped = recorder.stepped

    def ended(self, request: Active) -> None:
        self._texts.forget(request.id)
        self._recorder.ended(request)


def describe(made: RealPlan) -> dict[str, Any]:
    """The configuration, as it runs."""
    config, shape = made.config, made.spec.shape
    return sizes(made.resolved) | {
        "profile": config.profile,
        "rules": dict(config.rules),
        "model": shape.name,
        "parameters": shape.parameters,
        "layers": shape.layers,
        "vocab": shape.vocab,
        "attention": shape.attention.name,
        "model_scale": config.model_scale,
        "hardware": f"{config.device}: {_device_name(made.device)}",
        "device": config.device,
        "dtype": str(made.dtype).removeprefix("torch."),
        "attention_kernels": [made.kernels.prefill, made.kernels.decode],
        "exact": config.exact,
        "poison": config.poison,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "seed": config.seed,
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
