"""LMDB: a store in one file, mapped into memory. The fastest that keeps pages on a local disk.

Rules of this file
- A page is some entries under one key: its facts, then its components. Entries of a page are neighbours, and are there
  or not there together: a batch is one write transaction. Batches have turns, in which their pages go when it is full.
- One copy each way, between the map and the host page. Readers never wait, not for writers either.
- One environment a folder and process, however many clients have it open (`_ENVIRONMENTS`): LMDB asks for that.
- The disk is asked for room before the map is written to. A map over a hole in a full disk kills the process.
- Full is not the end: pages written longest ago go, but those read since then get another turn.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import lmdb

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .gate import Gate
from .keeping import Keeping, Known
from .naming import prefix
from .options import Options, flag, size_bytes, text
from .pieces import components, pour
from .seal import SEAL_BYTES, Digests, Sealer, Trust

DEFAULT_FOLDER = "/tmp/hicache-lmdb"
DEFAULT_BYTES = 64 << 30
KEPT = 0.9
"""Of the limit, after pages had to go."""
_NAME_CHARS = 64
_BETWEEN = b"\n"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_HEADER_BYTES, _ENTRY_BYTES = 16, 160
"""Of LMDB's: before a large value, and about what a key takes in the tree."""


def from_options(identity: StorageIdentity, options: Options) -> LmdbClient:
    """The client that an operator's settings ask for."""
    folder = options.take("path", text, DEFAULT_FOLDER)
    max_bytes = options.take("max_size", size_bytes, DEFAULT_BYTES)
    durable = options.take("durable", flag, False)
    verify = options.take("verify", flag, True)
    options.end()
    return LmdbClient(identity, folder, max_bytes, durable, Digests() if verify else Trust())


_FACTS = struct.Struct(f"<QQ{SEAL_BYTES}s")
"""What is stored beside a page's components: the turn of the batch it came with, its bytes, its seal."""
_FACTS_OF = b"\0"
"""Behind a page's key: the entry of its facts. Components follow, by their numbers from 1 on."""


_Page: TypeAlias = "tuple[str, bytes, int]"
"""Name, key, page of the host."""
_NOTHING = memoryview(b"")


