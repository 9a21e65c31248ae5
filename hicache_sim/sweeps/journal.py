"""What is done: one line a point in `points.jsonl`, so that a killed sweep continues where it was.

Rules of this file
- A line is written by one write and forced to disk. A kill leaves at most a line without an end, which is skipped, and
  closed by the next writer before it writes its own.
- The last record of a key counts.
- Failures that another try may mend (a worker that died) are kept to be shown, and tried again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import SweepError

NAME = "points.jsonl"


@dataclass(frozen=True)
class Outcome:
    """A point that was tried: its figures, or why there are none, in one line."""

    figures: Mapping[str, Any] | None = None
    error: str | None = None
    passing: bool = False
    """Another try may succeed."""
    changes: tuple[Mapping[str, Any], ...] = field(default=())
    """What resolving the flags rewrote or warned of."""


class Journal:
    """Outcomes by key, in memory and, with a folder, on disk."""

    def __init__(self, folder: Path | None) -> None:
        """OSError: the folder cannot be made."""
        self._path = None
        self._outcomes: dict[str, Outcome] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._path = folder / NAME
            self._read(self._path)

    def get(self, key: str) -> Outcome | None:
        """None: not tried, or worth another try."""
        outcome = self._outcomes.get(key)
        return None if outcome is None or outcome.passing else outcome

    def add(self, key: str, ask: Mapping[str, Any], outcome: Outcome) -> None:
        self._outcomes[key] = outcome
        if self._path is not None:
            record = {"key": key, **vars(outcome), "ask": ask}
            _append(self._path, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        with open(path, "rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                    outcome = Outcome(record["figures"], record["error"], record["passing"], tuple(record["changes"]))
                except (ValueError, KeyError, TypeError):
                    continue  # cut off by a kill
                self._outcomes[record["key"]] = outcome


def _append(path: Path, line: bytes) -> None:
    with open(path, "a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
        if file.write(line) != len(line):
            raise SweepError(f"{path}: the disk is full", "make room; the same command continues")
        os.fsync(file.fileno())
