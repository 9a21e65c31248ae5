"""Copy operators between L1 and L2: the article's matrix 5.4, found by io backend, layout and attention."""

from __future__ import annotations

from ...config.layouts import operators
from ..pools import DevicePool, HostPool
from .base import BackupPlan, Copier, CopyError, LoadPlan
from .plain import PlainCopier

__all__ = ["BackupPlan", "Copier", "CopyError", "LoadPlan", "PlainCopier", "make_copier"]


def make_copier(io_backend: str, device: DevicePool, host: HostPool) -> Copier:
    """The operator that moves pages between these pools. LayoutError: upstream has none for this combination."""
    operators(io_backend, host.layout.name, host.geometry.pool)
    return PlainCopier(device, host)
