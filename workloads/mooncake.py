"""Mooncake traces (FAST'25, arXiv), and Dynamo's rows of the same shape.

One JSON object a line: `timestamp` in ms, `input_length` and `output_length` in tokens, `hash_ids` with one prefix id
for each block of 512 tokens (the size is not in the file). Dynamo adds `session_id`, `delay` in ms after the answer
before, `priority`. Sources: kvcache-ai/Mooncake, FAST25-release/traces; NVIDIA Dynamo, trace replay.

Rules of this file
- Rows whose later turns hold only the new part of the prompt look almost the same. They are told apart here, and
  refused here; mooncake_delta.py reads them.
"""

from __future__ import annotations

from typing import Any

from .errors import TraceError
from .request import Request
from .rows import HEAD_ROWS, RowTrace
from .source import Source

KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}
BLOCK_TOKENS = 512


def claims(source: Source) -> bool:
    first = source.head(1)[0]
    return first.keys() >= KEYS and "chat_id" not in first


def open_mooncake(source: Source, block_tokens: int | None, chain: bool | None) -> RowTrace:
    """TraceError: rows that hold only the new part of a prompt, or do not fit the block size."""
    head = source.head(HEAD_ROWS)
    if is_delta(head):
        raise TraceError(
            "later turns of a session hold only their new tokens (a delta trace)",
            str(source.path),
            "read it with format='mooncake-delta' (--format mooncake-delta)",
        )
    return RowTrace(
        source=source,
        format="mooncake",
        block_tokens=block_tokens or BLOCK_TOKENS,
        ticks_per_s=1000.0,
        chain=bool(chain),
        tail_shared=True,
        linked=any(session_of(row) is not None for row in head),
        links=SessionLinks,
    )


class SessionLinks:
    """Dynamo's further fields: a row follows the row of its session before it, `delay` ms after the answer."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int | None]] = {}

    def add(self, request: Request, row: dict[str, Any]) -> None:
        request.priority = int(row.get("priority") or 0)
        session = session_of(row)
        if session is not None:
            request.session, request.parent = self._last.get(session, (len(self._last), None))
            request.think_s = float(row.get("delay") or 0) / 1000
            self._last[session] = (request.session, request.id)


def session_of(row: dict[str, Any]) -> str | None:
    """The session a row names (Dynamo: `session_id`; traces derived from LMCache's: `session`)."""
    session = row.get("session_id", row.get("session"))
    return None if session is None else str(session)


def is_delta(rows: list[dict[str, Any]]) -> bool:
    """Do later turns of a session carry only their new tokens?

    They give a `delay` and no `timestamp`; or, with both, their ids do not begin as the session's first did.
    """
    opening: dict[str, Any] = {}
    for row in rows:
        session, ids = session_of(row), row.get("hash_ids")
        if session is not None and type(ids) is list and ids:
            first = opening.setdefault(session, ids[0])
            if "delay" in row and ("timestamp" not in row or ids[0] != first):
                return True
    return False
