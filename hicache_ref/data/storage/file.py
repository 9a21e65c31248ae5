"""The file store: a folder, and in it one file a page. What SGLang wrote is read here, and the other way round.

Rules of this file
- A file is named `<hash>_<model>_<tp rank>_<tp size>.bin`, without ranks where all have the same rows (MLA), with
  `_<pp size>_<pp rank>` under pipeline parallelism; it holds a page's bytes component by component, and behind them
  nothing, or what `verify` asks for.
- A file appears whole or not at all: it is written under another name, then renamed. One of another length than the
  page is none, and is written again; upstream would keep it for ever.
- No copies: the kernel takes bytes from host pages and puts them there. A batch is cut into as many runs of pages
  as there are threads, the caller's included.
- A disk without room refuses pages (a short count). Any other error of the system raises `StoreFailed`.
- Source: `HiCacheFile` in `hicache_storage.py` of 0.5.7 and 0.5.23 (names, keys of the extra config, variables).
"""

from __future__ import annotations

import errno
import itertools
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from .cap import SUFFIX, UNFINISHED, Cap, LruCap, NoCap
from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .keeping import Keeping
from .options import Options, flag, number, size_bytes, text, whole
from .seen import NothingSeen, Seen, SeenFor
from .threads import Threads, ThreadsEnded
from .trailer import NoTrailer, SealTrailer, Trailer, has_length
from .vectors import write_all

DEFAULT_FOLDER = "/tmp/hicache"
_ENV = "SGLANG_HICACHE_FILE_BACKEND_"
_CLOSED = "the file store is closed"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def from_options(identity: StorageIdentity, options: Options) -> FileClient:
    """The client that an operator's settings ask for."""
    # Alone among the keys the folder goes by the environment first, upstream.
    folder = options.take("file_storage_path", text, DEFAULT_FOLDER)
    folder = options.environ.get(_ENV + "STORAGE_DIR") or folder
    max_bytes = options.take("max_size", size_bytes, 0, _ENV + "MAX_SIZE")
    min_free_bytes = options.take("min_free_space", size_bytes, 0, _ENV + "MIN_FREE_SPACE")
    ratio = number(0.01, 1.0, "a share of max_size")
    keep_ratio = options.take("eviction_ratio", ratio, 0.9, _ENV + "EVICTION_RATIO")
    remembers = options.take("enable_metadata_cache", flag, False, _ENV + "ENABLE_METADATA_CACHE")
    ttl_s = options.take("metadata_ttl", number(-1.0, what="seconds"), 5.0, _ENV + "METADATA_TTL")
    threads = options.take("io_threads", whole(1, 64), FileClient.THREADS)
    verify = options.take("verify", flag, False)
    options.end()
    seen = SeenFor(ttl_s) if remembers else NothingSeen()
    client = FileClient(identity, folder, threads, seen=seen, trailer=SealTrailer() if verify else NoTrailer())
    # Who writes the pages also forgets them; replicas only read.
    if identity.writes and (max_bytes or min_free_bytes):
        client.limit(max_bytes, min_free_bytes, keep_ratio)
    return client


def suffix(identity: StorageIdentity) -> str:
    """What upstream appends to a page's hash."""
    model = identity.model_name.replace("/", "-")
    ranks = "" if identity.replicated else f"_{identity.tp_rank}_{identity.tp_size}"
    stage = f"_{identity.pp_size}_{identity.pp_rank}" if identity.pp_size > 1 else ""
    return f"_{model}{ranks}{stage}"


Work = Callable[[str, PageMemory, int], bool]
"""What is done with the file of a stem and a host page; False ends the run of pages."""


class _Run(NamedTuple):
    """What came of neighbouring pages: how many leading ones are good, and what else than a miss ended them."""

    good: int
    error: Exception | None = None


