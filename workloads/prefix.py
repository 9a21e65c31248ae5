"""Ids of blocks: reading them from JSON, chaining them into prefix ids, checking that they are prefix ids.

Rules of this file
- An id times the block's size, plus a position inside the block, must fit int64. Ids that are too large (u64 hashes),
  negative or strings are folded into the upper half of the allowed range; the fold is a function of the id alone.
- Chaining is a hash of everything up to a block, not a table of what was seen: it needs no memory, and any two
  readers agree. With n distinct prefixes the chance of one collision is about n * n * block_tokens / 2**64
  (a million blocks of 16 tokens: 1 in a million).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import TraceError

GOLDEN = 0x9E3779B97F4A7C15
INT64 = np.dtype(np.int64)
NO_IDS = np.zeros(0, dtype=np.int64)


def id_limit(block_tokens: int) -> int:
    """Ids below this are kept as they are; folded ids lie between this and twice this."""
    return (1 << 62) // block_tokens


def block_ids(values: list[Any], limit: int) -> NDArray[np.int64]:
    """[blocks] int64 from a JSON list of whole numbers or strings. `limit`: `id_limit` of the block size.

    TypeError: something else in the list (the readers turn it into a TraceError that names the row).
    """
    if not values:
        return NO_IDS
    try:
        ids = np.array(values)
        if ids.dtype == INT64 and ids.ndim == 1 and min(values) >= 0 and max(values) < limit:
            return ids
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([_fold(value, limit) for value in values], dtype=np.int64)


def _fold(value: Any, limit: int) -> int:
    if type(value) is int and 0 <= value < limit:
        return value
    if type(value) is not int and type(value) is not str:
        raise TypeError(f"an id is a whole number or a string, not {value!r:.40}")
    digest = hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return limit + int.from_bytes(digest, "little") % limit


def prefix_ids(hashes: NDArray[np.int64], block_tokens: int) -> NDArray[np.int64]:
    """[blocks] prefix ids from [blocks] hashes of single blocks: equal exactly when all blocks up to there are equal.

    Each id is below 2**63 / block_tokens. A block is mixed with its position, so order matters; a running sum makes
    the chain one array operation.
    """
    positions = np.arange(1, len(hashes) + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    chained = _mix(np.cumsum(_mix(_mix(hashes.view(np.uint64)) + positions), dtype=np.uint64))
    ids: NDArray[np.int64] = (chained >> np.uint64(1 + (block_tokens - 1).bit_length())).view(np.int64)
    return ids


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input moves about half of the output's."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@dataclass
class PrefixCheck:
    """Watches that no id follows two different ids: that would be hashes of single blocks, read as if of prefixes.

    advice: what the error tells people to do.
    """

    advice: str = "read it with chain=True (--chain)"
    before: dict[int, int] = field(default_factory=dict)

    def add(self, ids: NDArray[np.int64], where: str) -> None:
        """TraceError: an id with two predecessors, or twice in one prompt."""
        previous = -1
        for value in ids.tolist():
            expected = self.before.setdefault(value, previous)
            if expected != previous:
                raise TraceError(
                    f"id {value} follows {_name(expected)} and {_name(previous)}: hashes of blocks, not of prefixes",
                    where,
                    self.advice,
                )
            previous = value


def _name(value: int) -> str:
    return "the start" if value < 0 else str(value)
