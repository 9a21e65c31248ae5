"""Ascend's way, `transfer_kv_dim_exchange`: one call exchanges the axes of layers and pages, for all layers at once.

So a load comes whole with its first layer (`kernel_ascend` in the article's table 5.4). Pages of other devices go
through a buffer: gathered on one side, sent over, scattered on the other.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..pools import DevicePool, HostPool, Pages
from .base import BackupPlan, Copier, LoadPlan, in_one_memory
from .routed import RoutedBackup
from .routes import Lane, Side, Step, lanes, route

CARRIED_BYTES = 16 << 20
"""A transfer between devices is worth that much."""


class WholeLoad(LoadPlan):
    parts = 1

    def __init__(self, found: list[Lane], steps: list[Step]) -> None:
        self.lanes, self.steps = found, steps

    def layer(self, layer: int) -> None:
        for lane in self.lanes:
            for step in self.steps:
                step.copy(lane.device, lane.host)


class ExchangeCopier(Copier):
    """All layers at once, both ways."""

    def __init__(self, device: DevicePool, host: HostPool) -> None:
        super().__init__(device, host)
        self.lanes = lanes(device, host)
        self._route = route if in_one_memory(device, host) else _carried

    def load(self, host_pages: Pages, device_pages: Pages) -> LoadPlan:
        host, device = self.paired(host_pages, device_pages)
        return WholeLoad(self.lanes, self._route(device, host, self.device.page_bytes))

    def backup(self, device_pages: Pages, host_pages: Pages) -> BackupPlan:
        host, device = self.paired(host_pages, device_pages)
        return RoutedBackup(self.lanes, self._route(host, device, self.device.page_bytes))


class Carried(Step):
    """Pages of one device to another's, through buffers on both."""

    def __init__(self, dst_pages: NDArray[np.int64], src_pages: NDArray[np.int64], chunk: int) -> None:
        self.pairs = [torch.split(torch.tensor(pages), chunk) for pages in (dst_pages, src_pages)]

    def copy(self, dst: Side, src: Side) -> None:
        for dst_pages, src_pages in zip(*self.pairs, strict=True):
            taken = src.tensor.index_select(0, src_pages.to(src.tensor.device)).to(dst.tensor.device)
            dst.tensor.index_copy_(0, dst_pages.to(dst.tensor.device), taken)


def _carried(dst: NDArray[np.int64], src: NDArray[np.int64], page_bytes: int) -> list[Step]:
    return [Carried(dst, src, max(1, CARRIED_BYTES // page_bytes))]
