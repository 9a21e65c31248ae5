"""LMCache's server (`lmcache_server HOST PORT`) as L3, in its own words.

Rules of this file
- The wire format is LMCache's: a head of nine integers and a key of 150 characters, then a value; nothing of LMCache
  is imported, and the server cannot tell us from an LMCache engine. A value is a page in flat order and its seal,
  marked as a binary object.
- Keys are LMCache's too, `model@world@worker@hash@dtype@tag%value`, so pages of engines and ours are neighbours. They
  do not share pages: an LMCache engine hashes and orders chunks of its own.
- A PUT is not answered. Whether pages are stored is asked once behind a batch.
- The server keeps everything until it ends, and cannot remove a page: `clear` says so.
- Source: `lmcache/v1/protocol.py`, `lmcache/v1/server/__main__.py` of 0.5.6.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote, urlsplit

from .client import Counts, PageMemory, Slots, StorageError, StorageIdentity, StoreFailed
from .keeping import Keeping, unlimited
from .options import Options, flag, number, text
from .seal import SEAL_BYTES, Digests, Sealer, Trust
from .wire import Connections, Wire, connect, in_windows

DEFAULT_URL = "lm://127.0.0.1:65432"
KEY_CHARS = 150
_NAME_CHARS = 64
_PUT, _GET, _EXIST = 1, 2, 3
_SUCCESS, _FAIL = 200, 400
_BINARY, _UINT8 = 4, 6
"""Of `MemoryFormat` and `DTYPE_TO_INT`: bytes without a shape."""
_ASK = struct.Struct(f"9i{KEY_CHARS}s")
"""command, bytes, format, dtype, location, four dims, key."""
_ANSWER = struct.Struct("9i")
"""code, bytes, format, dtype, four dims, location."""


def from_options(identity: StorageIdentity, options: Options) -> LMCacheClient:
    """The client that an operator's settings ask for."""
    host, port = _address(options.take("remote_url", _url, DEFAULT_URL, "LMCACHE_REMOTE_URL"))
    timeout_s = options.take("timeout", number(0.001, what="seconds"), LMCacheClient.TIMEOUT_S)
    verify = options.take("verify", flag, True)
    options.end()
    return LMCacheClient(identity, host, port, timeout_s, Digests() if verify else Trust())


def _url(value: object) -> str:
    _address(text(value))
    return text(value)


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        if parts.scheme == "lm" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ValueError("lm://host:port")


def key_parts(identity: StorageIdentity) -> tuple[str, str]:
    """What stands before and behind a page's name in its key. Replicas are one worker of one."""
    size, rank = (1, 0) if identity.replicated else (identity.tp_size, identity.tp_rank)
    tags = {"tag": quote(identity.tag), "pp": f"{identity.pp_rank}.{identity.pp_size}" if identity.pp_size > 1 else ""}
    tagged = "".join(f"@{tag}%{value}" for tag, value in tags.items() if value)
    return f"{quote(identity.model_name)}@{size}@{rank}@", f"@uint8{tagged}"


