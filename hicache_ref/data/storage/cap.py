"""A limit on what a folder of pages may take, kept by forgetting the pages used longest ago.

Rules of this file
- Only files of this rank are counted and removed; others in the folder are read by it at most.
- A write is admitted before it begins (`reserve`) and known by its end (`commit` or `abort`); in between its file
  is nobody's victim.
- One lock, held while victims are removed: writers that need room wait for whoever makes it.
- Source: `lru_file_evictor.py` of 0.5.23, whose decisions these are.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from .keeping import Keeping, Known, disk

SUFFIX = ".bin"
UNFINISHED = ".tmp"
UNFINISHED_S = 3600.0
"""A file unfinished for longer than this has lost its writer, and is removed by who counts the folder."""


class Cap(Protocol):
    """What the file store asks before and after it touches a file. `stem`: the file's name without its suffix."""

    def reserve(self, stem: str, size_bytes: int) -> bool: ...
    def commit(self, stem: str) -> None: ...
    def abort(self, stem: str) -> None: ...
    def touch(self, stem: str, size_bytes: int) -> None: ...
    def clear(self) -> None: ...

    def keeps(self, folder: str, page_bytes: int, stored_bytes: int) -> Keeping:
        """How much of pages of `page_bytes`, which take `stored_bytes` each, and what goes when that is full."""
        ...


class NoCap:
    """The disk is the limit."""

    def reserve(self, stem: str, size_bytes: int) -> bool:
        return True

    def commit(self, stem: str) -> None:
        pass

    def abort(self, stem: str) -> None:
        pass

    def touch(self, stem: str, size_bytes: int) -> None:
        pass

    def clear(self) -> None:
        pass

    def keeps(self, folder: str, page_bytes: int, stored_bytes: int) -> Keeping:
        return disk(folder, page_bytes, stored_bytes)


class LruCap:
    """At most `max_bytes` of files (0: any number), at least `min_free_bytes` left on the disk.

    Reaching `max_bytes` frees down to `keep_ratio` of it, new page included. `owns(stem)` says which files are ours;
    `evicted(stem)` is told of each that is removed. Files that are there already count from the start, oldest first.
    """

    def __init__(
        self,
        folder: str,
        owns: Callable[[str], bool],
        evicted: Callable[[str], None],
        max_bytes: int = 0,
        min_free_bytes: int = 0,
        keep_ratio: float = 0.9,
    ) -> None:
        self._folder = folder
        self._evicted = evicted
        disk = os.statvfs(folder)
        # Beyond the disk a limit would limit nothing.
        self._max_bytes = min(max_bytes, max(disk.f_blocks * disk.f_frsize - min_free_bytes, 1)) if max_bytes else 0
        self._min_free_bytes = min_free_bytes
        self._keep_ratio = keep_ratio
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Bytes by stem, used longest ago first."""
        self._writing: set[str] = set()
        self.used_bytes = 0
        self._find_files(owns)
        with self._lock:
            self._make_room(0)

    def reserve(self, stem: str, size_bytes: int) -> bool:
        """Whether a file of this size may be written; room is made for it."""
        with self._lock:
            if not self._make_room(size_bytes):
                return False
            self._forget(stem)
            self._add(stem, size_bytes)
            self._writing.add(stem)
            return True

    def commit(self, stem: str) -> None:
        with self._lock:
            self._writing.discard(stem)

    def abort(self, stem: str) -> None:
        with self._lock:
            self._writing.discard(stem)
            self._forget(stem)

    def touch(self, stem: str, size_bytes: int) -> None:
        """It was used. A file that somebody else of this rank wrote is counted from now on."""
        with self._lock:
            if stem in self._sizes:
                self._sizes.move_to_end(stem)
            else:
                self._add(stem, size_bytes)

    def clear(self) -> None:
        with self._lock:
            self._sizes.clear()
            self._writing.clear()
            self.used_bytes = 0

    def keeps(self, folder: str, page_bytes: int, stored_bytes: int) -> Keeping:
        room = os.statvfs(folder)
        most_bytes = max(room.f_bavail * room.f_frsize - self._min_free_bytes, 0) + self.used_bytes
        kept, source = 1.0, f"what the disk takes, all but min_free_space {self._min_free_bytes}"
        if self._max_bytes and self._max_bytes <= most_bytes:
            most_bytes, kept, source = self._max_bytes, self._keep_ratio, f"max_size {self._max_bytes}"
        return {
            "eviction": Known("lru", "the page used longest ago goes"),
            "capacity_bytes": Known(float(most_bytes) * page_bytes / stored_bytes, source),
            "low_watermark": Known(kept, "eviction_ratio"),
        }

    # The lock is held in what follows

    def _add(self, stem: str, size_bytes: int) -> None:
        self._sizes[stem] = size_bytes
        self.used_bytes += size_bytes

    def _forget(self, stem: str) -> None:
        self.used_bytes -= self._sizes.pop(stem, 0)

    def _make_room(self, size_bytes: int) -> bool:
        if self._max_bytes and self.used_bytes + size_bytes > self._max_bytes:
            if size_bytes > self._max_bytes:
                return False
            self._evict(self.used_bytes + size_bytes - int(self._max_bytes * self._keep_ratio))
            if self.used_bytes + size_bytes > self._max_bytes:
                return False
        if not self._min_free_bytes:
            return True
        lacking = self._lacking_bytes(size_bytes)
        # The disk is asked again: others write to it too.
        return lacking <= 0 or (self._evict(lacking) > 0 and self._lacking_bytes(size_bytes) <= 0)

    def _lacking_bytes(self, size_bytes: int) -> int:
        disk = os.statvfs(self._folder)
        return self._min_free_bytes + size_bytes - disk.f_bavail * disk.f_frsize

    def _evict(self, wanted_bytes: int) -> int:
        """Remove files until so many bytes are free, or no file can go; the bytes it made."""
        victims, planned = [], 0
        for stem, size_bytes in self._sizes.items():
            if planned >= wanted_bytes:
                break
            if stem not in self._writing:
                victims.append(stem)
                planned += size_bytes
        return sum(map(self._remove, victims))

    def _remove(self, stem: str) -> int:
        """The bytes this made; none if the file cannot go, as in a folder that has become read-only."""
        try:
            os.remove(os.path.join(self._folder, stem + SUFFIX))
        except FileNotFoundError:
            pass
        except OSError:
            return 0
        size_bytes = self._sizes[stem]
        self._forget(stem)
        self._evicted(stem)
        return size_bytes

    def _find_files(self, owns: Callable[[str], bool]) -> None:
        found = []
        forgotten_s = time.time() - UNFINISHED_S
        with os.scandir(self._folder) as entries:
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                with suppress(FileNotFoundError):
                    if suffix == SUFFIX and owns(stem):
                        facts = entry.stat()
                        found.append((facts.st_mtime, stem, facts.st_size))
                    elif suffix == UNFINISHED and stem.startswith(".") and entry.stat().st_mtime < forgotten_s:
                        os.remove(entry.path)
        for _, stem, size_bytes in sorted(found):
            self._add(stem, size_bytes)
