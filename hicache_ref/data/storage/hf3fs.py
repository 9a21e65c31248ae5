"""3FS: pages of one large file, and a table that says whose each of them is.

Rules of this file
- Upstream's file, `<prefix>.<rank>.bin` (rank 0's for all where rows are the same, MLA), and its keys: `<hash>-k` and
  `<hash>-v` where host layouts give a page in one piece for each component, else `<hash>`. They name neither the model
  nor the stage: a tag, and a pipeline stage, have files and tables of their own here.
- A page of the file may be given to another key while it is read. So a seal over key, identity and bytes is kept in the
  table; bytes that it does not fit are a bad page, which is forgotten. What was written without one (by SGLang, or
  kept by SGLang's server) is looked up again after it was read: it must still have the same page.
- A batch goes in groups of `entries` objects, `numjobs` at a time. Nothing is rewritten, and the file is never full:
  the table gives away what was used longest ago.
- Source: `storage_hf3fs.py` of 0.5.23 (keys, file, settings, variables).
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .gate import Gate
from .keeping import Keeping, Known
from .naming import prefix
from .objects import cut_memory
from .options import Options, flag, number, size_bytes, text, whole
from .seal import UNSEALED, Digests, Running, Sealer, Trust
from .threads import Threads
from .threefs.drivers import Driver, FileDriver, Pieces, Seen, UsrbioDriver, usrbio
from .threefs.metadata import HttpMetadata, LocalMetadata, Metadata
from .threefs.table import NO_PAGE, Place

_CONFIG_PATH = "SGLANG_HICACHE_HF3FS_CONFIG_PATH"
_PIECEWISE = ("page_first", "page_first_direct")
"""The layouts that upstream moves without a copy."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

RUN_BYTES = 2 << 20
"""A thread is worth waking for that much; more at once, and a thread that is late is waited for."""

Call: TypeAlias = "Callable[[Driver, Sequence[int], Sequence[Pieces], Seen], list[int]]"


class Moved(NamedTuple):
    """What came of one object: bytes that went, and a seal that has seen what they were."""

    size: int
    seal: Running


class Settings(NamedTuple):
    file_prefix: str
    file_bytes: int
    jobs: int
    entries: int
    server_url: str
    """"" for a table of one's own."""
    timeout_s: float
    mock: bool
    """A plain file instead of 3FS."""
    verify: bool


def from_options(identity: StorageIdentity, options: Options) -> Hf3fsClient:
    """The client that an operator's settings ask for."""
    return open_client(identity, read_settings(options))


def read_settings(options: Options) -> Settings:
    """From the extra config and the file that a variable names; the former goes first."""
    path = options.environ.get(_CONFIG_PATH)
    if path:
        options.default_to(_read_file(path))
    settings = Settings(
        file_prefix=options.take("file_path_prefix", text, "/data/hicache"),
        file_bytes=options.take("file_size", size_bytes, 1 << 40),
        jobs=options.take("numjobs", whole(1, 1024), 16),
        entries=options.take("entries", whole(1, 4096), 8),
        server_url=options.take("metadata_server_url", text, ""),
        timeout_s=options.take("client_timeout", number(0.001, what="seconds"), 5.0),
        mock=options.take("use_mock_hf3fs_client", flag, False),
        verify=options.take("verify", flag, True),
    )
    options.end()
    return settings


def open_client(identity: StorageIdentity, settings: Settings) -> Hf3fsClient:
    """StorageError: settings that cannot be, or no 3FS."""
    if identity.replicated and not settings.server_url:
        raise StorageError("hf3fs: ranks that share their pages (MLA) need a metadata server: set metadata_server_url")
    if not settings.mock:
        usrbio()
    number, namespace = rank_number(identity), f"kv-{identity.tag}" if identity.tag else "kv"
    metadata: Metadata = LocalMetadata()
    if settings.server_url:
        metadata = HttpMetadata(settings.server_url, number, namespace, settings.timeout_s)
    path = f"{settings.file_prefix}.{number}.bin" + (f".{identity.tag}" if identity.tag else "")

    def driver(object_bytes: int) -> Driver:
        if settings.mock:
            return FileDriver(path, settings.file_bytes)
        return UsrbioDriver(path, settings.file_bytes, object_bytes, settings.entries, settings.timeout_s)

    return Hf3fsClient(
        identity,
        metadata,
        driver,
        settings.file_bytes,
        jobs=settings.jobs,
        entries=settings.entries,
        sealer=Digests() if settings.verify else Trust(),
    )


def rank_number(identity: StorageIdentity) -> int:
    """Upstream's rank, and numbers beyond all of them for later pipeline stages."""
    rank = 0 if identity.replicated else identity.tp_rank
    return identity.pp_rank * identity.tp_size + rank