class LMCacheClient:
    """Satisfies `StorageClient` over an LMCache server. timeout_s: the longest a call may take."""

    TIMEOUT_S = 10.0

    def __init__(
        self,
        identity: StorageIdentity,
        host: str,
        port: int,
        timeout_s: float = TIMEOUT_S,
        sealer: Sealer | None = None,
    ) -> None:
        self.identity = identity
        self._before, self._behind = key_parts(identity)
        if len(self._before) + _NAME_CHARS + len(self._behind) > KEY_CHARS:
            raise StorageError(
                f"LMCache takes keys of {KEY_CHARS} characters: shorten the model's name or extra_backend_tag"
            )
        self._sealer = sealer or Digests()
        self._counts = Counts()
        self._bad: set[str] = set()
        """Pages that are there and are none: as good as missing, and written again."""
        self._connections = Connections(f"LMCache at {host}:{port}", partial(_open, host, port), timeout_s)

    # The interface

    def exists(self, names: Sequence[str]) -> int:
        with self._connections.one() as wire:
            return (*self._present(wire, names), False).index(False)

    def get(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        with self._connections.one() as wire:
            good = in_windows(partial(self._receive, wire), names, host, slots)
        self._counts.add("read_pages", good)
        return good

    def put(self, names: Sequence[str], host: PageMemory, slots: Slots) -> int:
        pages = slots.tolist()
        with self._connections.one() as wire:
            fates = self._present(wire, names)
            new = [at for at, there in enumerate(fates) if not there]
            for at in new:
                pieces = host.page_memory(pages[at])
                head = self._head(_PUT, names[at], host.page_bytes + SEAL_BYTES)
                wire.send([head, *pieces, self._sealer.seal(names[at], pieces)])
                self._bad.discard(names[at])
            for at, stored in zip(new, self._present(wire, [names[at] for at in new]), strict=True):
                fates[at] = stored
        written = sum(fates[at] for at in new)
        self._counts.add("present_pages", len(names) - len(new))
        self._counts.add("written_pages", written)
        self._counts.add("refused_pages", len(new) - written)
        return (*fates, False).index(False)

    def clear(self) -> None:
        raise StoreFailed("LMCache's server cannot remove pages: restart it, or give another extra_backend_tag")

    def stats(self) -> dict[str, float]:
        return self._counts.snapshot()

    def keeps(self, page_bytes: int) -> Keeping:
        return unlimited("LMCache's server evicts by its own settings, and tells nobody")

    def close(self) -> None:
        self._connections.close()

    # Pages

    def _head(self, command: int, name: str, size_bytes: int = 0) -> bytes:
        key = f"{self._before}{name}{self._behind}".encode().ljust(KEY_CHARS)
        return _ASK.pack(command, size_bytes, _BINARY, _UINT8, 0, size_bytes, 0, 0, 0, key)

    def _present(self, wire: Wire, names: Sequence[str]) -> list[bool]:
        wire.send([self._head(_EXIST, name) for name in names])
        return [_answer(wire)[0] and name not in self._bad for name in names]

    def _receive(self, wire: Wire, names: Sequence[str], host: PageMemory, pages: list[int]) -> int:
        """Ask for pages and receive them; how many leading ones are good."""
        wire.send([self._head(_GET, name) for name in names])
        good = 0
        for at, (name, page) in enumerate(zip(names, pages, strict=True)):
            there, size_bytes = _answer(wire)
            if good < at:
                wire.skip(size_bytes)
            elif not there:
                self._counts.add("missed_pages")
            elif self._take(wire, name, size_bytes, host, page):
                good += 1
            else:
                self._counts.add("bad_pages")
                self._bad.add(name)
        return good

    def _take(self, wire: Wire, name: str, size_bytes: int, host: PageMemory, page: int) -> bool:
        if size_bytes != host.page_bytes + SEAL_BYTES:
            wire.skip(size_bytes)
            return False
        pieces, seal = host.page_memory(page), memoryview(bytearray(SEAL_BYTES))
        wire.fill([*pieces, seal])
        return self._sealer.fits(seal, name, pieces)


def _open(host: str, port: int, deadline_s: float) -> Wire:
    return Wire(connect((host, port), deadline_s), deadline_s)


def _answer(wire: Wire) -> tuple[bool, int]:
    """Whether the server has it, and how many bytes follow. ConnectionError: the server is another one."""
    head = bytearray(_ANSWER.size)
    wire.fill([memoryview(head)])
    code, size_bytes, *_ = _ANSWER.unpack(head)
    if code not in (_SUCCESS, _FAIL) or size_bytes < 0:
        raise ConnectionError(f"this is no LMCache server: it answers {bytes(head[:16])!r}")
    return code == _SUCCESS, size_bytes
