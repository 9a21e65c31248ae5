"""What a point's result is a function of, as one hash: the trace's content, the configuration, the code.

Rules of this file
- Files count by content, so a folder that has moved is not swept again, and a trace that was changed is.
- The code is what a replay can import, not the version number: an edit makes old results stale, also in a checkout.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import hicache_ref
import hicache_sim
import workloads
from workloads import GENERATORS, SAMPLES, sample

from .ask import Ask
from .errors import SweepError, unknown

_ASIDE = {
    "hicache_ref": ("calibrate", "commandline", "data", "model", "ranks", "run", "testing"),
    "hicache_sim": ("commands", "curve", "report", "sweeps", "validate"),
    "workloads": (),
}
"""What no simulated replay imports."""
_OF_POINTS = ("ask.py", "metrics.py", "point.py")
"""What decides the row of a point, among the sweep's own files."""
_CODE = (".py", ".json", ".so")
_CHUNK_BYTES = 1 << 20


@cache
def code_version() -> str:
    """Hash of the source in use."""
    total = hashlib.sha256()
    for package in (hicache_ref, hicache_sim, workloads):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*")):
            parts = path.relative_to(root).parts
            aside = parts[0] in _ASIDE[package.__name__] and not (parts[0] == "sweeps" and path.name in _OF_POINTS)
            if path.suffix in _CODE and not aside:
                total.update(f"{package.__name__}/{'/'.join(parts)}\0".encode())
                total.update(path.read_bytes())
    return total.hexdigest()[:16]


def trace_version(trace: str) -> str:
    """Hash of a trace's content; a generator's is its name, for the code makes the rest. SweepError: no such trace."""
    path = Path(trace)
    if not path.exists():
        if trace in GENERATORS:
            return f"generator:{trace}"
        if trace not in SAMPLES:
            raise unknown("file, sample or generator", trace, [*SAMPLES, *GENERATORS])
        path = sample(trace)
    return content_version(path)


def content_version(path: Path) -> str:
    """Hash of a file, or of the names and contents of a folder's files."""
    total = hashlib.sha256()
    try:
        files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
        for each in files:
            if each != path:
                total.update(f"{each.name}\0{each.stat().st_size}\0".encode())
            with open(each, "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    total.update(chunk)
    except OSError as error:
        raise SweepError(f"{path}: cannot be read ({error.strerror or error})", "check the path") from None
    return total.hexdigest()[:16]


class Fingerprints:
    """Keys of asks; every file is read once."""

    def __init__(self) -> None:
        self.traces: dict[str, str] = {}
        """Versions of the traces asked for, by name."""
        self._files: dict[str, str] = {}

    def trace(self, name: str) -> str:
        if name not in self.traces:
            self.traces[name] = trace_version(name)
        return self.traces[name]

    def key(self, ask: Ask) -> str:
        """SweepError: a trace that is not there."""
        plain = ask.as_json()
        plain["trace"] = self.trace(ask.trace)
        model = ask.flags.get("model_path")
        plain["files"] = [self._file(name) for name in (ask.hardware, ask.store, model)]
        return digest([plain, code_version()])

    def _file(self, name: str | None) -> str | None:
        """Content of what was named by path; None: a name that the code knows."""
        if name is None or not Path(name).exists():
            return None
        if name not in self._files:
            self._files[name] = content_version(Path(name))
        return self._files[name]


def digest(plain: Any) -> str:
    """Of what JSON knows, whatever the order of its names."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]
