"""Who has which page, asked of a table in this process or of the server that all ranks share.

Rules of this file
- Both answer the same questions, those of `PageTable`, for one rank and one namespace.
- The server is upstream's or ours: ours keeps seals as well, upstream's takes no notice of them.
- A table that the server does not know (it was restarted) is empty, and made anew by the next who writes.
- A server that cannot be reached is asked again three times, then `StoreFailed`.
- Source: `Hf3fsGlobalMetadataClient` of 0.5.23 (paths, JSON, retries).
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from ..client import StorageError, StoreFailed
from .table import PageTable, Place

TRIES, BACKOFF_S = 4, 0.3


class Metadata(Protocol):
    def open(self, pages: int) -> None:
        """The file has so many pages."""
        ...

    def exists(self, keys: Sequence[str]) -> list[bool]: ...
    def find(self, keys: Sequence[str]) -> list[Place | None]: ...
    def reserve(self, keys: Sequence[str]) -> list[tuple[bool, int]]: ...
    def confirm(self, written: Sequence[tuple[str, Place]], released: Sequence[int]) -> None: ...
    def delete(self, keys: Sequence[str]) -> None: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


class LocalMetadata:
    """A table that lives and dies with this client."""

    def __init__(self) -> None:
        self._table = PageTable(0)

    def open(self, pages: int) -> None:
        if self._table.pages == 0:
            self._table = PageTable(pages)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return self._table.exists(keys)

    def find(self, keys: Sequence[str]) -> list[Place | None]:
        return self._table.find(keys)

    def reserve(self, keys: Sequence[str]) -> list[tuple[bool, int]]:
        return self._table.reserve(keys)

    def confirm(self, written: Sequence[tuple[str, Place]], released: Sequence[int]) -> None:
        self._table.confirm(written, released)

    def delete(self, keys: Sequence[str]) -> None:
        self._table.delete(keys)

    def clear(self) -> None:
        self._table.clear()

    def close(self) -> None:
        pass


class _Unknown(Exception):
    """The server does not know this table."""


class HttpMetadata:
    """The server at `url`. timeout_s: for one answer."""

    def __init__(self, url: str, rank: int, namespace: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise StorageError(f"hf3fs: metadata_server_url must look like http://host:port, got {url!r}")
        self._where = (parts.hostname, parts.port or 80)
        self._url = url
        self._path = f"{parts.path.rstrip('/')}/{rank}/"
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._idle: SimpleQueue[http.client.HTTPConnection] = SimpleQueue()
        self._pages: int | None = None
        self._lock = threading.Lock()

    def open(self, pages: int) -> None:
        with self._lock:
            if self._pages is None:
                self._initialize(pages)
                self._pages = pages

    def exists(self, keys: Sequence[str]) -> list[bool]:
        try:
            return list(self._ask("exists", keys=keys)["exists"])
        except _Unknown:
            return [False] * len(keys)

    def find(self, keys: Sequence[str]) -> list[Place | None]:
        try:
            answer = self._ask("get_page_indices", keys=keys)
        except _Unknown:
            return [None] * len(keys)
        seals = answer.get("seals") or [""] * len(keys)
        pairs = zip(answer["indices"], seals, strict=True)
        return [None if page is None else Place(page, seal or "") for page, seal in pairs]

    def reserve(self, keys: Sequence[str]) -> list[tuple[bool, int]]:
        asked = [[key, ""] for key in keys]
        try:
            answer = self._ask("reserve_and_allocate_page_indices", keys=asked)
        except _Unknown:
            self._initialize(self._pages or 0)
            answer = self._ask("reserve_and_allocate_page_indices", keys=asked)
        return [(bool(known), int(page)) for known, page in answer["indices"]]

    def confirm(self, written: Sequence[tuple[str, Place]], released: Sequence[int]) -> None:
        pairs = [[key, place.page] for key, place in written]
        seals = [place.seal for _, place in written]
        self._try("confirm_write", written_keys_to_confirm=pairs, pages_to_release=list(released), seals=seals)

    def delete(self, keys: Sequence[str]) -> None:
        self._try("delete_keys", keys=keys)

    def clear(self) -> None:
        self._try("clear")

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().close()

    def _initialize(self, pages: int) -> None:
        self._ask("initialize", num_pages=pages)

    def _try(self, call: str, **what: Any) -> None:
        """Whatever a table that is not there should do is done."""
        with suppress(_Unknown):
            self._ask(call, **what)

    def _ask(self, call: str, **what: Any) -> dict[str, Any]:
        body = json.dumps(what | {"namespace": self._namespace}).encode()
        for attempt in range(TRIES):
            if attempt:
                time.sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                status, data = self._post(self._path + call, body)
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
                continue
            if status == 404:
                raise _Unknown
            if status < 300:
                answer: dict[str, Any] = json.loads(data) if data else {}
                return answer
            problem = f"status {status}"
            if status < 500:
                break
        raise StoreFailed(f"hf3fs: metadata server at {self._url}: {problem}")

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = http.client.HTTPConnection(*self._where, timeout=self._timeout_s)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.put(connection)
        return response.status, data
