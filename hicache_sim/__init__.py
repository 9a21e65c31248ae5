"""HiCache in simulated time: replay traces, see what each level did.

The names below are imported when first used, so that parts of the package stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "replay": "api",
    "Options": "api",
    "Result": "api",
    "RunConfig": "build",
    "sweep": "sweeps.api",
    "Sweep": "sweeps.api",
}

__all__ = ["Options", "Result", "RunConfig", "Sweep", "replay", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
