"""Local stores in trouble: disks that are full, read-only or slow, and pages changed behind their back.

Rules of this file
- A disk is a small tmpfs of its own: really full, really read-only. It takes root to mount one; skipped without.
- Every second page is changed, so that good and bad ones lie side by side.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_ref.data.storage.client import StorageClient, StorageIdentity
from hicache_ref.data.storage.registry import make_client
from hicache_ref.testing.unreliable import Habits, UnreliableClient

from .story import Trouble

Change = Callable[[bytes], bytes]


def shorten(page: bytes) -> bytes:
    return page[: len(page) // 2]


def flip(page: bytes) -> bytes:
    at = len(page) // 3
    return page[:at] + bytes([page[at] ^ 4]) + page[at + 1 :]


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a disk for a test takes Linux and root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "hicache-fault", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Take all that is left of the disk."""
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def remount(folder: Path, how: str) -> None:
    """Again while a file that is being written keeps it from that."""
    for _ in range(200):
        if not subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], capture_output=True).returncode:
            return
        time.sleep(0.01)
    raise RuntimeError(f"{folder} cannot be remounted {how}")


def files_in(folder: Path, **extra: object) -> Callable[[StorageIdentity], StorageClient]:
    return lambda identity: make_client("file", identity, {"file_storage_path": str(folder)} | extra, {})


def nixl_in(folder: Path) -> Callable[[StorageIdentity], StorageClient]:
    pytest.importorskip("nixl_cu12", reason="NIXL is not installed: pip install 'hicache[nixl]'")
    environ = {"SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": str(folder), "SGLANG_HICACHE_NIXL_USE_DIRECT_IO": "0"}
    extra = {"plugin": {"posix": {"active": True}}, "l3_cleaner_enabled": False}
    return lambda identity: make_client("nixl", identity, extra, environ)


def lmdb_in(folder: Path) -> Callable[[StorageIdentity], StorageClient]:
    pytest.importorskip("lmdb", reason="LMDB is not installed: pip install 'hicache[lmdb]'")
    return lambda identity: make_client("lmdb", identity, {"path": str(folder), "max_size": "64Mi"}, {})


Make = Callable[[Path], Callable[[StorageIdentity], StorageClient]]


@contextmanager
def full(folder: Path, make: Make) -> Iterator[Trouble]:
    with tmpfs(folder, "16m"):
        ballast = folder / "ballast"
        yield Trouble(make(folder / "store"), lambda: fill(ballast), ballast.unlink)


@contextmanager
def full_lmdb(folder: Path) -> Iterator[Trouble]:
    """LMDB takes its room ahead; in small pieces here, so that it asks for more while the disk is full."""
    from hicache_ref.data.storage import lmdb

    with pytest.MonkeyPatch.context() as patch, full(folder, lmdb_in) as local:
        patch.setattr(lmdb._Environment, "CHUNK_BYTES", 64 << 10)
        yield local


@contextmanager
def read_only(folder: Path, make: Make) -> Iterator[Trouble]:
    with tmpfs(folder, "16m"):
        yield Trouble(make(folder), lambda: remount(folder, "ro"), lambda: remount(folder, "rw"))


@contextmanager
def changed_files(folder: Path, change: Change, pattern: str, make: Make) -> Iterator[Trouble]:
    def hurt() -> None:
        for path in sorted(folder.glob(pattern))[::2]:
            path.write_bytes(change(path.read_bytes()))

    yield Trouble(make(folder), hurt)


@contextmanager
def changed_lmdb(folder: Path, change: Change) -> Iterator[Trouble]:
    from hicache_ref.data.storage import lmdb

    def hurt() -> None:
        environment = lmdb._ENVIRONMENTS._open[os.path.realpath(folder)]
        with environment.begin(write=True) as txn:
            keys = [bytes(key) for key, _ in txn.cursor() if bytes(key).endswith(b"\1")]
            for key in keys[::2]:
                txn.put(key, change(bytes(txn.get(key))))

    yield Trouble(lmdb_in(folder), hurt)


@contextmanager
def with_habits(folder: Path, habits: Habits) -> Iterator[Trouble]:
    """Files behind a client that takes up `habits` while it is hurt."""
    made: list[UnreliableClient] = []

    def make(identity: StorageIdentity) -> StorageClient:
        made.append(UnreliableClient(files_in(folder)(identity), Habits(), seed=1))
        return made[0]

    def take(habits: Habits) -> Callable[[], None]:
        return lambda: setattr(made[0], "habits", habits)

    yield Trouble(make, take(habits), take(Habits()))
