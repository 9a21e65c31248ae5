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
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workloads import Schedule, Workload, open_workload
from workloads.request import Request

from ..account.files import LOG_ROWS, MOST_SLICES, RunFolder, request_columns
from ..account.metrics import Columns, Recorder
from ..account.misses import MissReasons
from ..account.summary import Facts, describe_workload, sizes, timed_summary
from ..build import activator, make_cache, make_engine
from ..config.server_args import ServerArgs
from ..control.active import Active
from ..control.log import EventLog, Fingerprint
from ..data.storage.client import StorageClient
from .clock import WallClock
from .driver import RealRun
from .rows import Listener, rows_of
from .setup import Machine, RealConfig, RealPlan, make_machine, plan
from .store_watch import OpWatch, StoreWatch
from .texts import Texts

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Options:
    """How to run, beside what. Fields as in `hicache_sim.api.Options`; listener: told of all logits.

    client: a store of one's own, in place of the one the flags name.
    """

    limit: int | None = None
    sequential: bool = False
    check: bool = False
    out: Path | None = None
    progress: Progress | None = None
    listener: Listener | None = None
    client: StorageClient | None = None


@dataclass
class Result:
    """A finished run. `summary` is `summary.json`; `requests` columns as in `requests.parquet`, by name."""

    plan: RealPlan
    summary: dict[str, Any]
    requests: dict[str, Any]
    machine: Machine
    """Closed, but its pools still hold what they held."""


def run(
    workload: str | Workload,
    schedule: Schedule | None = None,
    options: Options | None = None,
    config: RealConfig | None = None,
    **flags: Any,
) -> Result:
    """Run a trace file, shipped sample or generator (by name), or a `Workload`, on real memory.

    `flags` are SGLang's, underscored; `config` holds them and all the rest instead. ValueError: bad input, in one line.
    RunFailed: the device or a copy has failed.
    """
    if isinstance(workload, str):
        workload = open_workload(workload)
    if config is None:
        config = RealConfig(ServerArgs(**flags))
    elif flags:
        raise ValueError("give flags, or a config that holds them, not both")
    made, chosen = plan(config), options or Options()
    with RunFolder(chosen.out) if chosen.out is not None else nullcontext() as folder:
        return _Run(made, workload, schedule, chosen, folder).go()


class _Run:
    """One run and all its parts."""

    def __init__(
        self, made: RealPlan, workload: Workload, schedule: Schedule | None, options: Options, folder: RunFolder | None
    ) -> None:
        self._made, self._workload, self._schedule = made, workload, schedule
        self._options, self._folder = options, folder
        self._kept: dict[str, list[Any]] = {}
        self._fingerprint = Fingerprint()
        self._log = EventLog() if folder is not None else None

    def go(self) -> Result:
        made, options = self._made, self._options
        resolved = made.resolved
        texts = Texts(made.page_tokens, made.spec.shape.vocab, resolved.bigram_keys)
        make_rows = rows_of(texts, made.page_tokens, options.listener)
        slices = MOST_SLICES if self._folder is not None else 0
        clock = WallClock()
        with make_machine(made, make_rows, slices, clock.now_s, options.client) as machine:
            loop, recorder = self._loop(machine, texts, clock)
            clock.start()
            began_s = time.process_time()
            loop.run()
            cpu_s = time.process_time() - began_s
            recorder.finish(loop.last_s)
            if machine.plane.workers is not None:
                machine.plane.workers.close(made.config.store_timeout_s)
            return self._result(machine, loop, recorder, cpu_s)

    def _loop(self, machine: Machine, texts: Texts, clock: WallClock) -> tuple[RealRun, Recorder]:
        made, options, plane = self._made, self._options, machine.plane
        requests = itertools.islice(self._workload.requests(self._schedule), options.limit)
        first = next(requests, None)
        grain = first.content.grain(made.page_tokens) if first is not None else 1
        watch = StoreWatch(plane, texts)
        held = watch if plane.capabilities.storage else None
        reasons = MissReasons(made.page_tokens, grain, int(made.resolved.bigram_keys), held)
        watch.stored = reasons.stored
        engine = make_engine(made.resolved, make_cache(made.resolved, reasons.facts, texts))
        recorder = Recorder(engine, plane.meters, reasons, self._spill, progress=options.progress)
        loop = RealRun(
            engine,
            plane,
            self._whole(first, requests),
            texts.activator(activator(made.page_tokens)),
            _Forgetting(recorder, texts),
            self._log,
            options.check,
            linked=(self._schedule or self._workload.schedule).waits,
            max_parallel=1 if options.sequential else self._workload.max_parallel,
            clock=clock,
            door=OpWatch(watch, self._fingerprint),
        )
        return loop, recorder

    @staticmethod
    def _whole(first: Request | None, rest: Iterator[Request]) -> Iterator[Request]:
        return itertools.chain([first], rest) if first is not None else iter(())

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
        more = {"cpu_s": cpu_s, "operations_sha256": self._fingerprint.hexdigest(), "failures": failures(machine)}
        if machine.client is not None:
            more["store"] = machine.client.stats()
        summary = timed_summary(facts, loop, recorder, plane.meters, loop.last_s, more)
        if self._folder is not None:
            if self._log is not None:
                self._folder.write_log(self._log)
            self._folder.write_timeline(recorder.samples)
            self._folder.write_perfetto(plane.slices, recorder.samples)
            self._folder.write_summary(summary)
        return Result(made, summary, self._kept, machine)

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


def failures(machine: Machine) -> dict[str, int]:
    """Failed operations by kind."""
    return {kind.name.lower(): count for kind, count in machine.plane.meters.failed.items() if count}
