"""Redis, Valkey, KeyDB: a value a page, on a server that forgets the pages used longest ago.

Rules of this file
- A value is the page in flat order and its seal. The server may answer with anything; what does not fit is no page.
- Commands go in batches, replies come in order. Pages are received some at a time, so that neither the server nor the
  wire is full of pages behind a hole.
- Nobody is connected before the first call, and after an error the next call connects again: a server that comes back
  is found.
- A server without room (OOM) refuses pages. Any other refusal raises `StoreFailed`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from .client import Counts, PageMemory, Slots, StorageIdentity
from .keeping import Keeping, Known, unlimited
from .naming import prefix
from .options import Options, flag, number, text
from .resp import Address, Connection, ReplyError, address, command
from .seal import SEAL_BYTES, Digests, Sealer, Trust
from .wire import Connections, in_windows

DEFAULT_URL = "redis://127.0.0.1:6379/0"
_EVICTIONS = {"noeviction": "none", "volatile-lru": "none", "volatile-ttl": "none"}
"""By the server's policy, where it is not the page used longest ago that goes. Pages have no time to live."""


def from_options(identity: StorageIdentity, options: Options) -> RedisClient:
    """The client that an operator's settings ask for."""
    to = address(options.take("url", _url, DEFAULT_URL, "REDIS_URL"))
    timeout_s = options.take("timeout", number(0.001, what="seconds"), RedisClient.TIMEOUT_S)
    verify = options.take("verify", flag, True)
    options.end()
    return RedisClient(identity, to, timeout_s, Digests() if verify else Trust())


def _url(value: object) -> str:
    address(text(value))
    return text(value)


