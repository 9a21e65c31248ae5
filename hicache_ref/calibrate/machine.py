"""Where and with what a calibration was made."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch


def about(device: torch.device) -> dict[str, str]:
    """Names and versions that a figure depends on."""
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{cpu_name()}, {os.cpu_count()} cores, {memory_bytes() / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}",
        "threads": str(torch.get_num_threads()),
        "priority": _priority(),
        "device": device_name(device),
    }
    if device.type == "cuda":
        facts["cuda"] = str(torch.version.cuda)
    return facts


def _priority() -> str:
    """Of the process, and of its session where Linux groups processes by session."""
    try:
        session = Path("/proc/self/autogroup").read_text(encoding="ascii").split("nice")[-1].strip()
    except OSError:
        session = "0"
    return f"nice {os.getpriority(os.PRIO_PROCESS, 0)}, of the session {session}"


def device_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def load() -> str:
    """Processes that wanted a CPU, in the mean of the last 1, 5 and 15 minutes."""
    return ", ".join(f"{mean:.1f}" for mean in os.getloadavg())


def command() -> str:
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
