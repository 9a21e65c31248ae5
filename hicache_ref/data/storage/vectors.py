"""Whole pages between a file and scattered memory, in as few system calls as there can be.

Rules of this file
- The kernel may move less than asked, and takes at most IOV_MAX buffers: both are dealt with here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

IOV_MAX = os.sysconf("SC_IOV_MAX")
_BEYOND = memoryview(bytearray(1))
"""Where the byte goes that should not be there. Nobody reads it, so threads may share it."""


def write_all(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all bytes of `buffers`, one after the other, from the start of the file."""
    at, left = 0, list(buffers)
    while left:
        written = os.pwritev(fd, left[:IOV_MAX], at)
        at, left = at + written, remaining(left, written)


def read_exactly(fd: int, buffers: Sequence[memoryview], size_bytes: int) -> bool:
    """Fill `buffers`, of `size_bytes` together, with the file. False: it is shorter or longer than they are."""
    # The usual case is one call: everything is there, and the byte beyond was asked for in vain.
    left = [*buffers, _BEYOND]
    asked = left if len(left) <= IOV_MAX else left[:IOV_MAX]
    at = os.preadv(fd, asked, 0)
    if at == size_bytes and asked is left:
        return True
    left = remaining(left, at)
    while left:
        to_the_end = len(left) <= IOV_MAX
        read = os.preadv(fd, left[:IOV_MAX], at)
        at, left = at + read, remaining(left, read)
        if at == size_bytes and (to_the_end or not read):
            return True
        if not read:
            return False
    return False


def remaining(buffers: list[memoryview], moved: int) -> list[memoryview]:
    """What is left of `buffers` after `moved` bytes."""
    for at, buffer in enumerate(buffers):
        if moved < buffer.nbytes:
            return [buffer[moved:] if moved else buffer, *buffers[at + 1 :]]
        moved -= buffer.nbytes
    return []
