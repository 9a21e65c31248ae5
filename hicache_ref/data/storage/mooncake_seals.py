"""Seals of Mooncake's objects, for who wants pages verified: an object of a few bytes beside each.

Rules of this file
- SGLang never asks for them, and what it wrote has none: an object without a seal is as good as its length.
- A seal is written after its object. Whoever reads in between finds none, and trusts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from .objects import Buffer
from .seal import SEAL_BYTES, Digests

SEAL = "_seal"


class Seals(Protocol):
    def write(self, keys: Sequence[str], buffers: Sequence[Sequence[Buffer]]) -> None:
        """Seal objects that have just been stored from `buffers`."""
        ...

    def wrong(self, keys: Sequence[str], buffers: Sequence[Sequence[Buffer]]) -> list[int]:
        """Which of the objects that have just been read into `buffers` are not what was sealed."""
        ...


class NoSeals:
    """The store is believed."""

    def write(self, keys: Sequence[str], buffers: Sequence[Sequence[Buffer]]) -> None:
        pass

    def wrong(self, keys: Sequence[str], buffers: Sequence[Sequence[Buffer]]) -> list[int]:
        return []


class StoredSeals:
    """Satisfies `Seals` over a `MooncakeDistributedStore`."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._digests = Digests()

    def write(self, keys: Sequence[str], buffers: Sequence[Sequence[Buffer]]) -> None:
        if keys:
            seals = [self._digests.seal(key, _memory(pieces)) for key, pieces in zip(keys, buffers, strict=True)]
            self._store.put_batch([key + SEAL for key in keys], seals)

    def wrong(self, keys: Sequence[str], buffers: Sequence[Sequence[Buffer]]) -> list[int]:
        there = self._store.batch_is_exist([key + SEAL for key in keys]) if keys else []
        sealed = [at for at, code in enumerate(there) if code == 1]
        seals = self._store.get_batch([keys[at] + SEAL for at in sealed]) if sealed else []
        return [
            at
            for at, seal in zip(sealed, seals, strict=True)
            if len(seal) == SEAL_BYTES and not self._digests.fits(seal, keys[at], _memory(buffers[at]))
        ]


def _memory(pieces: Sequence[Buffer]) -> list[memoryview]:
    return [memoryview((ctypes.c_char * size).from_address(address)).cast("B") for address, size in pieces]
