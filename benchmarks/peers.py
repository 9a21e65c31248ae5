"""The programs that `hicache` is compared with: the real SGLang 0.5.7 on a CPU, Dynamo's compiled replay, and two
simulators of flat and prefix caches.

Rules of this file
- Each lives in an environment of its own in `.venv-bench`, made on first use; the project's own stays without torch.
- What cannot be had is no error: `Missing` says why, and the rows that need it are left out with that reason.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from .measure import ROOT, show

FOLDER = ROOT / ".venv-bench"
SGLANG = "sglang==0.5.7"
TORCH = "torch==2.13.0"
DYNAMO = "1.3.1"
CACHES = ("kvcache-simulator==0.1.3", "libcachesim==0.3.5")


class Missing(RuntimeError):
    """A peer is not to be had here."""


@dataclass(frozen=True)
class Peer:
    """Its interpreter, and the folder of sources where it is not installed."""

    python: str
    source: str = ""


def sglang(install: bool) -> Peer:
    """The wheel's sources, unpacked, and a torch to import them with. Missing: no network, no wheel."""
    source = FOLDER / "sglang-0.5.7"
    python = _environment("sglang", install, [TORCH])
    if not source.exists():
        _allowed(install, SGLANG)
        _pip(python, "download", "--no-deps", "--dest", str(FOLDER), SGLANG)
        with zipfile.ZipFile(next(FOLDER.glob("sglang-0.5.7-*.whl"))) as wheel:
            wheel.extractall(source)
    return Peer(python, str(source))


def dynamo(install: bool) -> Peer:
    """Dynamo's offline replay with only what that imports. Missing: no network, no wheel for this machine."""
    bare = ["--no-deps", f"ai-dynamo=={DYNAMO}", f"ai-dynamo-runtime=={DYNAMO}"]
    return Peer(
        _environment("dynamo", install, bare, ["pydantic", "uvloop", "numpy", "transformers", "tqdm", "msgspec"])
    )


def caches(install: bool) -> Peer:
    """kvcache-simulator (compiles its core on first use) and libcachesim. Missing: no network, no wheel."""
    return Peer(_environment("caches", install, CACHES))


def _environment(name: str, install: bool, *packages: Sequence[str]) -> str:
    """The interpreter of an environment with these packages, installed a list at a time."""
    folder = FOLDER / name
    python, stamp = str(folder / "bin" / "python"), folder / ".installed"
    if not stamp.exists():
        _allowed(install, packages[0][-1])
        _command(sys.executable, "-m", "venv", "--clear", str(folder))
        for some in packages:
            _pip(python, "install", *some)
        stamp.touch()
    return python


def _allowed(install: bool, what: str) -> None:
    if not install:
        raise Missing(f"{what} is not in {FOLDER.name}, and nothing was to be installed")


def _pip(python: str, *arguments: str) -> None:
    _command(python, "-m", "pip", "--quiet", *arguments)


def _command(*argv: str) -> None:
    line = show(argv)
    print("setting up:", line, file=sys.stderr)
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"`{line}` failed: {lines[-1] if lines else done.returncode}")
