"""Redis' protocol (RESP2), as far as a store of pages needs it.

Rules of this file
- Whoever sends commands reads as many replies, in the same order.
- Of a large value only the first line goes through here; `Wire` receives the rest where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from .wire import Wire, connect

_END = b"\r\n"


class ReplyError(Exception):
    """The server understood, and refuses. Its first word says why, such as OOM or NOAUTH."""


Reply: TypeAlias = "bytes | int | ReplyError | list[Reply] | None"


@dataclass(frozen=True)
class Address:
    """Where a server listens, and who asks. `path`: of a Unix socket, instead of host and port."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    user: str | None = None
    password: str | None = None
    database: int = 0

    @property
    def place(self) -> tuple[str, int] | str:
        return (self.host, self.port) if self.path is None else self.path

    @property
    def login(self) -> list[Sequence[bytes]]:
        """The commands that begin a conversation."""
        commands: list[Sequence[bytes]] = []
        if self.password is not None:
            commands.append([word.encode() for word in ("AUTH", self.user, self.password) if word])
        if self.database:
            commands.append([b"SELECT", b"%d" % self.database])
        return commands


def address(url: str) -> Address:
    """redis://[user:password@]host[:port][/database] or unix://[user:password@]/path[?db=database].

    ValueError: what it wants, as a reader of options says it.
    """
    try:
        parts = urlsplit(url)
        user, password = unquote(parts.username or "") or None, _unquoted(parts.password)
        if parts.scheme == "unix" and parts.path:
            database = int(parse_qs(parts.query).get("db", ["0"])[0])
            return Address(path=unquote(parts.path), user=user, password=password, database=database)
        if parts.scheme == "redis" and parts.hostname:
            database = int(parts.path.strip("/") or 0)
            return Address(parts.hostname, parts.port or 6379, None, user, password, database)
    except ValueError:
        pass
    raise ValueError("redis://[user:password@]host[:port][/database] or unix:///path[?db=database]")


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def command(*words: bytes) -> bytes:
    """One command on the wire."""
    return b"".join((b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)))


class Connection(Wire):
    """A conversation with a server. OSError: nobody listens, or it takes too long. ReplyError: not let in."""

    def __init__(self, to: Address, deadline_s: float) -> None:
        super().__init__(connect(to.place, deadline_s), deadline_s)
        try:
            self.send([command(*words) for words in to.login])
            for _ in to.login:
                self.reply_or_raise()
        except BaseException:
            self.close()
            raise

    def reply(self) -> Reply:
        """The next reply, whatever it is."""
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return ReplyError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bulk(int(rest))
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        raise ConnectionError(f"this is not Redis: {line[:40]!r}")

    def reply_or_raise(self) -> Reply:
        reply = self.reply()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def value(self, pieces: Iterable[memoryview]) -> None:
        """After its first line (`$<bytes>`): a value, into `pieces` of as many bytes."""
        self.fill([*pieces, memoryview(bytearray(len(_END)))])

    def skip_value(self, size_bytes: int) -> None:
        self.skip(size_bytes + len(_END))

    def _bulk(self, size_bytes: int) -> bytes:
        value = bytearray(size_bytes)
        self.value([memoryview(value)])
        return bytes(value)
