"""Copy engines: one asynchronous memcpy for each piece that is contiguous in both pools.

Adjacent pages are merged after sorting, as upstream sorts for this backend (article 5.4 (1), `move_indices`). A piece
is what the layout's order and the device's have in common. Copies are queued, and no processor of the device works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..pools import DevicePool, HostPool, Pages
from .base import BackupPlan, Copier, LoadPlan
from .routes import runs

Span = tuple[int, int, int]
"""First host page, first device page, pages: adjacent on both sides."""


class DirectLoad(LoadPlan):
    def __init__(self, copier: DirectCopier, spans: list[Span]) -> None:
        self.parts = copier.device.geometry.layers
        self.copier, self.spans = copier, spans

    def layer(self, layer: int) -> None:
        for host, device in self.copier.pieces(layer, self.spans):
            device.copy_(host, non_blocking=True)


class DirectBackup(BackupPlan):
    def __init__(self, copier: DirectCopier, spans: list[Span]) -> None:
        self.copier, self.spans = copier, spans

    def run(self) -> None:
        for layer in range(self.copier.device.geometry.layers):
            for host, device in self.copier.pieces(layer, self.spans):
                host.copy_(device, non_blocking=True)


class DirectCopier(Copier):
    """For any layout; quick where pieces are long."""

    def __init__(self, device: DevicePool, host: HostPool) -> None:
        super().__init__(device, host)
        whole_rows = len(host.parts) == 1
        inside = host.layout.piece.replace("L", "") if whole_rows else "D"  # layers of the device lie apart
        self._outside = len("PTHD") - len(inside)

    def load(self, host_pages: Pages, device_pages: Pages) -> LoadPlan:
        return DirectLoad(self, self._spans(*self.paired(host_pages, device_pages)))

    def backup(self, device_pages: Pages, host_pages: Pages) -> BackupPlan:
        return DirectBackup(self, self._spans(*self.paired(host_pages, device_pages)))

    def _spans(self, host: NDArray[np.int64], device: NDArray[np.int64]) -> list[Span]:
        found = runs(host, device, joint=True)
        return [(int(found.a[start]), int(found.b[start]), end - start) for start, end in found.bounds]

    def pieces(self, layer: int, spans: Iterable[Span]) -> Iterator[tuple[Tensor, Tensor]]:
        """(host, device) of each piece of one layer, both contiguous."""
        for first, part in self.host.parts:
            columns = slice(first, first + part.shape[-1])
            for component, layers in enumerate(self.device.buffers):
                for host_page, device_page, pages in spans:
                    host = part[component, layer, host_page : host_page + pages]
                    device = layers[layer][device_page : device_page + pages, ..., columns]
                    yield from zip(_cut(host, self._outside), _cut(device, self._outside), strict=True)


def _cut(view: Tensor, axes: int) -> Iterator[Tensor]:
    """`view` without its first `axes` axes, for each place they name."""
    if axes == 0:
        yield view
        return
    for inner in view.unbind(0):
        yield from _cut(inner, axes - 1)
