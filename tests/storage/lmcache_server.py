"""LMCache's server for tests: the real one where it is installed, else one of the same format, in a thread.

    pip install --no-deps lmcache cachetools numba llvmlite sortedcontainers psutil

Rules of this file
- The stand-in is written after `lmcache/v1/server/__main__.py` of 0.5.6 and checks what the real one would choke on.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from .servers import free_port, listens, running

HEAD, ANSWER = struct.Struct("9i150s"), struct.Struct("9i")
INSTALLED = all(map(find_spec, ("lmcache", "cachetools", "numba", "psutil")))


@contextmanager
def real_server(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", str(port)]
    quiet = {"LMCACHE_TRACK_USAGE": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    with patch.dict(os.environ, quiet), running(command, folder / "lmcache.log", listens(port)):
        yield f"lm://127.0.0.1:{port}"


class StandIn:
    """`kept`: values by key. Used as a context, it serves."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"lm://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> StandIn:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for caller in self._open:
            with suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                self._open.append(caller)
                self._threads.append(threading.Thread(target=self._serve, args=(caller,)))
                self._threads[-1].start()

    def _serve(self, caller: socket.socket) -> None:
        with caller, caller.makefile("rb") as words, suppress(OSError):
            while len(head := words.read(HEAD.size)) == HEAD.size:
                command, size, form, dtype, location, *dims, key = HEAD.unpack(head)
                name = key.decode().strip()
                model, world, worker, chunk, kind, *tags = name.split("@")
                assert (form, dtype, location, dims) == (4, 6, 0, [size, 0, 0, 0])
                assert model == model.strip() and int(world) > int(worker) >= 0 and int(chunk, 16) and kind == "uint8"
                assert all("%" in tag for tag in tags)
                value = self.kept.get(name)
                if command == 1:
                    self.kept[name] = words.read(size)
                else:
                    there = value is not None
                    length = len(value) if value is not None and command == 2 else 0
                    caller.sendall(ANSWER.pack(200 if there else 400, length, 1, 2, 0, 0, 0, 0, 0))
                    caller.sendall(value if value is not None and command == 2 else b"")
