"""Traces with one prompt a row: a time, two lengths, and the ids of the prompt's blocks.

Rules of this file
- A row is read in one pass with one combined check, because a replay reads every row; why a row failed is worked
  out afterwards, once.
- An answer of 0 tokens is read as 1: a prefill always gives a token, and real traces hold empty answers.
- The first rows are looked at before the trace is handed out: for the verdict, and so that a wrong block size fails
  when the file is opened. The first CHECKED_ROWS are also checked for ids with two predecessors, each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import TraceError
from .fit import misfit, verdict
from .prefix import PrefixCheck, block_ids, id_limit, prefix_ids
from .request import Blocks, Request
from .source import Document, Source
from .workload import ClockedWorkload

HEAD_ROWS = 256
CHECKED_ROWS = 1000
# Far above any real prompt or time: numbers beyond are damage, and would only fill the memory.
MOST_TOKENS = 1 << 26
LAST_TICK = 1e18
PLAIN_FIELDS = 4


class Links(Protocol):
    """Knows how a format says which request follows which."""

    def add(self, request: Request, row: dict[str, Any]) -> None:
        """Fill in session, parent and whatever else the row's further fields say. May raise TypeError, ValueError."""
        ...


@dataclass(kw_only=True)
class RowTrace(ClockedWorkload):
    """A file of prompts.

    ticks_per_s  unit of the file's timestamps. chain: its ids are hashes of single blocks.
    tail_shared  the id of a partial last block can be trusted; False: tokens behind the last full block are unnamed.
    links        makes the reader of the rows' further fields.
    """

    source: Source
    format: str
    block_tokens: int
    ticks_per_s: float
    chain: bool
    tail_shared: bool
    linked: bool
    links: Callable[[], Links]

    def __post_init__(self) -> None:
        self.name = self.source.path.name
        self.verdict = verdict(self._gap(row, f"{file}:{line}") for file, line, row in self.source.first(HEAD_ROWS))

    def recorded(self) -> Iterator[Request]:
        with closing(self.source.documents()) as documents:
            yield from self._requests(documents)

    def _requests(self, documents: Iterator[tuple[str, int, Document]]) -> Iterator[Request]:
        block, limit, ticks_per_s = self.block_tokens, id_limit(self.block_tokens), self.ticks_per_s
        short = 0 if self.tail_shared else block
        check, links = PrefixCheck(), self.links()
        first, last = 0.0, -math.inf
        for number, (file, line, row) in enumerate(documents):
            try:
                stamp, length, answer = row["timestamp"], row["input_length"], row["output_length"]
                ids = block_ids(row["hash_ids"], limit)
                named = len(ids) * block
                if not (
                    type(length) is int
                    and type(answer) is int
                    and -block < named - length < block
                    and length > 0
                    and 0 <= answer <= MOST_TOKENS
                    and last <= stamp < LAST_TICK
                ):
                    raise ValueError("the combined check failed")
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise self._refusal(row, f"{file}:{line}", last) from error
            if self.chain:
                ids = prefix_ids(ids, block)
            if number < CHECKED_ROWS:
                check.add(ids, f"{file}:{line}")
                first = first if number else stamp
            last = stamp
            request = Request(
                number,
                (stamp - first) / ticks_per_s,
                Blocks(ids, block),
                length,
                answer or 1,
                named if named <= length else named - short if short else length,
            )
            if len(row) > PLAIN_FIELDS:
                try:
                    links.add(request, row)
                except (TypeError, ValueError, OverflowError) as error:
                    raise TraceError(f"a field beside the prompt's is bad ({error})", f"{file}:{line}") from error
            yield request

    def _gap(self, row: dict[str, Any], where: str) -> int:
        """Tokens of the row's blocks beyond its prompt (see fit.py)."""
        length, blocks = input_tokens_of(row, where), len(ids_of(row, where))
        gap = blocks * self.block_tokens - length
        if not -self.block_tokens < gap < self.block_tokens:
            raise misfit(blocks, length, self.block_tokens, where)
        return gap

    def _refusal(self, row: dict[str, Any], where: str, last: float) -> TraceError:
        """What is wrong with a row that the combined check refused."""
        try:
            self._gap(row, where)
            tokens_of(row, "output_length", 0, where)
            stamp_of(row, "timestamp", last, where)
            block_ids(row["hash_ids"], id_limit(self.block_tokens))
        except TraceError as error:
            return error
        except (TypeError, ValueError, OverflowError) as error:
            return TraceError(f"hash_ids cannot be read ({error})", where, "ids are whole numbers or strings")
        return TraceError("a row that cannot be read", where, "please report it")


# --- Fields of a row, with a reason when they are bad ----------------------------------------------------------------


def input_tokens_of(row: dict[str, Any], where: str) -> int:
    return tokens_of(row, "input_length", 1, where)


def ids_of(row: dict[str, Any], where: str) -> list[Any]:
    """hash_ids as a list. TraceError: missing, or something else."""
    if "hash_ids" not in row:
        raise TraceError("no hash_ids", where, "nothing says which prompts are alike; use a generator for such a trace")
    if type(row["hash_ids"]) is not list:
        raise TraceError("hash_ids is not a list", where, "is the format right?")
    return row["hash_ids"]


def tokens_of(row: dict[str, Any], key: str, least: int, where: str) -> int:
    """A length in tokens. TraceError: missing, not a whole number, below `least`."""
    value = row.get(key)
    if type(value) is not int or not least <= value <= MOST_TOKENS:
        said = f"{key} is {value!r:.40}" if key in row else f"no {key}"
        raise TraceError(said, where, f"it must be a whole number of tokens from {least} to {MOST_TOKENS}")
    return value


def stamp_of(row: dict[str, Any], key: str, last: float, where: str) -> float:
    """A time. TraceError: missing, not a finite number, or before the row ahead of it."""
    value: float = row.get(key, math.nan)
    if key not in row and "delay" in row:
        raise TraceError(f"a delay but no {key}: a delta trace", where, "read it with format='mooncake-delta'")
    if type(value) not in (int, float) or not -LAST_TICK < value < LAST_TICK:
        said = f"{key} is {value!r:.40}" if key in row else f"no {key}"
        raise TraceError(said, where, "it must be a number")
    if value < last:
        raise TraceError(f"{key} {value} comes after {last}: times go back", where, f"sort the rows by {key} first")
    return value
