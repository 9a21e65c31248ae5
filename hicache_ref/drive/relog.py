"""A recorded run, decided again: its event log brought to a fresh engine (law L6).

Rules of this file
- A run's folder says what it was a function of: `summary.json` the configuration, `events.parquet` the log. The
  requests come from the workload, read as it was read then.
- Nothing moves and nothing takes time: what is compared is what was decided.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workloads.request import Request

from ..build import activator, changed_rules, make_cache, make_engine
from ..config.records import DeviceFacts, Resolved
from ..config.resolve import resolve
from ..config.server_args import ConfigError, ServerArgs
from ..control.active import Active
from ..control.keys import AtomKeys, Keyspace
from ..control.log import Entry, EntryKind, Fingerprint, replay
from ..control.types import Op, OpKind
from ..run.texts import Texts


@dataclass(frozen=True)
class Relogged:
    """What came of it. `recorded_sha256`: of the run, where it was taken."""

    entries: int
    operations: dict[str, int]
    recorded_operations: dict[str, int]
    sha256: str
    recorded_sha256: str | None

    @property
    def same(self) -> bool:
        return self.operations == self.recorded_operations and self.recorded_sha256 in (None, self.sha256)


class _Recorded:
    """Satisfies `config.records.ModelFacts`, from a summary."""

    unsupported_reason = None

    def __init__(self, config: dict[str, Any]) -> None:
        self.name = str(config["model"])
        self.attention = self
        self._token_bytes = int(config["kv_bytes_per_token_per_rank"])
        self._attention = str(config.get("attention", "mha"))

    def kv_bytes_per_token(self, tp_size: int, kv_cache_dtype: str, /) -> int:
        return self._token_bytes

    def device_bytes_per_token(self, tp_size: int, kv_cache_dtype: str, /) -> int:
        return self._token_bytes

    def weight_bytes(self, tp_size: int, /) -> int:
        return 0


def decide_again(folder: Path, requests: Iterator[Request]) -> Relogged:
    """Bring the log in `folder` to a fresh engine. ValueError: not a run's folder, or not its workload."""
    summary = _summary(folder)
    config = summary["config"]
    resolved = _resolved(config)
    keys, activate = _keys(config, resolved)
    engine = make_engine(resolved, make_cache(resolved, keys=keys))
    known = _ById(requests)

    def request(request_id: int, arrival_s: float) -> Active:
        found = known.take(request_id)
        found.arrival_s = arrival_s
        return activate(found)

    entries = _Entries(folder / "events.parquet")
    counted: Counter[str] = Counter({kind.name.lower(): 0 for kind in OpKind})
    digest = Fingerprint()
    for op in replay(entries, engine, request):
        digest.add(op)
        if isinstance(op, Op):
            counted[op.kind.name.lower()] += 1
    run = summary["run"]
    return Relogged(entries.count, dict(counted), run["operations"], digest.hexdigest(), run.get("operations_sha256"))


def _summary(folder: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        summary["config"]["kv_bytes_per_token_per_rank"], summary["run"]["operations"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--log {folder}", f"no timed run's summary.json: {error}", "give a run's --out", "L6"
        ) from None
    return summary


def _resolved(config: dict[str, Any]) -> Resolved:
    """The configuration as it ran. Flags in effect resolve to themselves, sizes are taken as they were."""
    sizes = {"max_total_tokens": config["l1_tokens"]}
    if config["l2_tokens"]:
        sizes["hicache_total_tokens"] = config["l2_tokens"]
    args = replace(ServerArgs(**config["flags"]), **sizes)
    rules = changed_rules(config["profile"], config["rules"])
    return resolve(args, config["profile"], model=_Recorded(config), device=DeviceFacts(), rules=rules)


def _keys(config: dict[str, Any], resolved: Resolved) -> tuple[Keyspace, Callable[[Request], Active]]:
    """Pages are named by their tokens where a model has read them, by their atoms in simulations."""
    activate = activator(resolved.page_size)
    if "vocab" not in config:
        return AtomKeys(), activate
    texts = Texts(resolved.page_size, config["vocab"], resolved.bigram_keys)
    return texts, texts.activator(activate)


class _ById:
    """Requests by id, read on as far as they are asked for."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self._read: dict[int, Request] = {}

    def take(self, request_id: int) -> Request:
        while request_id not in self._read:
            request = next(self._requests, None)
            if request is None:
                raise ConfigError(f"--log: request {request_id} is not in this workload; read it as the run did")
            self._read[request.id] = request
        return self._read.pop(request_id)


class _Entries:
    """The rows of a log, and how many there were."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise ConfigError(f"{path}: not an event log: {error}") from None

    def __iter__(self) -> Iterator[Entry]:
        number = {kind.name.lower(): int(kind) for kind in EntryKind}
        for batch in self._file.iter_batches():
            columns = [column.to_pylist() for column in batch.columns]
            for kind, time_s, subject, pages in zip(*columns, strict=True):
                self.count += 1
                yield Entry(number[kind], time_s, subject, pages)
