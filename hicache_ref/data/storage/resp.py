"""Redis' protocol (RESP2) for large values: from host pages onto the wire, and from the wire into host pages.

Rules of this file
- A value is sent from where it lies and received where it belongs, however many pieces that is. Only what is short
  (lines, small replies) goes through a buffer.
- A connection speaks for one thread at a time, and in order: whoever sends commands reads as many replies.
- Every call ends by the deadline of the call it serves. After any error a connection is good for nothing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from .vectors import IOV_MAX, remaining

_END = b"\r\n"
_BUFFER_BYTES = 4 << 10


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


class Connection:
    """A conversation with a server, which ends by `deadline_s` (of time.monotonic) unless it is put off.

    OSError: nobody listens, or it takes too long. ReplyError: not let in.
    """

    def __init__(self, to: Address, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._socket = _connect(to, self._left_s)
        self._lines = bytearray(_BUFFER_BYTES)
        self._buffer = memoryview(self._lines)
        self._at = self._end = 0
        """What of the buffer is not read yet."""
        try:
            self.send([command(*words) for words in to.login])
            for _ in to.login:
                self.reply_or_raise()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    @property
    def alive(self) -> bool:
        """Whether the server still listens; for a connection on which nothing is under way."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False  # it has ended, or something came that nobody asked for

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """All of `buffers`, one after the other."""
        left = [memoryview(buffer) for buffer in buffers]
        while left:
            self._socket.settimeout(self._left_s())
            left = remaining(left, self._socket.sendmsg(left[:IOV_MAX]))

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

    def line(self) -> bytes:
        """The first line of a reply, without its end. Of a value (`$<bytes>`) `fill` or `skip` read the rest."""
        while True:
            end = self._lines.find(_END, self._at, self._end)
            if end >= 0:
                text = bytes(self._buffer[self._at : end])
                self._at = end + len(_END)
                return text
            self._more()

    def fill(self, pieces: Iterable[memoryview]) -> None:
        """Receive a value into `pieces`, which are exactly as long as it is."""
        left = self._take([*pieces, memoryview(bytearray(len(_END)))])
        while left:
            # What follows is taken along, so that the next line is mostly there already.
            asked = [*left, self._buffer][:IOV_MAX]
            self._socket.settimeout(self._left_s())
            got = self._received(self._socket.recvmsg_into(asked)[0])
            size_bytes = sum(piece.nbytes for piece in left)
            self._at, self._end = 0, max(0, got - size_bytes)
            left = remaining(left, min(got, size_bytes))

    def skip(self, size_bytes: int) -> None:
        """Receive a value for nobody."""
        left = size_bytes + len(_END)
        while left > self._end - self._at:
            left -= self._end - self._at
            self._at = self._end = 0
            self._more()
        self._at += left

    def _bulk(self, size_bytes: int) -> bytes:
        value = bytearray(size_bytes)
        self.fill([memoryview(value)])
        return bytes(value)

    def _take(self, pieces: list[memoryview]) -> list[memoryview]:
        """Fill from the buffer; what is left of `pieces`."""
        while pieces and self._at < self._end:
            here = self._buffer[self._at : self._end][: pieces[0].nbytes]
            pieces[0][: here.nbytes] = here
            self._at += here.nbytes
            pieces = remaining(pieces, here.nbytes)
        return pieces

    def _more(self) -> None:
        """Receive more into the buffer."""
        unread = bytes(self._buffer[self._at : self._end])
        self._buffer[: len(unread)] = unread
        self._at, self._end = 0, len(unread)
        if self._end == len(self._buffer):
            raise ConnectionError("this is not Redis: a line without an end")
        self._socket.settimeout(self._left_s())
        self._end += self._received(self._socket.recv_into(self._buffer[self._end :]))

    def _received(self, count: int) -> int:
        if not count:
            raise ConnectionError("the server has hung up")
        return count

    def _left_s(self) -> float:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


def _connect(to: Address, left_s: Callable[[], float]) -> socket.socket:
    if to.path is None:
        connected = socket.create_connection((to.host, to.port), left_s())
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(left_s())
        connected.connect(to.path)
    except BaseException:
        connected.close()
        raise
    return connected
