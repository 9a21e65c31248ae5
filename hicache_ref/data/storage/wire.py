"""A byte stream to a server, for large values: from host pages onto the wire, and from the wire into host pages.

Rules of this file
- A value is sent from where it lies and received where it belongs, however many pieces that is. Only what is short
  (lines, heads, small replies) goes through a buffer.
- A connection speaks for one thread at a time. Every call ends by the deadline of the call it serves, and after any
  error a connection is good for nothing.
- No protocol: who speaks one inherits.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from .client import PageMemory, Slots, StoreFailed
from .gate import Gate
from .vectors import IOV_MAX, remaining

_BUFFER_BYTES = 4 << 10
_KEPT = 8
"""Connections that wait for the next call."""
WINDOW_BYTES = 8 << 20
"""Pages asked for before the first of them is read."""


class Wire:
    """Reads ahead as much as its buffer holds. OSError: nobody is there any more, or `deadline_s` is over.

    deadline_s: of time.monotonic; to be put off for every call.
    """

    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._socket = connected
        self._lines = bytearray(_BUFFER_BYTES)
        self._buffer = memoryview(self._lines)
        self._at = self._end = 0
        """What of the buffer is not read yet."""

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

    def line(self) -> bytes:
        """Bytes up to the next CR LF, without it."""
        while True:
            end = self._lines.find(b"\r\n", self._at, self._end)
            if end >= 0:
                text = bytes(self._buffer[self._at : end])
                self._at = end + 2
                return text
            self._more()

    def fill(self, pieces: Iterable[memoryview]) -> None:
        """Receive as many bytes as `pieces` have, into them."""
        left = self._take(list(pieces))
        while left:
            # What follows is taken along, so that the next line is mostly there already.
            asked = [*left, self._buffer][:IOV_MAX]
            self._socket.settimeout(self._left_s())
            got = self._received(self._socket.recvmsg_into(asked)[0])
            size_bytes = sum(piece.nbytes for piece in left)
            self._at, self._end = 0, max(0, got - size_bytes)
            left = remaining(left, min(got, size_bytes))

    def skip(self, size_bytes: int) -> None:
        """Receive bytes for nobody."""
        left = size_bytes
        while left > self._end - self._at:
            left -= self._end - self._at
            self._at = self._end = 0
            self._more()
        self._at += left

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
            raise ConnectionError("a line without an end")
        self._socket.settimeout(self._left_s())
        self._end += self._received(self._socket.recv_into(self._buffer[self._end :]))

    def _received(self, count: int) -> int:
        if not count:
            raise ConnectionError("the server has hung up")
        return count

    def _left_s(self) -> float:
        return left_s(self.deadline_s)


def left_s(deadline_s: float) -> float:
    """Seconds until then. TimeoutError: there are none."""
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def connect(to: tuple[str, int] | str, deadline_s: float) -> socket.socket:
    """By TCP to (host, port), or to the Unix socket of this path."""
    if not isinstance(to, str):
        connected = socket.create_connection(to, left_s(deadline_s))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(left_s(deadline_s))
        connected.connect(to)
    except BaseException:
        connected.close()
        raise
    return connected


W = TypeVar("W", bound=Wire)


class Connections(Generic[W]):
    """A client's connections to one server, each used by one call at a time.

    what: whose they are, in errors. open(deadline_s): a new one. refusals: what else than OSError means that the
    server does not serve.
    """

    def __init__(
        self,
        what: str,
        open: Callable[[float], W],
        timeout_s: float,
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self._what = what
        self._open = open
        self._timeout_s = timeout_s
        self._failures: tuple[type[BaseException], ...] = (OSError, *refusals)
        self._lock = threading.Lock()
        self._idle: list[W] = []
        self._gate = Gate(f"the store at {what}", self._hang_up)

    @contextmanager
    def one(self) -> Iterator[W]:
        """One that nobody else uses. It is kept for the next call, unless this one fails (StoreFailed)."""
        with self._gate:
            connection = None
            try:
                connection = self._alive() or self._open(self._deadline_s())
                yield connection
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if not isinstance(error, self._failures):
                    raise
                # Those that wait are likely to be as dead.
                self._hang_up()
                raise StoreFailed(f"{self._what}: {error}") from error
            self._keep(connection)

    def close(self) -> None:
        self._gate.close()

    def _deadline_s(self) -> float:
        return time.monotonic() + self._timeout_s

    def _alive(self) -> W | None:
        """One that waited, and whose server has not gone meanwhile."""
        while (connection := self._take()) is not None:
            if connection.alive:
                connection.deadline_s = self._deadline_s()
                return connection
            connection.close()
        return None

    def _take(self) -> W | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: W) -> None:
        with self._lock:
            kept = len(self._idle) < _KEPT
            if kept:
                self._idle.append(connection)
        if not kept:
            connection.close()

    def _hang_up(self) -> None:
        while (connection := self._take()) is not None:
            connection.close()


def in_windows(
    receive: Callable[[Sequence[str], PageMemory, list[int]], int],
    names: Sequence[str],
    host: PageMemory,
    slots: Slots,
) -> int:
    """Pages by `receive(names, host, pages)`, a window at a time up to the first short one; how many came."""
    good, pages = 0, slots.tolist()
    window = max(1, WINDOW_BYTES // host.page_bytes)
    for first in range(0, len(names), window):
        batch = names[first : first + window]
        arrived = receive(batch, host, pages[first : first + window])
        good += arrived
        if arrived < len(batch):
            break
    return good
