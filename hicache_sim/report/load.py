"""What a folder holds, read and checked: a run, or a sweep.

Rules of this file
- Whatever is wrong with a folder is said in one line: which file, what is wrong, what to do.
- Tables become arrays here, of the columns that figures need and no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hicache_ref.account.metrics import TIMELINE_COLUMNS
from hicache_ref.account.summary import SCHEMA

from ..sweeps.api import Sweep
from ..sweeps.errors import SweepError

Floats: TypeAlias = NDArray[np.float64]
Columns: TypeAlias = Mapping[str, Floats]

ALWAYS = ("workload", "config", "changes", "requests", "tokens", "hit_rates", "run")
"""Keys of every summary; a timed run has those of `SCHEMA`."""


class ReportError(ValueError):
    """A folder that cannot be reported. One line."""


@dataclass(frozen=True)
class RunData:
    """A run. timeline: one row a sample, empty for untimed replays; it begins with a row of zeros, for by the first
    sample some has happened. ttft_s: of requests that got a first token."""

    label: str
    summary: Mapping[str, Any]
    timeline: Columns = field(default_factory=dict)
    ttft_s: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    prefixes: Mapping[str, Any] | None = None

    @property
    def timed(self) -> bool:
        return "levels" in self.summary

    @property
    def links(self) -> list[str]:
        """Those that carried something."""
        return [name for name, link in self.summary.get("links", {}).items() if link["bytes"] > 0]


def is_sweep(folder: Path) -> bool:
    return (folder / "points.parquet").exists() or (folder / "sweep.json").exists()


def load_sweep(folder: Path) -> Sweep:
    """ReportError: unfinished or damaged."""
    try:
        return Sweep.open(folder)
    except SweepError as error:
        raise ReportError(str(error)) from None


def load_run(folder: Path, label: str) -> RunData:
    """ReportError: no run, an unfinished one, or files of another kind."""
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder; runs are written by `hicache replay … --out {folder}`")
    summary = _read_summary(folder / "summary.json")
    if "levels" not in summary:
        return RunData(label, summary)
    links = [f"{name}_bytes" for name in summary["links"]]
    timeline = read_columns(folder / "timeline.parquet", (*TIMELINE_COLUMNS, *links))
    ttft_s = read_columns(folder / "requests.parquet", ("ttft_s",))["ttft_s"]
    return _of_columns(label, summary, timeline, ttft_s, _read_tree(folder / "tree.json"))


def run_data(
    label: str,
    summary: Mapping[str, Any],
    timeline: Sequence[pa.Table],
    requests: Sequence[pa.Table],
    prefixes: Mapping[str, Any] | None,
) -> RunData:
    """The same from the tables of a run that is still in memory."""
    if "levels" not in summary:
        return RunData(label, summary)
    samples = pa.concat_tables(timeline)
    columns = {name: _floats(samples, name) for name in samples.column_names}
    return _of_columns(label, summary, columns, _floats(pa.concat_tables(requests), "ttft_s"), prefixes)


def _of_columns(
    label: str, summary: Mapping[str, Any], timeline: Columns, ttft_s: Floats, prefixes: Mapping[str, Any] | None
) -> RunData:
    begun = {name: np.concatenate(([0.0], column)) for name, column in timeline.items()}
    return RunData(label, summary, begun, ttft_s[~np.isnan(ttft_s)], prefixes)


def _read_summary(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        raise ReportError(
            f"{path.parent}: no summary.json, so no finished run; write one with `hicache replay … --out`"
        )
    summary = read_json(path)
    needed = SCHEMA if isinstance(summary, dict) and "levels" in summary else ALWAYS
    missing = [key for key in needed if not isinstance(summary, dict) or key not in summary]
    if missing:
        raise ReportError(f"{path}: not a summary this version can read, {', '.join(missing)} missing; run it again")
    return summary  # type: ignore[no-any-return]


def _read_tree(path: Path) -> Mapping[str, Any] | None:
    """None: written before runs kept their tree."""
    if not path.exists():
        return None
    tree = read_json(path)
    if not isinstance(tree, dict) or "shown" not in tree:
        raise ReportError(f"{path}: not a tree this version can read; run it again")
    return tree


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ReportError(f"{path}: cannot be read as JSON ({error}); run it again") from None


def read_table(path: Path) -> pa.Table:
    """ReportError: missing, truncated, or no Parquet."""
    if not path.exists():
        raise ReportError(f"{path}: missing; the run did not finish, run it again")
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ReportError(f"{path}: damaged or no Parquet file ({reason}); run it again") from None


def read_columns(path: Path, names: Sequence[str]) -> Columns:
    """Columns as float64 arrays; null becomes NaN."""
    table = read_table(path)
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise ReportError(f"{path}: not a table this version can read, {', '.join(missing)} missing; run it again")
    try:
        return {name: _floats(table, name) for name in names}
    except ValueError:
        raise ReportError(f"{path}: columns that should be numbers are not; run it again") from None


def _floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table[name].to_numpy(), np.float64)


def labels(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that differ from each other."""
    paths = [folder.resolve() for folder in folders]
    for depth in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        ends = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(ends)) == len(ends):
            return ends
    return [f"{path.name} ({at + 1})" for at, path in enumerate(paths)]
