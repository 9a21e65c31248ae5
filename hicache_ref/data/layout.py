"""Where the pages of a host pool lie: a `Layout`'s order of axes turned into strides, views and addresses.

Rules of this file
- Everything follows from the order of axes and the cut of a row; no layout is known by name.
- A view shows memory in the one order that the rest of the code thinks in: L layers, P pages, T tokens, H heads, D
  elements of a row. Views share memory; nothing is copied here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..config.layouts import KvGeometry, Layout, LayoutError

CANONICAL = "LPTHD"
ALIGN_BYTES = 4096


class Piece(NamedTuple):
    """Contiguous bytes of a page: page `p` has `size` of them from `offset + p * stride` on."""

    offset: int
    stride: int
    size: int

    def at(self, page: int) -> int:
        return self.offset + page * self.stride


class Part(NamedTuple):
    """A host tensor, as upstream allocates it: all components of rows, or of the same cut of them."""

    first: int
    """Where its elements begin in a row."""
    width: int
    offset: int
    """Where its bytes begin in the block."""


class Placement:
    """All host tensors of a pool in one block of memory, each page-aligned: what is where."""

    def __init__(self, layout: Layout, geometry: KvGeometry, pages: int) -> None:
        if sorted(layout.axes) != sorted(CANONICAL) or not layout.axes.endswith("D"):
            raise LayoutError(f"{layout.name} orders axes {layout.axes!r}: it takes L, P, T, H once each, and D last")
        self.layout, self.geometry, self.pages = layout, geometry, pages
        self.parts: list[Part] = []
        self.size = first = 0
        for width in geometry.parts if layout.split else (geometry.dim,):
            self.parts.append(Part(first, width, self.size))
            first += width
            taken = self.size + geometry.components * self._bytes(CANONICAL, width)
            self.size = -(-taken // ALIGN_BYTES) * ALIGN_BYTES

    def _bytes(self, axes: str, width: int) -> int:
        sizes = self.geometry.sizes(self.pages) | {"D": width}
        return math.prod(sizes[axis] for axis in axes) * self.geometry.itemsize

    def view(self, part: Part, memory: Tensor, dtype: torch.dtype) -> Tensor:
        """`part` as [C, L, P, T, H, width of `dtype`], a strided view of `memory` (uint8, all of the block)."""
        sizes, axes = self.geometry.sizes(self.pages) | {"D": part.width}, self.layout.axes
        size = self.geometry.components * self._bytes(CANONICAL, part.width)
        tensor = memory[part.offset : part.offset + size].view(dtype).view([-1, *(sizes[axis] for axis in axes)])
        return tensor.permute([0, *(1 + axes.index(axis) for axis in CANONICAL)])

    def _pieces(self, component: int, part: Part) -> list[Piece]:
        """The contiguous bytes of a page in one component of `part`: a piece for each place the axes before P name."""
        each = self._bytes(self.layout.axes.partition("P")[2], part.width)
        whole = self._bytes(CANONICAL, part.width)
        begin = part.offset + component * whole
        return [Piece(offset, each, each) for offset in range(begin, begin + whole, self.pages * each)]

    def by_component(self) -> list[Piece]:
        """A page's bytes in the order of upstream's flat data page: component after component."""
        return [piece for pieces in self._by_tensor() for piece in pieces]

    def by_place(self) -> list[Piece]:
        """A page's bytes in the order of upstream's `get_page_buffer_meta`: K and V of a layer side by side."""
        return [piece for place in zip(*self._by_tensor(), strict=True) for piece in place]

    def _by_tensor(self) -> list[list[Piece]]:
        return [self._pieces(component, part) for component in range(self.geometry.components) for part in self.parts]
