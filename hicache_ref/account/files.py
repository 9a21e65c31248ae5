"""The files of a run: Parquet tables, the event log, a trace for Perfetto, the largest shared prefixes, the summary.

Rules of this file
- Tables are written as they grow, so that a run of a million requests needs no memory for them.
- Written beside their final names and renamed at the end: a folder holds a whole run or none of it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..control.log import EntryKind, EventLog
from .arrow import labels, numbers, table
from .meters import Slice
from .metrics import STATUS_NAMES, Columns

MOST_SLICES = 60_000
"""Slices of a Perfetto trace; a viewer gets slow beyond."""
LOG_ROWS = 50_000
TRACKS = ("compute", "load", "backup", "probe", "fetch", "store")


class RunFolder:
    """`--out DIR`. Use as a context: what was begun is completed on success and removed on failure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for name, writer in self._writers.items():
            writer.close()
            part = self._part(name)
            if kind is None:
                part.replace(self.folder / name)
            else:
                part.unlink(missing_ok=True)

    def _part(self, name: str) -> Path:
        return self.folder / f".{name}.part"

    def append(self, name: str, columns: Mapping[str, Any]) -> None:
        """More rows of a table."""
        batch = table(columns)
        if name not in self._writers:
            labelled = [field.name for field in batch.schema if pa.types.is_dictionary(field.type)]
            # Numbers hardly repeat: to look for those that do takes longer than all the rest of the writing.
            self._writers[name] = pq.ParquetWriter(
                self._part(name), batch.schema, compression="zstd", use_dictionary=labelled
            )
        self._writers[name].write_table(batch)

    def write_requests(self, rows: Columns) -> None:
        self.append("requests.parquet", request_columns(rows))

    def write_timeline(self, samples: Columns) -> None:
        self.append("timeline.parquet", samples.arrays)

    def write_log(self, log: EventLog) -> None:
        """Append the log's entries to `events.parquet` and forget them."""
        if not len(log):
            return
        columns = {
            "kind": labels(log.kinds, [kind.name.lower() for kind in EntryKind]),
            "time_s": np.array(log.times_s, np.float64),
            "subject": np.array(log.subjects, np.int64),
            "pages": np.array(log.pages, np.int64),
        }
        self.append("events.parquet", columns)
        log.clear()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")

    def write_tree(self, prefixes: Mapping[str, Any]) -> None:
        """`tree.json`: the largest shared prefixes, of `prefixes.shared_prefixes`."""
        (self.folder / "tree.json").write_text(json.dumps(prefixes) + "\n", encoding="utf-8")

    def write_perfetto(self, slices: list[Slice], samples: Columns) -> None:
        """`trace.json.gz` for ui.perfetto.dev: a track a stream, counters of the levels."""
        with gzip.open(self.folder / "trace.json.gz", "wt", compresslevel=1, encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            file.write(",\n".join([*_names(), *_slices(slices), *_counters(samples)]))
            file.write("\n]}\n")


def request_columns(rows: Columns) -> dict[str, Any]:
    """Columns of `requests.parquet`, the derived ones too. Times that never happened are null."""
    columns: dict[str, Any] = dict(rows.arrays)
    arrival, first, ended = columns["arrival_s"], columns["first_token_s"], columns["ended_s"]
    steps = columns["output_tokens"] - 1
    started, done = first >= 0, columns["status"] == 0
    columns["status"] = labels(columns["status"], STATUS_NAMES)
    columns["ttft_s"] = numbers(first - arrival, started)
    columns["e2e_s"] = numbers(ended - arrival, done)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["tpot_s"] = numbers((ended - first) / steps, done & (steps > 0))
    columns["admitted_s"] = numbers(columns["admitted_s"], columns["admitted_s"] >= 0)
    columns["first_token_s"] = numbers(first, started)
    return columns


def _names() -> list[str]:
    tracks = [(0, "hicache", "process_name"), *((at + 1, name, "thread_name") for at, name in enumerate(TRACKS))]
    return [
        json.dumps({"ph": "M", "pid": 1, "tid": tid, "name": kind, "args": {"name": name}})
        for tid, name, kind in tracks
    ]


def _slices(slices: list[Slice]) -> list[str]:
    number = {name: at + 1 for at, name in enumerate(TRACKS)}
    return [
        f'{{"ph":"X","pid":1,"tid":{number[s.track]},"ts":{s.start_s * 1e6:.3f},'
        f'"dur":{(s.end_s - s.start_s) * 1e6:.3f},"name":"{s.track}","args":{{"op":{s.op_id},"pages":{s.pages}}}}}'
        for s in slices
    ]


def _counters(samples: Columns) -> list[str]:
    shown = ("waiting", "running", "l1_used_tokens", "l2_used_tokens", "prefetching_tokens")
    columns = {name: column.tolist() for name, column in samples.arrays.items()}
    return [
        f'{{"ph":"C","pid":1,"ts":{time_s * 1e6:.3f},"name":"{name}","args":{{"{name}":{value:.0f}}}}}'
        for name in shown
        for time_s, value in zip(columns["time_s"], columns[name], strict=True)
    ]
