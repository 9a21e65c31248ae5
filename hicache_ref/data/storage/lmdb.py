"""LMDB: a store in one file, mapped into memory. The fastest that keeps pages on a local disk.

Rules of this file
- A page is some entries under one key: its facts, then its components. Entries of a page are neighbours, and are there
  or not there together: a batch is one write transaction.
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
from typing import Any, NamedTuple

import lmdb

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .gate import Gate
from .naming import prefix
from .options import Options, flag, size_bytes, text
from .pieces import components, pour
from .seal import SEAL_BYTES, Digests, Sealer, Trust

DEFAULT_FOLDER = "/tmp/hicache-lmdb"
DEFAULT_BYTES = 64 << 30
KEPT = 0.9
"""Of the limit, after pages had to go."""
_NAME_CHARS = 64
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def from_options(identity: StorageIdentity, options: Options) -> LmdbClient:
    """The client that an operator's settings ask for."""
    folder = options.take("path", text, DEFAULT_FOLDER)
    max_bytes = options.take("max_size", size_bytes, DEFAULT_BYTES)
    durable = options.take("durable", flag, False)
    verify = options.take("verify", flag, True)
    options.end()
    return LmdbClient(identity, folder, max_bytes, durable, Digests() if verify else Trust())


class _Facts(NamedTuple):
    """What is stored beside a page's components."""

    turn: int
    """Its place among the pages to go."""
    page_bytes: int
    seal: bytes


_FACTS = struct.Struct(f"<QQ{SEAL_BYTES}s")


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
        self._parts = 1 if identity.replicated else 2
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
                if txn.get(self._entry(name, 0)) is None:
                    return at
        return len(names)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        good, bad = 0, None
        with self._read() as txn, txn.cursor() as cursor:
            for name, page in zip(names, slots.tolist(), strict=True):
                facts = self._facts(cursor.get(self._entry(name, 0)))
                if facts is None:
                    self._counts.add("missed_pages")
                    break
                if facts.page_bytes != host.page_bytes or not self._copy(cursor, name, facts, host.page_memory(page)):
                    bad = name
                    break
                self._environment.used(facts.turn)
                good += 1
        self._counts.add("read_pages", good)
        if bad is not None:
            self._counts.add("bad_pages")
            self._forget(bad)
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._read() as txn:
            whole = [self._is_whole(txn, name, host.page_bytes) for name in names]
        new = [at for at, there in enumerate(whole) if not there]
        self._counts.add("present_pages", len(names) - len(new))
        if not new:
            return len(names)
        pages = slots.tolist()
        with self._gate, _failures():
            admitted = self._environment.make_room(len(new), host.page_bytes)
            written = self._write([(names[at], pages[at]) for at in new[:admitted]], host)
        self._counts.add("written_pages", written)
        self._counts.add("refused_pages", len(new) - written)
        return len(names) if written == len(new) else new[written]

    def clear(self) -> None:
        start = self._prefix.encode()
        with self._gate, _failures(), self._environment.begin(write=True) as txn, txn.cursor() as cursor:
            found = cursor.set_range(start)
            while found and bytes(cursor.key()).startswith(start):
                if cursor.key()[-1] == 0:
                    txn.delete(_turn(_FACTS.unpack(cursor.value())[0]), db=self._environment.turns)
                found = cursor.delete()

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def close(self) -> None:
        self._gate.close()

    # Pages

    def _entry(self, name: str, part: int) -> bytes:
        """The key of a page's facts (part 0), or of its component part - 1."""
        return f"{self._prefix}{name}".encode() + bytes((part,))

    def _facts(self, value: memoryview | None) -> _Facts | None:
        return None if value is None else _Facts(*_FACTS.unpack(value))

    def _copy(self, cursor: Any, name: str, facts: _Facts, pieces: list[memoryview]) -> bool:
        """A page's entries, which follow the one that `cursor` is at, into host memory; whether they fit the seal."""
        parts = []
        for part in range(self._parts):
            if not cursor.next() or cursor.key() != self._entry(name, part + 1):
                return False
            parts.append(cursor.value())
        if sum(part.nbytes for part in parts) != facts.page_bytes:
            return False
        pour(parts, pieces)
        return self._sealer.fits(facts.seal, name, pieces)

    def _is_whole(self, txn: Any, name: str, page_bytes: int) -> bool:
        facts = self._facts(txn.get(self._entry(name, 0)))
        return facts is not None and facts.page_bytes == page_bytes

    def _write(self, pages: list[tuple[str, int]], host: PageMemory) -> int:
        """Pages written: all of them or, in a map without room, none."""
        with suppress(lmdb.MapFullError), self._environment.begin(write=True) as txn:
            turn = self._environment.next_turn(txn)
            for name, page in pages:
                if not self._is_whole(txn, name, host.page_bytes):
                    self._remove(txn, name)
                    self._store(txn, name, turn, components(host, page, self._parts))
                    turn += 1
            return len(pages)
        return 0

    def _store(self, txn: Any, name: str, turn: int, parts: list[memoryview]) -> None:
        page_bytes = sum(part.nbytes for part in parts)
        facts = _FACTS.pack(turn, page_bytes, self._sealer.seal(name, parts))
        for part, value in enumerate((facts, *parts)):
            txn.put(self._entry(name, part), value)
        txn.put(_turn(turn), self._entry(name, 0), db=self._environment.turns)

    def _remove(self, txn: Any, name: str) -> None:
        _remove(txn, self._environment.turns, self._entry(name, 0))

    def _forget(self, name: str) -> None:
        """Remove a page that is not what it should be, so that it is written again."""
        with self._gate, _failures(), self._environment.begin(write=True) as txn:
            self._remove(txn, name)

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


