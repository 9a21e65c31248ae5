"""Where and when it was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import peers
from .measure import ROOT, builds

PACKAGES = ("hicache", "simpy", "numpy", "pandas", "pyarrow")


def machine() -> dict[str, str]:
    """Names and numbers that a figure depends on."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "revision": _revision(),
        "CPU": f"{_cpu()}, {os.cpu_count()} logical",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "builds": ", ".join(build.name for build in builds()),
        "compared with": f"{peers.SGLANG} on {peers.TORCH}, ai-dynamo=={peers.DYNAMO}",
    }


def load() -> str:
    """Processes that wanted a CPU: over the last 1, 5 and 15 minutes."""
    return ", ".join(f"{mean:.1f}" for mean in os.getloadavg())


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _revision() -> str:
    """The commit, and whether files differ from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + (" with changes" if status.stdout.strip() else "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
