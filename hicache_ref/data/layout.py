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
    """One host tensor: the rows, or the columns `first` to `first + width` of them, of one component."""

    component: int
    first: int
    width: int
    offset: int
    """Where it begins, in bytes."""


class Placement:
    """All host tensors of a pool in one block of memory, component after component, each part page-aligned."""

    def __init__(self, layout: Layout, geometry: KvGeometry, pages: int) -> None:
        if sorted(layout.axes) != sorted(CANONICAL) or not layout.axes.endswith("D"):
            raise LayoutError(f"{layout.name} orders axes {layout.axes!r}: it takes L, P, T, H once each, and D last")
        self.layout, self.geometry, self.pages = layout, geometry, pages
        self.parts: list[Part] = []
        self.size = 0
        widths = geometry.parts if layout.split else (geometry.dim,)
        for index, width in enumerate(widths):
            for component in range(geometry.components):
                self.parts.append(Part(component, sum(widths[:index]), width, self.size))
                self.size += self._bytes(CANONICAL, width)
            self.size = -(-self.size // ALIGN_BYTES) * ALIGN_BYTES

    def _bytes(self, axes: str, width: int) -> int:
        sizes = self._sizes(width)
        return math.prod(sizes[axis] for axis in axes) * self.geometry.itemsize

    def _sizes(self, width: int) -> dict[str, int]:
        return self.geometry.sizes(self.pages) | {"D": width}

    def view(self, part: Part, memory: Tensor, dtype: torch.dtype) -> Tensor:
        """`part` as [L, P, T, H, width of `dtype`], a strided view of `memory` (uint8, all of the block)."""
        sizes = self._sizes(part.width)
        own = memory[part.offset : part.offset + self._bytes(CANONICAL, part.width)].view(dtype)
        tensor = own.view([sizes[axis] for axis in self.layout.axes])
        return tensor.permute([self.layout.axes.index(axis) for axis in CANONICAL])

    def pieces(self, part: Part) -> list[Piece]:
        """The contiguous bytes of a page in `part`: one for each place that the axes before P name."""
        before, after = self.layout.axes.split("P")
        each = self._bytes(after, part.width)
        places = self._bytes(before, part.width) // self.geometry.itemsize
        return [Piece(part.offset + place * self.pages * each, each, each) for place in range(places)]

    def by_component(self) -> list[Piece]:
        """A page's bytes in the order of upstream's flat data page: component after component."""
        ordered = sorted(self.parts, key=lambda part: (part.component, part.first))
        return [piece for part in ordered for piece in self.pieces(part)]

    def by_place(self) -> list[Piece]:
        """A page's bytes in the order of upstream's `get_page_buffer_meta`: K and V of a layer side by side."""
        ordered = sorted(self.parts, key=lambda part: (part.component, part.first))
        return [piece for place in zip(*map(self.pieces, ordered), strict=True) for piece in place]