class LmdbClient:
    """Satisfies `StorageClient` over the environment in `folder`, made if it is not there.

    max_bytes: what its pages may take. durable: every batch is on the disk when `put` returns, at a tenth of the
    speed; else the kernel writes it when it likes, which a crash of the machine may catch halfway.
    """

    def __init__(
        self,
        identity: StorageIdentity,
        folder: str | os.PathLike[str],
        max_bytes: int = DEFAULT_BYTES,
        durable: bool = False,
        sealer: Sealer | None = None,
    ) -> None:
        self.identity = identity
        self._prefix = prefix(identity)
        self._part_numbers = (b"\1",) if identity.replicated else (b"\1", b"\2")
        self._sealer = sealer or Digests()
        self._counts = Counts()
        self._environment = _ENVIRONMENTS.open(os.fspath(folder), max_bytes, durable)
        self._gate = Gate("the LMDB store", lambda: _ENVIRONMENTS.close(self._environment))
        longest = self._environment.longest_key
        if len(self._prefix) + _NAME_CHARS + 1 > longest:
            self.close()
            raise StorageError(f"LMDB takes keys of {longest} bytes: shorten the model's name or extra_backend_tag")

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        with self._read() as txn:
            for at, name in enumerate(names):
                if txn.get(self._key(name) + _FACTS_OF) is None:
                    return at
        return len(names)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        good, bad = 0, None
        keys = list(map(self._key, names))
        with self._read() as txn:
            for name, key, page in zip(names, keys, slots.tolist(), strict=True):
                facts = txn.get(key + _FACTS_OF)
                if facts is None:
                    self._counts.add("missed_pages")
                    break
                if not self._copy(txn, name, key, facts, host, page):
                    bad = key
                    break
                good += 1
        self._environment.used(keys[:good])
        self._counts.add("read_pages", good)
        if bad is not None:
            self._counts.add("bad_pages")
            self._forget(bad)
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        pages = list(zip(names, map(self._key, names), slots.tolist(), strict=True))
        new = self._missing(pages, host.page_bytes)
        self._counts.add("present_pages", len(names) - len(new))
        if not new:
            return len(names)
        with self._gate, _failures():
            admitted = self._environment.make_room(len(new), host.page_bytes)
            written = self._write([pages[at] for at in new[:admitted]], host)
        self._counts.add("written_pages", written)
        self._counts.add("refused_pages", len(new) - written)
        return len(names) if written == len(new) else new[written]

    def clear(self) -> None:
        start = self._prefix.encode()
        with self._gate, _failures(), self._environment.begin(write=True) as txn, txn.cursor() as cursor:
            found = cursor.set_range(start)
            while found and bytes(cursor.key()).startswith(start):
                found = cursor.delete()

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return self._environment.keeps(page_bytes)

    def close(self) -> None:
        self._gate.close()

    # Pages

    def _key(self, name: str) -> bytes:
        """What the keys of a page's entries begin with."""
        return (self._prefix + name).encode()

    def _missing(self, pages: list[_Page], page_bytes: int) -> list[int]:
        """Which pages are not there, or are of another length."""
        with self._read() as txn:
            facts = [txn.get(key + _FACTS_OF) for _, key, _ in pages]
            return [at for at, known in enumerate(facts) if known is None or _FACTS.unpack(known)[1] != page_bytes]

    def _copy(self, txn: Any, name: str, key: bytes, facts: memoryview, host: PageMemory, page: int) -> bool:
        """A page's components into host memory; whether they are what `facts` say."""
        _, page_bytes, seal = _FACTS.unpack(facts)
        parts = [txn.get(key + part, _NOTHING) for part in self._part_numbers]
        if not sum([part.nbytes for part in parts]) == page_bytes == host.page_bytes:
            return False
        running = self._sealer.begin(name)
        pour(parts, host.page_memory(page), running.update)
        return running.fits(seal)

    def _write(self, pages: list[_Page], host: PageMemory) -> int:
        """Pages written: all or, in a map without room, none. Whatever is there under their keys is replaced."""
        numbers = self._part_numbers
        with suppress(lmdb.MapFullError), self._environment.begin(write=True) as txn:
            turn = self._environment.take_turn(txn, [key for _, key, _ in pages])
            for name, key, page in pages:
                parts = components(host, page, len(numbers))
                for number, part in zip(numbers, parts, strict=True):
                    txn.put(key + number, part)
                txn.put(key + _FACTS_OF, _FACTS.pack(turn, host.page_bytes, self._sealer.seal(name, parts)))
            return len(pages)
        return 0

    def _forget(self, key: bytes) -> None:
        """Remove a page that is not what it should be, so that it is written again."""
        with self._gate, _failures(), self._environment.begin(write=True) as txn:
            _remove(txn, key)

    @contextmanager
    def _read(self) -> Iterator[Any]:
        with self._gate, _failures(), self._environment.begin() as txn:
            yield txn


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise StoreFailed(f"LMDB store: {error}") from error


def _remove(txn: Any, key: bytes) -> None:
    """All entries of a page."""
    with txn.cursor() as cursor:
        found = cursor.set_key(key + _FACTS_OF)
        while found and bytes(cursor.key())[:-1] == key:
            found = cursor.delete()