class FileClient:
    """Satisfies `StorageClient` over `folder`, which is made if it is not there."""

    THREADS = 4

    def __init__(
        self,
        identity: StorageIdentity,
        folder: str | os.PathLike[str],
        threads: int = THREADS,
        cap: Cap | None = None,
        seen: Seen | None = None,
        trailer: Trailer | None = None,
    ) -> None:
        self.identity = identity
        self.folder = os.fspath(folder)
        if "/" in identity.tag:
            raise StorageError(f"file store: tag {identity.tag!r} names a folder; take the / out of extra_backend_tag")
        self._prefix = f"{identity.tag}_" if identity.tag else ""
        self._suffix = suffix(identity)
        self._cap = cap or NoCap()
        self._seen = seen or NothingSeen()
        self._trailer = trailer or NoTrailer()
        self._counts = Counts()
        self._shares = threads
        self._others = Threads(threads - 1, "file store")
        self._closed = False
        # Unique among all who write to this folder, on this machine or another that mounts it.
        self._writer = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._make_folder()

    def limit(self, max_bytes: int, min_free_bytes: int = 0, keep_ratio: float = 0.9) -> None:
        """Remove the pages used longest ago when they take more than this; see `LruCap`."""
        self._cap = LruCap(self.folder, self._owns, self._evicted, max_bytes, min_free_bytes, keep_ratio)

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        self._check_open()
        for at, name in enumerate(names):
            stem = self._stem(name)
            if stem not in self._seen:
                if self._size_bytes(stem) is None:
                    return at
                self._seen.add(stem)
        return len(names)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        self._check_open()
        pages = list(zip(map(self._stem, names), slots.tolist(), strict=True))
        good, error = self._spread(self._read, pages, host)
        self._counts.add("read_pages", good)
        return _answer(good, error)

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        self._check_open()
        stems = list(map(self._stem, names))
        # Looked up before the threads start: a short system call is cheap as long as no thread waits to run meanwhile.
        new = []
        for at, stem in enumerate(stems):
            size_bytes = self._size_bytes(stem)
            if size_bytes is not None and has_length(size_bytes, host.page_bytes):
                self._cap.touch(stem, size_bytes)
            else:
                new.append(at)
        self._counts.add("present_pages", len(stems) - len(new))
        pages = slots.tolist()
        written, error = self._spread(self._write, [(stems[at], pages[at]) for at in new], host)
        return _answer(len(stems) if written == len(new) else new[written], error)

    def clear(self) -> None:
        """Remove this identity's files. Upstream removes every file in the folder."""
        self._check_open()
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    stem, ending = os.path.splitext(entry.name)
                    if ending == SUFFIX and self._owns(stem):
                        with suppress(FileNotFoundError):
                            os.remove(entry.path)
        except FileNotFoundError:
            pass  # no folder, no pages
        except OSError as error:
            raise StoreFailed(f"file store: {error}") from error
        self._cap.clear()
        self._seen.clear()

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return self._cap.keeps(self.folder, page_bytes, page_bytes + self._trailer.size_bytes)

    def close(self) -> None:
        self._closed = True
        self._others.end()

    # Batches

    def _spread(self, work: Work, pages: list[tuple[str, int]], host: PageMemory) -> _Run:
        """`work` on every (stem, page), neighbours on one thread; what came of all together."""
        share = -(-len(pages) // self._shares) or 1
        runs = [pages[at : at + share] for at in range(0, len(pages), share)]
        try:
            others = self._others.submit_all(_in_turn, [(work, run, host) for run in runs[1:]])
        except ThreadsEnded:
            raise StoreFailed(_CLOSED) from None
        # Nobody returns before all have: pages are touched within the call only.
        done = [_in_turn(work, run, host) for run in runs[:1]] + [other.result() for other in others]
        good = 0
        for run, (leading, error) in zip(runs, done, strict=True):
            good += leading
            if leading < len(run):
                return _Run(good, error)
        return _Run(good)

    def _read(self, stem: str, host: PageMemory, page: int) -> bool:
        try:
            fd = os.open(self._path(stem), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._seen.remove(stem)
            self._counts.add("missed_pages")
            return False
        try:
            whole = self._trailer.read(fd, stem, host.page_memory(page), host.page_bytes)
            damaged = not whole and has_length(os.fstat(fd).st_size, host.page_bytes)
        finally:
            os.close(fd)
        if whole:
            self._cap.touch(stem, host.page_bytes + self._trailer.size_bytes)
        else:
            self._counts.add("bad_pages")
        if damaged:
            # One of another length is written again in any case; this one looks whole to who does not read it.
            self._discard(stem)
        return whole

    def _write(self, stem: str, host: PageMemory, page: int) -> bool:
        if not self._cap.reserve(stem, host.page_bytes + self._trailer.size_bytes):
            self._counts.add("refused_pages")
            return False
        try:
            pieces = host.page_memory(page)
            self._write_file(self._path(stem), [*pieces, *self._trailer.behind(stem, pieces)])
        except OSError as error:
            self._cap.abort(stem)
            if error.errno not in _NO_ROOM:
                raise
            self._counts.add("refused_pages")
            return False
        self._cap.commit(stem)
        self._seen.add(stem)
        self._counts.add("written_pages")
        return True

    def _write_file(self, path: str, buffers: list[memoryview]) -> None:
        unfinished = f"{self.folder}/.{self._writer}.{next(self._numbers)}{UNFINISHED}"
        fd = self._create(unfinished)
        try:
            try:
                write_all(fd, buffers)
            finally:
                os.close(fd)
            os.replace(unfinished, path)
        except OSError:
            with suppress(OSError):
                os.remove(unfinished)
            raise

    def _create(self, path: str) -> int:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            # Somebody has removed the folder. That is one way to empty the store, and no reason to be without one.
            os.makedirs(self.folder, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    # Files

    def _make_folder(self) -> None:
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"file store: cannot make {self.folder}: {error.strerror}; set {_ENV}STORAGE_DIR or file_storage_path"
            ) from None

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed(_CLOSED)

    def _stem(self, name: str) -> str:
        return self._prefix + name + self._suffix

    def _path(self, stem: str) -> str:
        return f"{self.folder}/{stem}{SUFFIX}"

    def _owns(self, stem: str) -> bool:
        """Whether a file is one of this identity's pages. Model names may end alike, so the rest must be a hash."""
        if not (stem.startswith(self._prefix) and stem.endswith(self._suffix)):
            return False
        name = stem[len(self._prefix) : len(stem) - len(self._suffix)]
        return bool(name) and "_" not in name

    def _size_bytes(self, stem: str) -> int | None:
        try:
            return os.stat(self._path(stem)).st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreFailed(f"file store: {error}") from error

    def _discard(self, stem: str) -> None:
        with suppress(OSError):
            os.remove(self._path(stem))
        self._seen.remove(stem)

    def _evicted(self, stem: str) -> None:
        self._seen.remove(stem)
        self._counts.add("evicted_pages")


def _answer(good: int, error: Exception | None) -> int:
    if error is not None:
        raise StoreFailed(f"file store: {error}", good) from error
    return good


def _in_turn(work: Work, pages: list[tuple[str, int]], host: PageMemory) -> _Run:
    """Page after page, to the first that is not good: those behind it would not count."""
    for at, (stem, page) in enumerate(pages):
        try:
            if not work(stem, host, page):
                return _Run(at)
        except Exception as error:
            return _Run(at, error)
    return _Run(len(pages))
