"""Delta traces: Mooncake's shape, but a later turn of a session holds only its new tokens.

Dynamo calls it `mooncake-delta`; aiperf's multi-turn "mooncake" files are the same. The first row of a session has a
`timestamp` in ms; a later one has `delay`, ms after the answer before it, and usually no timestamp. `input_length`
and `hash_ids` describe the new tokens; the prompt is all that came before, answers included, and then these.

Rules of this file
- A session's history is kept as named pieces: blocks of the file, and answers in pieces no larger than a block.
  The names are chained, so equal ids are equal content only behind equal histories.
- Answers are unique to their session: the file does not say what was answered.
- The file is not in order of time, so its sessions are gathered in memory first.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import TraceError
from .fit import misfit, verdict
from .mooncake import is_delta, session_of
from .prefix import block_ids, id_limit, prefix_ids
from .request import Request, Runs
from .rows import HEAD_ROWS, ids_of, input_tokens_of, stamp_of, tokens_of
from .schedule import ClosedLoop, Session
from .source import Source
from .workload import SessionWorkload

BLOCK_TOKENS = 512


def claims(source: Source) -> bool:
    first = source.head(1)[0]
    return session_of(first) is not None and "chat_id" not in first and is_delta(source.head(HEAD_ROWS))


def open_delta(source: Source, block_tokens: int | None, chain: bool | None) -> DeltaTrace:
    """TraceError: `chain` given, since these ids are always chained; rows that do not fit the block size."""
    if chain is not None:
        raise TraceError("a delta trace is always chained", str(source.path), "leave chain (--chain) out")
    return DeltaTrace(source, block_tokens or BLOCK_TOKENS)


@dataclass
class DeltaTrace(SessionWorkload):
    source: Source
    block_tokens: int
    format: str = "mooncake-delta"

    def __post_init__(self) -> None:
        self.name = self.source.path.name
        self.schedule = ClosedLoop()
        self._talks = self._read()
        self.verdict = verdict(gap for talk in self._talks for gap in talk.gaps)

    def sessions(self) -> list[Session]:
        first_ms = self._talks[0].start_ms
        return [Session((talk.start_ms - first_ms) / 1000, talk.turns()) for talk in self._talks]

    def _read(self) -> list[Talk]:
        """All sessions of the file, in order of start."""
        talks: dict[str, Talk] = {}
        with closing(self.source.documents()) as documents:
            for file, line, row in documents:
                where = f"{file}:{line}"
                name = session_of(row)
                if name is None:
                    raise TraceError("no session_id", where, "a delta row belongs to a session")
                if name not in talks:
                    talks[name] = Talk(self.block_tokens, len(talks), stamp_of(row, "timestamp", -np.inf, where))
                talks[name].add(row, where)
        return sorted(talks.values(), key=lambda talk: talk.start_ms)


@dataclass
class Talk:
    """One session as it grows: its pieces so far, and what each turn had of them."""

    block_tokens: int
    number: int
    start_ms: float
    gaps: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    rows: list[Turn] = field(default_factory=list)

    def add(self, row: dict[str, Any], where: str) -> None:
        new, answer = input_tokens_of(row, where), tokens_of(row, "output_length", 0, where)
        self._append(self._ids(row, where, new), new)
        input_tokens = sum(self.lengths)
        # Names of answers are below 0, where no id of the file can be.
        self._append([-1 - self.number] * -(-answer // self.block_tokens), answer)
        at_ms, think_ms = self._times(row, where)
        self.rows.append(Turn(at_ms, think_ms, input_tokens, answer, len(self.names)))

    def turns(self) -> list[Request]:
        ids = self._run_ids()
        lengths = np.array(self.lengths, dtype=np.int64)
        return [
            Request(
                number,
                (turn.at_ms - self.start_ms) / 1000,
                Runs(ids[: turn.pieces], lengths[: turn.pieces]),
                turn.input_tokens,
                turn.answer_tokens or 1,
                turn.input_tokens + turn.answer_tokens,
                parent=number - 1 if number else None,
                think_s=turn.think_ms / 1000,
            )
            for number, turn in enumerate(self.rows)
        ]

    def _ids(self, row: dict[str, Any], where: str, new: int) -> list[int]:
        try:
            ids: list[int] = block_ids(ids_of(row, where), id_limit(self.block_tokens)).tolist()
        except TypeError as error:
            raise TraceError(f"hash_ids cannot be read ({error})", where, "ids are whole numbers or strings") from error
        gap = len(ids) * self.block_tokens - new
        if not 0 <= gap < self.block_tokens:
            raise misfit(len(ids), new, self.block_tokens, where)
        self.gaps.append(gap)
        return ids

    def _append(self, names: list[int], tokens: int) -> None:
        """Add pieces of a block each, the last of them what is left of `tokens`."""
        self.names += names
        self.lengths += [min(self.block_tokens, tokens - start) for start in range(0, tokens, self.block_tokens)]

    def _times(self, row: dict[str, Any], where: str) -> tuple[float, float]:
        """Recorded time and think time. Without a timestamp, answers take no time; without a delay, thinking is all."""
        before_ms = self.rows[-1].at_ms if self.rows else self.start_ms
        think_ms = stamp_of(row, "delay", 0, where) if "delay" in row else None
        if "timestamp" in row or think_ms is None:
            at_ms = stamp_of(row, "timestamp", before_ms, where)
        else:
            at_ms = before_ms + think_ms
        return at_ms, at_ms - before_ms if think_ms is None else think_ms

    def _run_ids(self) -> NDArray[np.int64]:
        """First ids of the pieces. A piece's length is chained with its name: half a block is not the block."""
        pairs = np.array([self.names, self.lengths], dtype=np.int64).T.reshape(-1)
        return prefix_ids(pairs, self.block_tokens)[1::2] * self.block_tokens


@dataclass(frozen=True)
class Turn:
    """pieces: how many of the session's pieces there are up to the end of this turn's answer."""

    at_ms: float
    think_ms: float
    input_tokens: int
    answer_tokens: int
    pieces: int
