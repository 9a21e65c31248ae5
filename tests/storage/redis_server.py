"""A real redis-server for tests: on loopback and a Unix socket, in a folder of its own, gone at the end."""

from __future__ import annotations

import shutil
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from .servers import free_port, running


class RedisServer:
    """Started and killed as often as wanted, on one port. `url`: by TCP, `unix`: by the socket."""

    def __init__(self, *options: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server here: apt-get install redis-server")
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self.port = free_port()
        self.path = Path(self._folder.name) / "socket"
        self.url, self.unix = f"redis://127.0.0.1:{self.port}", f"unix://{self.path}"
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", str(self.path)]
        self._command = [program, *where, "--dir", self._folder.name, "--save", "", "--appendonly", "no", *options]
        self._process = ExitStack()

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        server = self._process.enter_context(running(self._command, self.path.with_name("log"), self._answers))
        self.pid = server.pid

    def kill(self) -> None:
        self._process.close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as caller:
                caller.sendall(b"PING\r\n")
                # With a password it says so: it is up as well.
                return caller.recv(7) in (b"+PONG\r\n", b"-NOAUTH")
        except OSError:
            return False
