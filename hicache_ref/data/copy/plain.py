"""The plainest copy there is: one page of one layer at a time. The oracle of all others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..pools import DevicePool, HostPool, Pages
from .base import BackupPlan, Copier, LoadPlan


class PlainLoad(LoadPlan):
    def __init__(
        self, device: DevicePool, host: HostPool, host_pages: NDArray[np.int64], device_pages: NDArray[np.int64]
    ) -> None:
        self.parts = device.geometry.layers
        self.device, self.host = device, host
        self.pairs = list(zip(host_pages.tolist(), device_pages.tolist(), strict=True))

    def layer(self, layer: int) -> None:
        for component, layers in enumerate(self.device.buffers):
            first = 0
            for view in self.host.views(component):
                width = view.shape[-1]
                for host_page, device_page in self.pairs:
                    layers[layer][device_page, ..., first : first + width] = view[layer, host_page]
                first += width


class PlainBackup(BackupPlan):
    def __init__(
        self, device: DevicePool, host: HostPool, host_pages: NDArray[np.int64], device_pages: NDArray[np.int64]
    ) -> None:
        self.device, self.host = device, host
        self.pairs = list(zip(host_pages.tolist(), device_pages.tolist(), strict=True))

    def run(self) -> None:
        for component, layers in enumerate(self.device.buffers):
            first = 0
            for view in self.host.views(component):
                width = view.shape[-1]
                for layer, buffer in enumerate(layers):
                    for host_page, device_page in self.pairs:
                        view[layer, host_page] = buffer[device_page, ..., first : first + width]
                first += width


class PlainCopier(Copier):
    """Moves any layout, between any devices."""

    def load(self, host_pages: Pages, device_pages: Pages) -> LoadPlan:
        return PlainLoad(self.device, self.host, *self.paired(host_pages, device_pages))

    def backup(self, device_pages: Pages, host_pages: Pages) -> BackupPlan:
        return PlainBackup(self.device, self.host, *self.paired(host_pages, device_pages))