class _Environment:
    """An open environment: LMDB's, and how much of it pages may take."""

    CHUNK_BYTES = 64 << 20
    """The disk gives room in pieces of this size."""
    SLACK_BYTES = 64 << 20
    """What the map holds beyond its pages: tables, and pages that went but that LMDB cannot take again yet."""

    def __init__(self, folder: str, max_bytes: int, durable: bool) -> None:
        self.folder = folder
        self.clients = 0
        self._max_bytes = max_bytes
        self._map_bytes = max_bytes + max_bytes // 4 + self.SLACK_BYTES
        try:
            os.makedirs(folder, exist_ok=True)
            how: dict[str, Any] = {"sync": durable, "writemap": not durable, "map_async": not durable}
            self._env = lmdb.open(folder, self._map_bytes, max_dbs=1, **how)
            self.turns = self._env.open_db(b"turns")
            self._file = os.open(os.path.join(folder, "data.mdb"), os.O_RDWR | os.O_CLOEXEC)
        except (OSError, lmdb.Error) as error:
            raise StorageError(f"LMDB store: cannot open {folder}: {error}; set path to another folder") from None
        self._psize = self._env.stat()["psize"]
        self._lock = threading.Lock()
        self._allocated = 0
        """Bytes of the file, from its start, that are on the disk."""
        self._read: set[bytes] = set()
        """Pages read since they came, or since they were put off."""

    @property
    def longest_key(self) -> int:
        return self._env.max_key_size()

    def begin(self, write: bool = False) -> Any:
        return self._env.begin(write=write, buffers=True)

    def close(self) -> None:
        self._env.close()
        os.close(self._file)

    def used(self, keys: list[bytes]) -> None:
        """These pages were read."""
        self._read.update(keys)

    def take_turn(self, txn: Any, keys: list[bytes]) -> int:
        """The last turn, for a batch of these pages."""
        with txn.cursor(db=self.turns) as cursor:
            turn = int.from_bytes(bytes(cursor.key()), "big") + 1 if cursor.last() else 0
        # Big-endian, so that turns are in order.
        txn.put(turn.to_bytes(8, "big"), _BETWEEN.join(keys), db=self.turns)
        return turn

    def make_room(self, pages: int, page_bytes: int) -> int:
        """Let pages go until so many more have room. How many have: fewer where the disk is full, or nothing can go."""
        each = self._held_bytes(page_bytes)
        wanted = pages * each
        if self._taken_bytes() + wanted > self._max_bytes:
            self._evict(self._taken_bytes() + wanted - int(self._max_bytes * KEPT))
        fitting = min(pages, max(0, self._max_bytes - self._taken_bytes()) // each)
        return fitting if self._on_disk(fitting * each) else 0

    def keeps(self, page_bytes: int) -> Keeping:
        held_bytes = self._held_bytes(page_bytes)
        return {
            "eviction": Known("second_chance", "pages go in the order they came, those read since then once later"),
            "capacity_bytes": Known(
                float(self._max_bytes) * page_bytes / held_bytes,
                f"max_size {self._max_bytes}, of which a page takes {held_bytes}",
            ),
            "low_watermark": Known(KEPT, "what is left when pages have had to go"),
        }

    def _held_bytes(self, page_bytes: int) -> int:
        """What a page takes: each component whole pages of LMDB's, behind a header, and keys and facts a share."""
        parts = 2  # at most; one that is not cut takes less
        part_bytes = -(-(page_bytes // parts + _HEADER_BYTES) // self._psize) * self._psize
        return parts * (part_bytes + _ENTRY_BYTES) + _ENTRY_BYTES

    def _taken_bytes(self) -> int:
        stat = self._env.stat()
        return (stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"]) * self._psize

    def _evict(self, wanted_bytes: int) -> None:
        """Remove the pages written longest ago. Those read since then are put off, once."""
        with self.begin(write=True) as txn, txn.cursor(db=self.turns) as queue:
            while wanted_bytes > 0 and queue.first():
                turn, keys, late = bytes(queue.key()), bytes(queue.value()).split(_BETWEEN), []
                while wanted_bytes > 0 and keys:
                    key = keys.pop(0)
                    facts = txn.get(key + _FACTS_OF)
                    if facts is None or _FACTS.unpack(facts)[0] != int.from_bytes(turn, "big"):
                        continue  # it has gone, or come again
                    if key in self._read:
                        self._read.discard(key)
                        late.append(key)
                    else:
                        wanted_bytes -= self._held_bytes(_FACTS.unpack(facts)[1])
                        _remove(txn, key)
                if late:
                    self._put_off(txn, late)
                if keys:
                    txn.put(turn, _BETWEEN.join(keys), db=self.turns)
                else:
                    txn.delete(turn, db=self.turns)

    def _put_off(self, txn: Any, keys: list[bytes]) -> None:
        turn = self.take_turn(txn, keys)
        for key in keys:
            txn.put(key + _FACTS_OF, _FACTS.pack(turn, *_FACTS.unpack(txn.get(key + _FACTS_OF))[1:]))

    def _on_disk(self, more_bytes: int) -> bool:
        """Whether the disk has the room that the map says is there."""
        with self._lock:
            reached = (self._env.info()["last_pgno"] + 1) * self._psize
            needed = min(reached + more_bytes + self.CHUNK_BYTES // 4, self._map_bytes)
            if needed <= self._allocated:
                return True
            end = min(needed + self.CHUNK_BYTES, self._map_bytes)
            try:
                os.posix_fallocate(self._file, self._allocated, end - self._allocated)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                return False
            self._allocated = end
            return True


class _Environments:
    """Those that are open in this process, by folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Environment] = {}

    def open(self, folder: str, max_bytes: int, durable: bool) -> _Environment:
        """The folder's environment; whoever opens it first says how."""
        path = os.path.realpath(folder)
        with self._lock:
            if path not in self._open:
                self._open[path] = _Environment(path, max_bytes, durable)
            self._open[path].clients += 1
            return self._open[path]

    def close(self, environment: _Environment) -> None:
        with self._lock:
            environment.clients -= 1
            if not environment.clients:
                del self._open[environment.folder]
                environment.close()


_ENVIRONMENTS = _Environments()
