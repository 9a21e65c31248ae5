"""How pages get into the file and out of it: 3FS's usrbio, or a plain file in its place.

Rules of this file
- A driver moves a group of objects in one call, each between its offset and its pieces of host memory, and says how
  many bytes of each it moved. It may be used by one thread at a time.
- usrbio moves between the file and shared memory of its own, so there a copy is left on the host's side.
- Source: `hf3fs_client.py` and `hf3fs_usrbio_client.py` of 0.5.23.
"""

from __future__ import annotations

import datetime
import importlib
import os
from collections.abc import Callable, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

from ..client import StorageError
from ..vectors import IOV_MAX

Pieces = Sequence[memoryview]
Seen = Callable[[int], None]
"""Told when an object of the group has been moved, which leaves it in the processor's cache for who wants to look."""


TOGETHER_BYTES = 512 << 10
"""What goes in one call, so that it is still in a core's cache when it is looked at."""


class Driver(Protocol):
    def read(self, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]: ...
    def write(self, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]: ...
    def close(self) -> None: ...


class FileDriver:
    """A plain file of `size` bytes, in which nothing is taken before it is written."""

    def __init__(self, path: str, size: int) -> None:
        self._file = _open(path, size)

    def read(self, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]:
        return self._move(os.preadv, offsets, objects, seen)

    def write(self, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]:
        return self._move(os.pwritev, offsets, objects, seen)

    def _move(
        self, move: Callable[[int, Any, int], int], offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen
    ) -> list[int]:
        sizes = [sum([piece.nbytes for piece in pieces]) for pieces in objects]
        moved = [0] * len(objects)
        for run in _adjacent(offsets, sizes):
            left = _all(move, self._file, [piece for at in run for piece in objects[at]], offsets[run[0]])
            for at in run:
                moved[at] = min(sizes[at], left)
                left -= moved[at]
                seen(at)
        return moved

    def close(self) -> None:
        os.close(self._file)


class UsrbioDriver:
    """3FS itself. `entries` objects of at most `object_bytes` go at once."""

    def __init__(self, path: str, size: int, object_bytes: int, entries: int, timeout_s: float) -> None:
        self._io = usrbio()
        self._file = _open(path, size)
        self._io.register_fd(self._file)
        self._timeout = datetime.timedelta(seconds=timeout_s)
        mount = self._io.extract_mount_point(path)
        self._memory = SharedMemory(size=object_bytes * entries, create=True)
        self._vector = self._io.make_iovec(self._memory, mount)
        self._rings = {
            reads: self._io.make_ioring(mount, entries, for_read=reads, timeout=1, numa=-1) for reads in (True, False)
        }
        self._memory.unlink()

    def read(self, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]:
        moved = self._submit(True, offsets, objects)
        memory, start = self._memory.buf, 0
        assert memory is not None
        for at, pieces in enumerate(objects):
            for piece in pieces:
                piece[:] = memory[start : start + piece.nbytes]
                start += piece.nbytes
            seen(at)
        return moved

    def write(self, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]:
        memory, start = self._memory.buf, 0
        assert memory is not None
        for at, pieces in enumerate(objects):
            for piece in pieces:
                memory[start : start + piece.nbytes] = piece
                start += piece.nbytes
            seen(at)
        return self._submit(False, offsets, objects)

    def close(self) -> None:
        self._io.deregister_fd(self._file)
        os.close(self._file)
        self._rings.clear()
        self._vector = None
        self._memory.close()

    def _submit(self, reads: bool, offsets: Sequence[int], objects: Sequence[Pieces]) -> list[int]:
        ring, at = self._rings[reads], 0
        for offset, pieces in zip(offsets, objects, strict=True):
            size = sum(piece.nbytes for piece in pieces)
            ring.prepare(self._vector[at : at + size], reads, self._file, offset)
            at += size
        done = ring.submit().wait(min_results=len(objects), timeout=self._timeout)
        return [result.result for result in done]


def usrbio() -> Any:
    try:
        return importlib.import_module("hf3fs_fuse.io")
    except ImportError:
        raise StorageError(
            "hf3fs: there is no module hf3fs_fuse; build 3FS's usrbio for Python, as its documentation says, "
            "or have a plain file instead: use_mock_hf3fs_client"
        ) from None


def _open(path: str, size: int) -> int:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
    except OSError as error:
        raise StorageError(
            f"hf3fs: cannot have {size} bytes at {path}: {error.strerror}; see file_path_prefix"
        ) from None
    return file


def _adjacent(offsets: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Numbers of objects that follow each other in the file, in its order: at most TOGETHER_BYTES, or one object.

    Tables give the keys of a batch neighbouring pages, upstream's from the last one down.
    """
    runs: list[list[int]] = []
    end = total = -1
    for at in sorted(range(len(offsets)), key=offsets.__getitem__):
        if offsets[at] == end and total + sizes[at] <= TOGETHER_BYTES:
            runs[-1].append(at)
        else:
            runs.append([at])
            total = 0
        end, total = offsets[at] + sizes[at], total + sizes[at]
    return runs


def _all(move: Callable[[int, Any, int], int], file: int, pieces: Pieces, offset: int) -> int:
    """Move `pieces`, as many at a time as the kernel takes; how many bytes went before it stopped short."""
    total = 0
    for first in range(0, len(pieces), IOV_MAX):
        some = pieces[first : first + IOV_MAX]
        moved = move(file, some, offset + total)
        total += moved
        if moved < sum(piece.nbytes for piece in some):
            break
    return total
