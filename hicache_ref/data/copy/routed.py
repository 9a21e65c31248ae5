"""Copies by torch and numpy where both pools are one memory: what every operator is on the CPU.

A route is found once a plan, and taken for each tensor and layer.
"""

from __future__ import annotations

from ..pools import DevicePool, HostPool, Pages
from .base import BackupPlan, Copier, LoadPlan
from .routes import Lane, Step, lanes, route


class RoutedLoad(LoadPlan):
    def __init__(self, found: list[Lane], steps: list[Step], layers: int) -> None:
        self.parts = layers
        self.lanes, self.steps = found, steps

    def layer(self, layer: int) -> None:
        for lane in self.lanes:
            dst, src = lane.layer(layer)
            for step in self.steps:
                step.copy(dst, src)


class RoutedBackup(BackupPlan):
    def __init__(self, found: list[Lane], steps: list[Step]) -> None:
        self.lanes, self.steps = found, steps

    def run(self) -> None:
        for lane in self.lanes:
            for step in self.steps:
                step.copy(lane.host, lane.device)


class RoutedCopier(Copier):
    """Layer by layer to the device, all layers at once from it."""

    def __init__(self, device: DevicePool, host: HostPool) -> None:
        super().__init__(device, host)
        self.lanes = lanes(device, host)
        self.layer_bytes = device.geometry.layer_page_bytes // len(self.lanes)
        self.page_bytes = device.page_bytes // len(self.lanes)

    def load(self, host_pages: Pages, device_pages: Pages) -> LoadPlan:
        host, device = self.paired(host_pages, device_pages)
        return RoutedLoad(self.lanes, route(device, host, self.layer_bytes), self.device.geometry.layers)

    def backup(self, device_pages: Pages, host_pages: Pages) -> BackupPlan:
        host, device = self.paired(host_pages, device_pages)
        return RoutedBackup(self.lanes, route(host, device, self.page_bytes))