class RedisClient:
    """Satisfies `StorageClient` over a Redis server. timeout_s: the longest a call may take."""

    TIMEOUT_S = 10.0

    def __init__(
        self, identity: StorageIdentity, to: Address, timeout_s: float = TIMEOUT_S, sealer: Sealer | None = None
    ) -> None:
        self.identity = identity
        self._prefix = f"hicache:{prefix(identity)}"
        self._sealer = sealer or Digests()
        self._counts = Counts()
        where = f"Redis at {to.path or f'{to.host}:{to.port}'}"
        self._connections = Connections(where, partial(Connection, to), timeout_s, (ReplyError,))

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        with self._connections.one() as connection:
            connection.send([command(b"EXISTS", self._key(name)) for name in names])
            there = [connection.reply_or_raise() == 1 for _ in names]
        return (*there, False).index(False)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._connections.one() as connection:
            good = in_windows(partial(self._receive, connection), names, host, slots)
        self._counts.add("read_pages", good)
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        pages = slots.tolist()
        with self._connections.one() as connection:
            connection.send([command(b"STRLEN", self._key(name)) for name in names])
            there = [connection.reply_or_raise() == host.page_bytes + SEAL_BYTES for _ in names]
            new = [at for at, known in enumerate(there) if not known]
            self._counts.add("present_pages", len(names) - len(new))
            for at in new:
                connection.send(self._set(names[at], host.page_memory(pages[at]), host.page_bytes))
            for at in new:
                there[at] = _stored(connection)
        written = sum(there[at] for at in new)
        self._counts.add("written_pages", written)
        self._counts.add("refused_pages", len(new) - written)
        return (*there, False).index(False)

    def clear(self) -> None:
        with self._connections.one() as connection:
            cursor = b"0"
            while True:
                connection.send([command(b"SCAN", cursor, b"MATCH", self._key("*"), b"COUNT", b"1000")])
                cursor, keys = connection.reply_or_raise()  # type: ignore[assignment, misc]
                if keys:
                    connection.send([command(b"UNLINK", *keys)])  # type: ignore[misc]
                    connection.reply_or_raise()
                if cursor == b"0":
                    return

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        with self._connections.one() as connection:
            limit = int(_setting(connection, b"maxmemory") or 0)
            policy = _setting(connection, b"maxmemory-policy") or "noeviction"
            each_bytes = self._taken_bytes(connection, page_bytes)
            others_bytes = _used_bytes(connection)
        source = f"maxmemory {limit}, of which others have {others_bytes}; a page takes {each_bytes}"
        eviction = Known(_EVICTIONS.get(policy, "lru"), f"maxmemory-policy {policy}")
        if not limit:
            return unlimited("maxmemory 0")
        return {"eviction": eviction, "capacity_bytes": Known((limit - others_bytes) * page_bytes / each_bytes, source)}

    def close(self) -> None:
        self._connections.close()

    # Pages

    def _taken_bytes(self, connection: Connection, page_bytes: int) -> int:
        """What the server's memory holds a page in."""
        key = self._key("size")
        connection.send([command(b"SET", key, bytes(page_bytes + SEAL_BYTES)), command(b"MEMORY", b"USAGE", key)])
        connection.send([command(b"UNLINK", key)])
        stored, taken, _ = connection.reply(), connection.reply(), connection.reply()
        return int(taken) if stored == b"OK" and isinstance(taken, int) else page_bytes + SEAL_BYTES

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}{name}".encode()

    def _set(self, name: str, pieces: list[memoryview], page_bytes: int) -> list[bytes | memoryview]:
        """The command that stores a page, as buffers."""
        key = self._key(name)
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, page_bytes + SEAL_BYTES)
        return [head, *pieces, self._sealer.seal(name, pieces) + b"\r\n"]

    def _receive(self, connection: Connection, names: Sequence[str], host: PageMemory, pages: list[int]) -> int:
        """Ask for pages and receive them; how many leading ones are good."""
        connection.send([command(b"GET", self._key(name)) for name in names])
        good, bad = 0, []
        for at, (name, page) in enumerate(zip(names, pages, strict=True)):
            size_bytes = _size_bytes(connection.line())
            if good < at:
                connection.skip_value(size_bytes) if size_bytes >= 0 else None
            elif size_bytes < 0:
                self._counts.add("missed_pages")
            elif self._take(connection, name, size_bytes, host, page):
                good += 1
            else:
                self._counts.add("bad_pages")
                bad.append(self._key(name))
        if bad:
            # So that it is written again.
            connection.send([command(b"UNLINK", *bad)])
            connection.reply_or_raise()
        return good

    def _take(self, connection: Connection, name: str, size_bytes: int, host: PageMemory, page: int) -> bool:
        if size_bytes != host.page_bytes + SEAL_BYTES:
            connection.skip_value(size_bytes)
            return False
        pieces, seal = host.page_memory(page), memoryview(bytearray(SEAL_BYTES))
        connection.value([*pieces, seal])
        return self._sealer.fits(seal, name, pieces)


def _size_bytes(line: bytes) -> int:
    """How long the value is that a reply to GET begins; -1: there is none."""
    if line[:1] == b"-":
        raise ReplyError(line[1:].decode(errors="replace"))
    if line[:1] != b"$":
        raise ConnectionError(f"this is not Redis: {line[:40]!r}")
    return int(line[1:])


def _setting(connection: Connection, name: bytes) -> str:
    """A setting of the server; nothing where it does not tell."""
    connection.send([command(b"CONFIG", b"GET", name)])
    answer = connection.reply()
    return answer[1].decode() if isinstance(answer, list) and len(answer) == 2 else ""  # type: ignore[union-attr]


def _used_bytes(connection: Connection) -> int:
    connection.send([command(b"INFO", b"memory")])
    answer = connection.reply_or_raise()
    found = re.search(rb"used_memory:(\d+)", answer) if isinstance(answer, bytes) else None
    return int(found[1]) if found else 0


def _stored(connection: Connection) -> bool:
    """Whether a page was stored. ReplyError: refused, for another reason than that there is no room."""
    reply = connection.reply()
    if isinstance(reply, ReplyError):
        if str(reply).startswith("OOM"):
            return False
        raise reply
    return True
