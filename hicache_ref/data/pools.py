"""The two pools of KV pages: L1 in device memory, L2 in host memory.

Rules of this file
- A pool is memory and views of it. It knows no owners, no free pages and no requests: the control plane does.
- The device holds a tensor [P, T, H, D] for each component and layer, the host whatever order its layout names. All
  views speak of the same axes: C components, L layers, P pages, T tokens, H heads, D elements of a row.
- Elements are of the store dtype: bytes where the format has no dtype of its own. Sizes come from the geometry, which
  is that of the device's rows, scales and all (NSA's 656 bytes), so both pools agree by construction.
- Free pages hold garbage. `poison` makes it garbage that shows: every element NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config.layouts import KvGeometry, Layout
from .layout import Placement
from .memory import HostMemory

Pages = NDArray[np.int64] | Sequence[int]
"""[pages] page indices of one pool."""

_UNITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


class PoolError(ValueError):
    """A pool that does not fit its geometry. One line."""


class DevicePool:
    """L1: `buffers[c][l]` is a contiguous tensor [P, T, H, D] of `dtype` on `device`, zeroed.

    whole: all of them as one tensor [C, L, P, T, H, D], of which they are views.
    """

    def __init__(
        self, geometry: KvGeometry, pages: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        _check(geometry, pages, dtype)
        self.geometry, self.pages, self.dtype, self.device = geometry, pages, dtype, torch.device(device)
        self.page_bytes = geometry.page_bytes
        shape = (geometry.components, geometry.layers, pages, geometry.page_size, geometry.heads, geometry.dim)
        self.whole = torch.zeros(shape, dtype=dtype, device=self.device)
        self.buffers = [list(component.unbind(0)) for component in self.whole.unbind(0)]

    def poison(self, pages: Pages) -> None:
        """Fill `pages` with NaN."""
        _fill(self.whole, pages)


class HostPool:
    """L2: `pages` pages in the order of `layout`, in one block of host memory, zeroed.

    parts: its tensors, (first element of the row, strided view [C, L, P, T, H, width]): one where rows are whole.
    pin: register the block with CUDA (None: where CUDA is).
    """

    def __init__(
        self, layout: Layout, geometry: KvGeometry, pages: int, dtype: torch.dtype, pin: bool | None = None
    ) -> None:
        _check(geometry, pages, dtype)
        self.layout, self.geometry, self.pages, self.dtype = layout, geometry, pages, dtype
        self.page_bytes = geometry.page_bytes
        place = Placement(layout, geometry, pages)
        self.memory = HostMemory(place.size, pin)
        self.parts = [(part.first, place.view(part, self.memory.data, dtype)) for part in place.parts]
        self._by_place, self._by_component = place.by_place(), place.by_component()

    def views(self, component: int) -> list[Tensor]:
        """A component's parts, each a strided view [L, P, T, H, width]; side by side along D they are whole rows."""
        return [view[component] for _, view in self.parts]

    def view(self, component: int) -> Tensor:
        """A component as a strided view [L, P, T, H, D]. PoolError where the layout cuts rows: take `views`."""
        views = self.views(component)
        if len(views) > 1:
            raise PoolError(f"{self.layout.name} keeps a row in {len(views)} tensors: use views({component})")
        return views[0]

    def page_buffers(self, page: int) -> list[tuple[int, int]]:
        """(address, bytes) of each piece of a page, in the order of upstream's `get_page_buffer_meta`."""
        return [(self.memory.address + piece.at(page), piece.size) for piece in self._by_place]

    def regions(self) -> list[tuple[int, int]]:
        """(address, bytes) of the block: what a zero-copy store registers."""
        return [(self.memory.address, self.memory.size)]

    def page_memory(self, page: int) -> list[memoryview]:
        """Writable bytes of a page, piece by piece, in the order of upstream's flat data page: component-major."""
        memory = self.memory.bytes
        return [memory[start : start + size] for start, size in ((p.at(page), p.size) for p in self._by_component)]

    def poison(self, pages: Pages) -> None:
        """Fill `pages` with NaN."""
        for _, view in self.parts:
            _fill(view, pages)


def _check(geometry: KvGeometry, pages: int, dtype: torch.dtype) -> None:
    if pages < 1:
        raise PoolError(f"a pool of {pages} pages: give it at least one")
    if dtype.itemsize != geometry.itemsize:
        raise PoolError(f"{dtype} has {dtype.itemsize} bytes an element, the geometry {geometry.itemsize}")
    if sum(geometry.parts) != geometry.dim:
        raise PoolError(f"parts {geometry.parts} of a row do not add up to its {geometry.dim} elements")


def _fill(view: Tensor, pages: Pages) -> None:
    """Set all bits of `pages` of a view [C, L, P, T, H, D]: NaN in every float format, and in every scale."""
    row_bytes = view.shape[-1] * view.itemsize
    unit = next(size for size in _UNITS if row_bytes % size == 0)
    index = torch.tensor(np.array(pages, dtype=np.int64), device=view.device)
    view.view(_UNITS[unit]).index_fill_(2, index, -1)
