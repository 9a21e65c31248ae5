"""Qwen-Bailian traces of Alibaba (ATC'25): chats with hashes of single blocks.

One JSON object a line: `chat_id`, `parent_chat_id` (-1: a root), `turn`, `type`, `timestamp` in seconds,
`input_length` and `output_length` in tokens, `hash_ids` with one salted hash for each block of 16 tokens, of that
block alone. Source: alibaba-edu/qwen-bailian-usagetraces-anon (Git LFS).

Rules of this file
- Hashes are chained before use: equal ids behind different prefixes are not the same cache content.
- The partial last block may have been hashed with padding, so its id is dropped: those tokens count as unique.
- A parent outside the file's window makes its child a root.
"""

from __future__ import annotations

from typing import Any

from .request import Request
from .rows import RowTrace
from .source import Source

BLOCK_TOKENS = 16
# Chats remembered for the links. An answer that comes after this many other chats is read as a new root, so that a
# long file does not fill the memory.
REMEMBERED_CHATS = 1 << 18


def claims(source: Source) -> bool:
    return source.head(1)[0].keys() >= {"chat_id", "parent_chat_id", "timestamp", "hash_ids"}


def open_bailian(source: Source, block_tokens: int | None, chain: bool | None) -> RowTrace:
    return RowTrace(
        source=source,
        format="bailian",
        block_tokens=block_tokens or BLOCK_TOKENS,
        ticks_per_s=1.0,
        chain=chain is not False,
        tail_shared=False,
        linked=True,
        links=ChatLinks,
    )


class ChatLinks:
    """A row follows the row whose chat id is its `parent_chat_id`; a session is a root and all that comes of it."""

    def __init__(self) -> None:
        self._chats: dict[Any, tuple[int, int]] = {}
        self._sessions = 0

    def add(self, request: Request, row: dict[str, Any]) -> None:
        parent = self._chats.get(row.get("parent_chat_id"))
        if parent is None:
            request.session = self._sessions
            self._sessions += 1
        else:
            request.session, request.parent = parent
        self._chats[row.get("chat_id")] = (request.session, request.id)
        if len(self._chats) > REMEMBERED_CHATS:
            del self._chats[next(iter(self._chats))]