def _read_file(path: str) -> Mapping[str, Any]:
    required = ("file_path_prefix", "file_size", "numjobs", "entries")
    try:
        with open(path) as file:
            found = json.load(file)
        missing = [key for key in required if key not in found]
    except (OSError, TypeError, ValueError) as error:
        raise StorageError(f"hf3fs: {_CONFIG_PATH}: cannot read {path}: {error}") from None
    if missing:
        raise StorageError(f"hf3fs: {_CONFIG_PATH}: {path} lacks {', '.join(missing)}")
    return dict(found)


def _read(driver: Driver, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]:
    return driver.read(offsets, objects, seen)


def _write(driver: Driver, offsets: Sequence[int], objects: Sequence[Pieces], seen: Seen) -> list[int]:
    return driver.write(offsets, objects, seen)


class Hf3fsClient:
    """Satisfies `StorageClient` over a file of `file_bytes`. `driver(object_bytes)` opens it, `jobs` times."""

    def __init__(
        self,
        identity: StorageIdentity,
        metadata: Metadata,
        driver: Callable[[int], Driver],
        file_bytes: int,
        *,
        jobs: int = 4,
        entries: int = 8,
        sealer: Sealer | None = None,
    ) -> None:
        if "/" in identity.tag:
            raise StorageError(f"hf3fs: tag {identity.tag!r} names a folder; take the / out of extra_backend_tag")
        self.identity = identity
        self._metadata = metadata
        self._driver = driver
        self._file_bytes = file_bytes
        self._jobs, self._entries = jobs, entries
        self._sealer = sealer or Digests()
        self._seal_prefix = prefix(identity)
        piecewise = identity.layout in _PIECEWISE and not identity.replicated
        self._endings = ("-k", "-v") if piecewise else ("",)
        self._object_bytes = 0
        """Known with the first host."""
        self._lock = threading.Lock()
        self._drivers: SimpleQueue[Driver] = SimpleQueue()
        self._threads = Threads(jobs, "hf3fs")
        self._counts = Counts()
        self._gate = Gate("the hf3fs store", self._end)

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        with self._gate:
            there = self._metadata.exists(self._keys(names)) if names else []
            return self._pages(there)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate:
            keys, objects = self._objects(names, host, slots)
            places = self._metadata.find(keys) if keys else []
            found = self._pages([place is not None for place in places]) * len(self._endings)
            here = [place for place in places[:found] if place is not None]
            moved = self._spread(_read, keys[:found], here, objects[:found])
            good = self._pages(self._verified(keys[:found], here, moved))
            self._counts.add("read_pages", good)
            if good < len(names):
                self._counts.add("missed_pages" if good * len(self._endings) == found else "bad_pages")
            return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._gate:
            keys, objects = self._objects(names, host, slots)
            given = self._metadata.reserve(keys) if keys else []
            fates = [known for known, _ in given]
            new = [at for at, (known, page) in enumerate(given) if not known and page != NO_PAGE]
            for at, fate in zip(new, self._written(keys, objects, given, new), strict=True):
                fates[at] = fate
            self._count_put([known for known, _ in given], fates)
            return self._pages(fates)

    def clear(self) -> None:
        with self._gate:
            self._metadata.clear()

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return {
            "eviction": Known("lru_page_table", "a new key takes the page of the key used longest ago"),
            "capacity_bytes": Known(float(self._file_bytes), "file_size"),
        }

    def close(self) -> None:
        self._gate.close()

    # Objects

    def _keys(self, names: Sequence[str]) -> list[str]:
        return [name + ending for name in names for ending in self._endings]

    def _objects(self, names: Sequence[str], host: PageMemory, slots: Slots) -> tuple[list[str], list[Pieces]]:
        self._open(host.page_bytes // len(self._endings))
        count = len(self._endings)
        objects: list[Pieces] = [share for page in slots.tolist() for share in cut_memory(host, page, count)]
        return self._keys(names), objects

    def _open(self, object_bytes: int) -> None:
        """The file holds objects of one size: what the first page has."""
        with self._lock:
            if self._object_bytes == 0:
                self._metadata.open(self._file_bytes // object_bytes)
                for _ in range(self._jobs):
                    self._drivers.put(self._driver(object_bytes))
                self._object_bytes = object_bytes
        if object_bytes != self._object_bytes:
            raise StoreFailed(f"hf3fs: the file holds objects of {self._object_bytes} bytes, not of {object_bytes}")

    def _pages(self, fates: Sequence[bool]) -> int:
        """Leading pages of which all objects are well."""
        good = fates.index(False) if False in fates else len(fates)
        return good // len(self._endings)

    # Moving

    def _spread(
        self, call: Call, keys: Sequence[str], places: Sequence[Place], objects: Sequence[Pieces]
    ) -> list[Moved]:
        """What came of each object, moved in runs of groups by all drivers at once. StoreFailed: one of them failed."""
        groups = -(-len(keys) // self._entries)
        together = max(1, RUN_BYTES // (self._entries * self._object_bytes))
        run = min(together, -(-groups // self._jobs)) * self._entries or 1
        runs = [slice(at, at + run) for at in range(0, len(keys), run)]
        asked = [(call, keys[run], places[run], objects[run]) for run in runs]
        others = self._threads.submit_all(self._in_turn, asked[1:])
        # Nobody returns before all have: pages are touched within the call only.
        done = [self._in_turn(*arguments) for arguments in asked[:1]] + [other.result() for other in others]
        for _, error in done:
            if error is not None:
                raise StoreFailed(f"hf3fs: {error}") from error
        return [one for moved, _ in done for one in moved]

    def _in_turn(
        self, call: Call, keys: Sequence[str], places: Sequence[Place], objects: Sequence[Pieces]
    ) -> tuple[list[Moved], Exception | None]:
        """What came of a run of objects, group after group by one driver, and what went wrong."""
        driver, moved = self._drivers.get(), list[Moved]()
        try:
            for at in range(0, len(keys), self._entries):
                group = slice(at, at + self._entries)
                some, error = self._move(driver, call, keys[group], places[group], objects[group])
                moved += some
                if error is not None:
                    return moved, error
        finally:
            self._drivers.put(driver)
        return moved, None

    def _move(
        self, driver: Driver, call: Call, keys: Sequence[str], places: Sequence[Place], objects: Sequence[Pieces]
    ) -> tuple[list[Moved], Exception | None]:
        """What came of a group, and what went wrong, unless that is a lack of room."""
        seals = [self._sealer.begin(self._seal_prefix + key) for key in keys]

        def seen(at: int) -> None:
            for piece in objects[at]:
                seals[at].update(piece)

        try:
            sizes = call(driver, [place.page * self._object_bytes for place in places], objects, seen)
            return list(map(Moved, sizes, seals)), None
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in NO_ROOM
            return [Moved(0, seal) for seal in seals], None if full else error

    def _verified(self, keys: Sequence[str], places: Sequence[Place], moved: Sequence[Moved]) -> list[bool]:
        """Which objects hold what their keys say. Those that do not are forgotten, so that they are written again."""
        unsealed = [key for key, place in zip(keys, places, strict=True) if not place.seal]
        again = dict(zip(unsealed, self._metadata.find(unsealed), strict=True)) if unsealed else {}
        fates = [
            one.size == self._object_bytes
            and (one.seal.fits(bytes.fromhex(place.seal)) if place.seal else again[key] == place)
            for key, place, one in zip(keys, places, moved, strict=True)
        ]
        wrong = [key for key, fate, place in zip(keys, fates, places, strict=True) if place.seal and not fate]
        if wrong:
            self._metadata.delete(wrong)
        return fates

    def _written(
        self,
        keys: Sequence[str],
        objects: Sequence[Pieces],
        given: Sequence[tuple[bool, int]],
        new: Sequence[int],
    ) -> list[bool]:
        """Write the `new` objects to the pages that they were given; for each whether it is there now."""
        if not new:
            return []
        places = [Place(given[at][1]) for at in new]
        fates, written = [False] * len(new), []
        try:
            moved = self._spread(_write, [keys[at] for at in new], places, [objects[at] for at in new])
            fates = [one.size == self._object_bytes for one in moved]
            outcome = zip(new, places, moved, fates, strict=True)
            written = [(keys[at], Place(place.page, _hex(one.seal))) for at, place, one, fate in outcome if fate]
        finally:
            self._metadata.confirm(written, [place.page for place, fate in zip(places, fates, strict=True) if not fate])
        return fates

    def _count_put(self, known: Sequence[bool], fates: Sequence[bool]) -> None:
        count = len(self._endings)
        for at in range(0, len(fates), count):
            page = slice(at, at + count)
            if not all(fates[page]):
                self._counts.add("refused_pages")
            else:
                self._counts.add("present_pages" if all(known[page]) else "written_pages")

    def _end(self) -> None:
        self._threads.end()
        while not self._drivers.empty():
            self._drivers.get().close()
        self._metadata.close()


def _hex(running: Running) -> str:
    """As the table keeps it: nothing for a page that nobody vouches for."""
    seal = running.seal()
    return "" if seal == UNSEALED else seal.hex()
