"""The metadata server: page tables of all ranks, over HTTP. `python -m hicache_ref.data.storage.threefs.server`.

Rules of this file
- Upstream's paths and JSON, so that SGLang's clients are served as well; seals are an addition that they do not see.
- State is memory. With --persistence-path it is written to a file now and then, and read at the start.
- Source: `mini_3fs_metadata_server.py` of 0.5.23.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .table import PageTable, Place


class UnknownTable(KeyError):
    """Nobody has initialized that rank and namespace."""


class Tables:
    """Page tables by rank and namespace, and what can be asked of them: JSON in, JSON out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, PageTable] = {}
        self.calls: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "exists": lambda name, asked: {"exists": self._of(name).exists(asked["keys"])},
            "reserve_and_allocate_page_indices": self._reserve,
            "confirm_write": self._confirm,
            "delete_keys": self._delete,
            "clear": self._clear,
            "get_page_indices": self._find,
        }

    def _of(self, name: str) -> PageTable:
        if name not in self._tables:
            raise UnknownTable(name)
        return self._tables[name]

    def _initialize(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._tables.setdefault(name, PageTable(asked["num_pages"]))
        return {}

    def _reserve(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        return {"indices": self._of(name).reserve([key for key, _ in asked["keys"]])}

    def _confirm(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        pairs = asked.get("written_keys_to_confirm", [])
        seals = asked.get("seals") or [""] * len(pairs)
        written = [(key, Place(page, seal)) for (key, page), seal in zip(pairs, seals, strict=True)]
        self._of(name).confirm(written, asked.get("pages_to_release", []))
        return {}

    def _delete(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        self._of(name).delete(asked["keys"])
        return {}

    def _clear(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        self._of(name).clear()
        return {}

    def _find(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        places = self._of(name).find(asked["keys"])
        return {
            "indices": [None if place is None else place.page for place in places],
            "seals": [None if place is None else place.seal for place in places],
        }

    def save(self, path: str) -> None:
        with self._lock:
            state = {name: table.state() for name, table in self._tables.items()}
        with open(f"{path}.tmp", "w") as file:
            json.dump(state, file)
        os.replace(f"{path}.tmp", path)

    def load(self, path: str) -> None:
        with open(path) as file:
            state = json.load(file)
        self._tables = {name: PageTable.restored(table) for name, table in state.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    tables: Tables

    def do_POST(self) -> None:
        status, answer = self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        rank, _, call = self.path.strip("/").partition("/")
        if call not in self.tables.calls:
            return 405, {"detail": f"no call {call!r}; there are {', '.join(self.tables.calls)}"}
        try:
            asked = json.loads(body)
            return 200, self.tables.calls[call](f"{int(rank)}:{asked.get('namespace', 'kv')}", asked)
        except UnknownTable as error:
            return 404, {"detail": f"{error.args[0]} has not been initialized"}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return 422, {"detail": f"{type(error).__name__}: {error}"}

    def log_message(self, format: str, *args: Any) -> None:
        """One line for each request would be most of the work."""


def serve(host: str, port: int, tables: Tables) -> ThreadingHTTPServer:
    """A server, bound; `serve_forever` answers. port 0: any that is free."""
    server = ThreadingHTTPServer((host, port), type("Handler", (_Handler,), {"tables": tables}))
    server.daemon_threads = True
    return server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hicache_ref.data.storage.threefs.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=18000)
    parser.add_argument("--persistence-path", help="a file that keeps the tables")
    parser.add_argument("--save-interval", type=float, default=60.0, help="seconds")
    arguments = parser.parse_args()
    tables, path, ended = Tables(), arguments.persistence_path, threading.Event()
    if path and os.path.exists(path):
        tables.load(path)
    server = serve(arguments.host, arguments.port, tables)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.server_address[:2]
    print(f"listens on http://{host!s}:{port}", flush=True)
    while not ended.wait(arguments.save_interval):
        if path:
            tables.save(path)
    server.shutdown()
    if path:
        tables.save(path)


if __name__ == "__main__":
    main()
