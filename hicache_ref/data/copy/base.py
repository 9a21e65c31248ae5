"""What a copy operator is: a pair of plans over two pools.

Rules of this file
- A plan is made once, from page indices of both pools in the same order, and keeps alive what its copies need. It may
  be run in another thread or on another stream than the one that made it.
- A load goes layer by layer; an operator that moves all layers at once says so in `parts`.
- Whoever runs a plan sees to the order: nothing here waits for a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from ..pools import DevicePool, HostPool, Pages


class CopyError(ValueError):
    """A copy that cannot be made: lists that do not pair, pages out of range, pools that do not match. One line."""


def in_one_memory(device: DevicePool, host: HostPool) -> bool:
    """Whether one operation of torch may read the one and write the other."""
    return device.device == host.memory.data.device


class LoadPlan(ABC):
    """L2 to L1."""

    parts: int
    """How many calls of `layer` the whole load takes: one a layer, or 1 where the first brings all."""

    @abstractmethod
    def layer(self, layer: int) -> None:
        """Copy one layer of all pages; where `parts` is 1, `layer(0)` copies them all."""


class BackupPlan(ABC):
    """L1 to L2."""

    @abstractmethod
    def run(self) -> None:
        """Copy all layers of all pages."""


class Copier(ABC):
    """One operator of the matrix between one device pool and one host pool."""

    def __init__(self, device: DevicePool, host: HostPool) -> None:
        if device.geometry != host.geometry or device.dtype != host.dtype:
            raise CopyError(f"the pools differ: {device.geometry} {device.dtype} and {host.geometry} {host.dtype}")
        self.device, self.host = device, host

    @abstractmethod
    def load(self, host_pages: Pages, device_pages: Pages) -> LoadPlan:
        """A plan that copies `host_pages[i]` to `device_pages[i]` for all i. No page twice in a destination."""

    @abstractmethod
    def backup(self, device_pages: Pages, host_pages: Pages) -> BackupPlan:
        """A plan that copies `device_pages[i]` to `host_pages[i]` for all i. No page twice in a destination."""

    def paired(self, host_pages: Pages, device_pages: Pages) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Both lists as arrays of their own. CopyError: they do not pair, or a page is out of range."""
        host = np.array(host_pages, dtype=np.int64)
        device = np.array(device_pages, dtype=np.int64)
        if host.shape != device.shape or host.ndim != 1:
            raise CopyError(f"host pages {host.shape} and device pages {device.shape} do not pair")
        for name, pages, pool in (("host", host, self.host), ("device", device, self.device)):
            if len(pages) and not (pages.min() >= 0 and pages.max() < pool.pages):
                raise CopyError(f"{name} pages {pages.min()} to {pages.max()}: the pool has 0 to {pool.pages - 1}")
        return host, device
