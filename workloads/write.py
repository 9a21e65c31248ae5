"""Writing a workload as a Mooncake trace, so that other tools can replay it.

Rules of this file
- Ids are renumbered in the order they are first seen, as Mooncake's own are. A block's identity is the id of its last
  token; a partial last block has an id too (ceil).
- The format has no sessions and no answers in its ids: what a closed loop adds would be lost without a word, so turns
  that wait for an answer are refused.
- The same requests give the same bytes, compressed or not.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable, Iterable
from itertools import count
from pathlib import Path

from .errors import TraceError
from .mooncake import BLOCK_TOKENS
from .request import Request
from .stats import block_keys


def write_mooncake(requests: Iterable[Request], path: str | Path, block_tokens: int = BLOCK_TOKENS) -> int:
    """Write JSONL, or gzip where the name ends in .gz; returns the rows written. Times are rounded to ms.

    TraceError: a turn that waits for an answer (use OpenLoop first), a file that cannot be written.
    """
    path = Path(path)
    rows = 0
    try:
        with open(path, "wb") as raw:
            packed = gzip.GzipFile("", "wb", 9, raw, mtime=0) if path.suffix == ".gz" else raw
            with packed as file:
                names = _Names()
                for rows, request in enumerate(requests, 1):  # noqa: B007 (the count is returned)
                    file.write(json.dumps(_row(request, names, block_tokens)).encode() + b"\n")
    except OSError as error:
        raise TraceError(f"cannot be written ({error.strerror or error})", str(path), "check the path") from error
    return rows


class _Names:
    """Dense ids for keys, and for blocks that no other prompt can have."""

    def __init__(self) -> None:
        self._numbers = count()
        self._of: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        number = self._of.get(key)
        if number is None:
            number = self._of[key] = self.new()
        return number

    def new(self) -> int:
        return next(self._numbers)


def _row(request: Request, names: _Names, block_tokens: int) -> dict[str, object]:
    if request.parent is not None:
        raise TraceError(
            f"request {request.id} waits for an answer, which Mooncake's format cannot say",
            do="ask the workload for requests(OpenLoop())",
        )
    keys, _ = block_keys(request, block_tokens)
    blocks = -(-request.input_tokens // block_tokens)
    ids = [names.of(key) for key in keys] + [names.new() for _ in range(blocks - len(keys))]
    return {
        "timestamp": round(request.arrival_s * 1000),
        "input_length": request.input_tokens,
        "output_length": request.output_tokens,
        "hash_ids": ids,
    }
