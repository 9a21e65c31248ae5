"""Servers that tests start: processes on loopback, on ports that were free, that never outlive the tests.

Rules of this file
- A server dies with the process that started it, even one that is killed.
- What a server says goes into a file, whose end is shown where it does not come up.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1
START_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> Callable[[], bool]:
    """Whether somebody takes connections there."""

    def ask() -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return ask


def says(log: Path, what: str) -> Callable[[], bool]:
    """Whether the server has written this by now."""
    return lambda: log.exists() and what in log.read_text(errors="replace")


@contextmanager
def running(command: Sequence[str], log: Path, ready: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once it is `ready`, until the end of the block."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent
        )
    try:
        until_s = time.monotonic() + START_S
        while not ready():
            if server.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"{command[0]} does not come up: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        yield server
    finally:
        server.kill()
        server.wait()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