def _turn(turn: int) -> bytes:
    """A key of the table of turns: big-endian, so that keys are in order."""
    return turn.to_bytes(8, "big")


def _remove(txn: Any, turns: Any, entry: bytes) -> None:
    """A page's entries, `entry` the key of its facts, and its turn."""
    with txn.cursor() as cursor:
        if not cursor.set_key(entry):
            return
        txn.delete(_turn(_FACTS.unpack(cursor.value())[0]), db=turns)
        found = True
        while found and bytes(cursor.key())[:-1] == entry[:-1]:
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
        self._read: set[int] = set()
        """Turns of pages read since they got them."""

    @property
    def longest_key(self) -> int:
        return self._env.max_key_size()

    def begin(self, write: bool = False) -> Any:
        return self._env.begin(write=write, buffers=True)

    def close(self) -> None:
        self._env.close()
        os.close(self._file)

    def used(self, turn: int) -> None:
        """The page of this turn was read."""
        self._read.add(turn)

    def next_turn(self, txn: Any) -> int:
        with txn.cursor(db=self.turns) as cursor:
            return int.from_bytes(bytes(cursor.key()), "big") + 1 if cursor.last() else 0

    def make_room(self, pages: int, page_bytes: int) -> int:
        """Let pages go until so many more have room. How many have: fewer where the disk is full, or nothing can go."""
        # A component starts on a page of LMDB's own, behind its header.
        each = page_bytes + 4 * self._psize
        wanted = pages * each
        if self._taken_bytes() + wanted > self._max_bytes:
            self._evict(self._taken_bytes() + wanted - int(self._max_bytes * KEPT))
        fitting = min(pages, max(0, self._max_bytes - self._taken_bytes()) // each)
        return fitting if self._on_disk(fitting * each) else 0

    def _taken_bytes(self) -> int:
        stat = self._env.stat()
        return (stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"]) * self._psize

    def _evict(self, wanted_bytes: int) -> None:
        """Remove the pages written longest ago; those read meanwhile go to the end of the queue, once."""
        with self.begin(write=True) as txn:
            last, freed = self.next_turn(txn), 0
            with txn.cursor(db=self.turns) as queue:
                while freed < wanted_bytes and queue.first():
                    turn, entry = int.from_bytes(bytes(queue.key()), "big"), bytes(queue.value())
                    if turn in self._read:
                        self._read.discard(turn)
                        self._postpone(txn, turn, entry, last)
                        last += 1
                    else:
                        freed += _FACTS.unpack(txn.get(entry))[1]
                        _remove(txn, self.turns, entry)

    def _postpone(self, txn: Any, turn: int, entry: bytes, later: int) -> None:
        facts = _FACTS.unpack(txn.get(entry))
        txn.put(entry, _FACTS.pack(later, *facts[1:]))
        txn.delete(_turn(turn), db=self.turns)
        txn.put(_turn(later), entry, db=self.turns)

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
