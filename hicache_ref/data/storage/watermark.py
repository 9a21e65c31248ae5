"""Folders kept from filling their disk: the oldest pages go when it is nearly full.

Rules of this file
- Looked at now and then, not at each write. Beyond the high mark pages go, oldest first, until below the low one.
- A page goes as a whole: the files of all its ranks and components are one group, as old as its youngest file.
- Only `<folder>/<two digits>/` is looked into, and what is being written (a name that begins with a dot) is left.
- Source: `nixl_cleaner.py` of 0.5.23.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .client import StorageError
from .keeping import Keeping, Known

EVERY_S = 30.0
BATCH_GROUPS = 50
"""Groups that go before the disk is looked at again."""
_BUCKET = re.compile(r"[0-9a-f]{2}")
_COMPONENT, _RANKS = re.compile(r"_[kv]$"), re.compile(r"_\d+_\d+$")


@dataclass
class _Group:
    newest_s: float = 0.0
    paths: list[str] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)


class Watermark:
    """high, low: per cent of the disk. used: per cent of it that is taken where a folder lies."""

    def __init__(
        self, folders: Sequence[str], high: float, low: float, used: Callable[[str], float] | None = None
    ) -> None:
        if low >= high:
            raise StorageError(f"watermark: the low mark, {low:g} %, must lie below the high one, {high:g} %")
        self._folders = folders
        self._high, self._low = high, low
        self._used = used or _used_percent
        self.every_s = EVERY_S
        self.stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="storage watermark", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()

    def _run(self) -> None:
        while not self.stopped.wait(self.every_s):
            with suppress(OSError):  # a disk that cannot be looked at is looked at again
                self.look()

    def keeps(self) -> Keeping:
        """Marks are shares of the whole disk, whoever fills it: what others have there counts as filled for ever."""
        disks = {os.stat(folder).st_dev: os.statvfs(folder) for folder in self._folders}.values()
        free_bytes = sum(disk.f_bavail * disk.f_frsize for disk in disks)
        whole_bytes = sum(disk.f_blocks * disk.f_frsize for disk in disks)
        left = {name: mark / 100 * whole_bytes - (whole_bytes - free_bytes) for name, mark in self._marks().items()}
        words = f"{whole_bytes / 1e9:.1f} GB, of which {free_bytes / 1e9:.1f} GB are free"
        return {
            "eviction": Known("watermark_cleaner", f"looks every {self.every_s:g} s, the oldest files go"),
            "capacity_bytes": Known(float(free_bytes), f"a disk of {words}"),
            **{
                name: Known(max(bytes_left, 0.0) / max(free_bytes, 1), f"{self._marks()[name]:g} % of {words}")
                for name, bytes_left in left.items()
            },
        }

    def _marks(self) -> dict[str, float]:
        return {"high_watermark": self._high, "low_watermark": self._low}

    def look(self) -> int:
        """Make room if there must be; how many files went."""
        full = {folder for folder in self._folders if self._used(folder) >= self._high}
        if not full:
            return 0
        groups = sorted((each for each in self._groups() if each.folders & full), key=lambda each: each.newest_s)
        gone = 0
        for at in range(0, len(groups), BATCH_GROUPS):
            gone += sum(_remove(path) for group in groups[at : at + BATCH_GROUPS] for path in group.paths)
            if self.stopped.is_set() or all(self._used(folder) < self._low for folder in full):
                break
        return gone

    def _groups(self) -> list[_Group]:
        groups: dict[str, _Group] = {}
        for folder in self._folders:
            for entry in _files(folder):
                with suppress(FileNotFoundError):
                    group = groups.setdefault(group_of(entry.name), _Group())
                    group.newest_s = max(group.newest_s, entry.stat().st_mtime)
                    group.paths.append(entry.path)
                    group.folders.add(folder)
        return list(groups.values())


def group_of(file: str) -> str:
    """What the files of one page have in common, whatever rank and component they are."""
    return _RANKS.sub("", _COMPONENT.sub("", file))


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as buckets:
        for bucket in buckets:
            if _BUCKET.fullmatch(bucket.name) and bucket.is_dir():
                with os.scandir(bucket.path) as entries:
                    yield from (entry for entry in entries if not entry.name.startswith("."))


def _remove(path: str) -> bool:
    try:
        os.remove(path)
    except OSError:
        return False
    return True


def _used_percent(folder: str) -> float:
    disk = os.statvfs(folder)
    return 100.0 * (disk.f_blocks - disk.f_bavail) / max(disk.f_blocks, 1)
