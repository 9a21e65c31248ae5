"""How lists of pages become few calls: the steps of a copy, found once and repeated for every layer.

Rules of this file
- A step is one call, and other threads run while it copies. Few long steps is all there is to speed.
- Pages that are adjacent on one side are a run. Where one side runs, a single call moves the run, whatever the other
  side looks like: a slice, a gather or a scatter. Pages alone on both sides go through a buffer, many in a call.
- Each step takes what measured fastest on memory of the CPU: numpy moves a row as one element of its own (`memmove`),
  torch gathers in place. Indexing byte by byte, which both would do with bytes, is 50 times slower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..pools import DevicePool, HostPool

CALL_BYTES = 256 << 10
"""A call pays for itself from so many bytes on; shorter runs are gathered and scattered together."""
STAGE_BYTES = 512 << 10
"""What one buffer of theirs holds: well within a core's cache."""
ROW_BYTES = 2048
"""Rows grow to this, as far as both sides are contiguous."""
LETS_GO_ROWS = 512
"""Below that, numpy keeps other threads waiting while it copies (it lets go from 500 elements on)."""

_WIDEST = {16: torch.complex128, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}

Indices = NDArray[np.int64]


class Side(NamedTuple):
    """One component of one pool, twice: the same memory for torch and for numpy.

    tensor: [P, L, T, H, D], or [P, T, H, D] of one layer, elements as wide as rows of both pools divide into.
    rows: [P, L, ...], or [P, ...]: elements are rows, contiguous in both pools. Empty where it is no memory of the CPU.
    """

    tensor: Tensor
    rows: NDArray[Any]

    def layer(self, layer: int) -> Side:
        return Side(self.tensor.select(1, layer), self.rows[:, layer])


class Lane(NamedTuple):
    """The same rows in both pools."""

    device: Side
    host: Side

    def layer(self, layer: int) -> Lane:
        return Lane(self.device.layer(layer), self.host.layer(layer))


def lanes(device: DevicePool, host: HostPool) -> list[Lane]:
    """One lane for each component and host tensor."""
    found = []
    for first, part in host.parts:
        columns = slice(first, first + part.shape[-1])
        for component in range(device.geometry.components):
            ends = [device.whole[component, ..., columns].transpose(0, 1), part[component].transpose(0, 1)]
            word = min(map(_word_bytes, ends))
            rows = _rows(ends) if ends[0].is_cpu else [np.empty((1, device.geometry.layers))] * 2
            found.append(Lane(*(Side(end.view(_WIDEST[word]), row) for end, row in zip(ends, rows, strict=True))))
    return found


def _word_bytes(view: Tensor) -> int:
    """The widest element in which `view` can be seen: its last axis, all strides and its begin are multiples of it."""
    steps = [view.shape[-1], *view.stride()[:-1], view.storage_offset()]
    return next(size for size in _WIDEST if all(step * view.itemsize % size == 0 for step in steps))


def _rows(ends: list[Tensor]) -> list[NDArray[Any]]:
    """Views [P, L, T, H, D] of the same dims with their last axes as one element, as many as both keep contiguous."""
    shape, axes = ends[0].shape, 4
    while axes > 2 and all(end.stride(axes - 1) == end.stride(axes) * shape[axes] for end in ends):
        if shape[axes - 1 :].numel() * ends[0].itemsize > ROW_BYTES:
            break
        axes -= 1
    merged = (end.view(torch.uint8).flatten(axes) for end in ends)
    return [view.numpy().view(f"V{view.shape[-1]}")[..., 0] for view in merged]


class Step(ABC):
    """Some pages of a copy."""

    @abstractmethod
    def copy(self, dst: Side, src: Side) -> None:
        """Copy these pages."""


class Slice(Step):
    """A run on both sides."""

    def __init__(self, dst_first: int, src_first: int, pages: int) -> None:
        self.dst, self.src = slice(dst_first, dst_first + pages), slice(src_first, src_first + pages)

    def copy(self, dst: Side, src: Side) -> None:
        rows = dst.rows[self.dst]
        if rows.size >= LETS_GO_ROWS:
            rows[...] = src.rows[self.src]
        else:
            dst.tensor[self.dst].copy_(src.tensor[self.src])


class Gather(Step):
    """Pages from anywhere into a run."""

    def __init__(self, dst_first: int, src_pages: Indices) -> None:
        self.dst, self.src = slice(dst_first, dst_first + len(src_pages)), torch.tensor(src_pages)

    def copy(self, dst: Side, src: Side) -> None:
        torch.index_select(src.tensor, 0, self.src, out=dst.tensor[self.dst])


class Scatter(Step):
    """A run to pages anywhere."""

    def __init__(self, dst_pages: Indices, src_first: int) -> None:
        self.dst, self.src = dst_pages, slice(src_first, src_first + len(dst_pages))

    def copy(self, dst: Side, src: Side) -> None:
        dst.rows[self.dst] = src.rows[self.src]


class Staged(Step):
    """Pages from anywhere to anywhere, `chunk` at a time."""

    def __init__(self, dst_pages: Indices, src_pages: Indices, chunk: int) -> None:
        starts = range(0, len(dst_pages), chunk)
        self.pairs = [(dst_pages[start : start + chunk], src_pages[start : start + chunk]) for start in starts]

    def copy(self, dst: Side, src: Side) -> None:
        for dst_pages, src_pages in self.pairs:
            dst.rows[dst_pages] = src.rows[src_pages]


class Runs(NamedTuple):
    """Pages in the order of side `a`, each with its partner in `b`, cut where they are not adjacent."""

    a: Indices
    b: Indices
    bounds: list[tuple[int, int]]


def runs(a: Indices, b: Indices, joint: bool = False) -> Runs:
    """The longest runs of side `a`; `joint`: that are runs of side `b` too (article 5.4 (1) sorts for these)."""
    order = np.argsort(a)
    a, b = a[order], b[order]
    cuts = (np.diff(a) != 1) | (np.diff(b) != 1) & joint
    starts = [0, *(np.flatnonzero(cuts) + 1).tolist()] if len(a) else []
    return Runs(a, b, list(zip(starts, [*starts[1:], len(a)], strict=False)))


def _gather(dst: Indices, src: Indices) -> Step:
    """`dst` is a run."""
    whole = (np.diff(src) == 1).all()
    return Slice(int(dst[0]), int(src[0]), len(dst)) if whole else Gather(int(dst[0]), src)


def _scatter(src: Indices, dst: Indices) -> Step:
    """`src` is a run."""
    whole = (np.diff(dst) == 1).all()
    return Slice(int(dst[0]), int(src[0]), len(src)) if whole else Scatter(dst, int(src[0]))


def route(dst: Indices, src: Indices, page_bytes: int) -> list[Step]:
    """Steps that copy page `src[i]` to page `dst[i]` for all i; each call moves `page_bytes` of a page."""
    into, out_of = runs(dst, src), runs(src, dst)
    gathers = len(into.bounds) <= len(out_of.bounds)
    found, step = (into, _gather) if gathers else (out_of, _scatter)
    short = [(start, end) for start, end in found.bounds if (end - start) * page_bytes < CALL_BYTES]
    if len(short) <= 2:
        return [step(found.a[start:end], found.b[start:end]) for start, end in found.bounds]
    steps = [step(found.a[start:end], found.b[start:end]) for start, end in found.bounds if (start, end) not in short]
    rest = np.concatenate([np.arange(start, end) for start, end in short])
    to, of = (found.a, found.b) if gathers else (found.b, found.a)
    return [*steps, Staged(to[rest], of[rest], max(1, STAGE_BYTES // page_bytes))]
