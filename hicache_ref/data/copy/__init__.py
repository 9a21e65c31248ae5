"""Copy operators between L1 and L2: the article's matrix 5.4, found by io backend, layout and attention.

Whether a combination exists is `config.layouts.OPERATORS`; what an io backend is, is here. An operator of your own is
a `Copier` and an entry of `COPIERS`, or an order of axes that the operators here take as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from ...config.layouts import operators
from ..pools import DevicePool, HostPool
from .base import BackupPlan, Copier, CopyError, LoadPlan, in_one_memory
from .direct import DirectCopier
from .exchange import ExchangeCopier
from .plain import PlainCopier
from .routed import RoutedCopier

__all__ = ["COPIERS", "BackupPlan", "Copier", "CopyError", "LoadPlan", "PlainCopier", "make_copier"]


def _kernel(device: DevicePool, host: HostPool) -> Copier:
    try:
        from .kernel import KernelCopier, can_move
    except ImportError:  # no Triton on this machine
        return _direct(device, host)
    return KernelCopier(device, host) if can_move(device, host) else _direct(device, host)


def _direct(device: DevicePool, host: HostPool) -> Copier:
    return (RoutedCopier if in_one_memory(device, host) else DirectCopier)(device, host)


COPIERS: dict[str, Callable[[DevicePool, HostPool], Copier]] = {
    "kernel": _kernel,
    "direct": _direct,
    "kernel_ascend": ExchangeCopier,
}


def make_copier(io_backend: str, device: DevicePool, host: HostPool) -> Copier:
    """The operator that moves pages between these pools. LayoutError: there is none, with those there are."""
    operators(io_backend, host.layout.name, host.geometry.pool)
    return COPIERS[io_backend](device, host)
