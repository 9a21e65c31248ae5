"""What may lie behind a page in its file: nothing, as SGLang writes it, or a seal.

Rules of this file
- SGLang reads as many bytes as a page has and no further, so it reads files with a seal as well.
- A file without a seal is as good as its length, to everybody: SGLang wrote it, or somebody who does not verify.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from .seal import SEAL_BYTES, Digests, looks_like_seal
from .vectors import read_exactly


class Trailer(Protocol):
    size_bytes: int
    """Of what it writes."""

    def behind(self, key: str, pieces: Sequence[memoryview]) -> list[memoryview]:
        """What to write behind a page."""
        ...

    def read(self, fd: int, key: str, pieces: Sequence[memoryview], page_bytes: int) -> bool:
        """Read a page into `pieces`. False: the file does not hold it."""
        ...


class NoTrailer:
    """Nothing is written, nothing verified."""

    size_bytes = 0

    def behind(self, key: str, pieces: Sequence[memoryview]) -> list[memoryview]:
        return []

    def read(self, fd: int, key: str, pieces: Sequence[memoryview], page_bytes: int) -> bool:
        return read_exactly(fd, pieces, page_bytes) or _ends_with_seal(fd, page_bytes)


class SealTrailer:
    """Pages are sealed, and verified where they are."""

    size_bytes = SEAL_BYTES

    def __init__(self) -> None:
        self._digests = Digests()

    def behind(self, key: str, pieces: Sequence[memoryview]) -> list[memoryview]:
        return [memoryview(self._digests.seal(key, pieces))]

    def read(self, fd: int, key: str, pieces: Sequence[memoryview], page_bytes: int) -> bool:
        seal = memoryview(bytearray(SEAL_BYTES))
        if read_exactly(fd, [*pieces, seal], page_bytes + SEAL_BYTES):
            return self._digests.fits(seal, key, pieces)
        return os.fstat(fd).st_size == page_bytes


def has_length(size_bytes: int | None, page_bytes: int) -> bool:
    """Whether a file of this size may hold a page, sealed or not."""
    return size_bytes in (page_bytes, page_bytes + SEAL_BYTES)


def _ends_with_seal(fd: int, page_bytes: int) -> bool:
    sealed = os.fstat(fd).st_size == page_bytes + SEAL_BYTES
    return sealed and looks_like_seal(os.pread(fd, SEAL_BYTES, page_bytes))
