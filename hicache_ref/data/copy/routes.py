"""How lists of pages become few calls: the steps of a copy, found once and repeated for every layer.

Rules of this file
- A step is one call of torch, which lets other threads run while it copies. Few long steps is all there is to speed.
- Pages that are adjacent on one side are a run. Where one side runs, a single call moves the run, whatever the other
  side looks like: a slice, a gather or a scatter. Only pages alone on both sides need a call each, or a staging buffer.
- Views have pages on axis 0, both the same dims behind it, and elements as wide as their rows allow: index operations
  take time per element. Moving bytes one by one is 50 times slower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..pools import DevicePool, HostPool

CALL_BYTES = 48 << 10
"""A call pays for itself from so many bytes on (it costs 3 us; measured: loop against staging)."""
STAGE_BYTES = 256 << 10
"""What a staging buffer holds: well within a core's cache."""

_WIDEST = {16: torch.complex128, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


class Lane(NamedTuple):
    """The same rows in both pools: views [P, C, L, T, H, D], elements of the widest dtype their rows divide into."""

    device: Tensor
    host: Tensor


def lanes(device: DevicePool, host: HostPool) -> list[Lane]:
    """One lane for each tensor of the host pool."""
    found = []
    for first, part in host.parts:
        rows = device.whole[..., first : first + part.shape[-1]]
        unit = min(_word_bytes(rows), _word_bytes(part))
        found.append(Lane(_pages_first(rows, unit), _pages_first(part, unit)))
    return found


def _word_bytes(view: Tensor) -> int:
    """The widest element in which `view` can be seen: its last axis, all strides and its begin are multiples of it."""
    steps = [view.shape[-1], *view.stride()[:-1], view.storage_offset()]
    return next(size for size in _WIDEST if all(step * view.itemsize % size == 0 for step in steps))


def _pages_first(view: Tensor, unit: int) -> Tensor:
    return view.view(_WIDEST[unit]).permute(2, 0, 1, 3, 4, 5)


class Step(ABC):
    """Some pages of a copy."""

    @abstractmethod
    def copy(self, dst: Tensor, src: Tensor) -> None:
        """Copy these pages between views [P, ...]."""


class Slice(Step):
    """A run on both sides."""

    def __init__(self, dst_first: int, src_first: int, pages: int) -> None:
        self.dst, self.src = slice(dst_first, dst_first + pages), slice(src_first, src_first + pages)

    def copy(self, dst: Tensor, src: Tensor) -> None:
        dst[self.dst].copy_(src[self.src])


class Gather(Step):
    """Pages from anywhere into a run."""

    def __init__(self, dst_first: int, src_pages: Tensor) -> None:
        self.dst, self.src = slice(dst_first, dst_first + len(src_pages)), src_pages

    def copy(self, dst: Tensor, src: Tensor) -> None:
        torch.index_select(src, 0, self.src, out=dst[self.dst])


class Scatter(Step):
    """A run to pages anywhere."""

    def __init__(self, dst_pages: Tensor, src_first: int) -> None:
        self.dst, self.src = dst_pages, slice(src_first, src_first + len(dst_pages))

    def copy(self, dst: Tensor, src: Tensor) -> None:
        dst.index_copy_(0, self.dst, src[self.src])


class Staged(Step):
    """Pages from anywhere to anywhere, `chunk` at a time through a buffer; also between devices."""

    def __init__(self, dst_pages: Tensor, src_pages: Tensor, chunk: int) -> None:
        self.pairs = list(zip(torch.split(dst_pages, chunk), torch.split(src_pages, chunk), strict=True))

    def copy(self, dst: Tensor, src: Tensor) -> None:
        for dst_pages, src_pages in self.pairs:
            taken = src.index_select(0, src_pages.to(src.device))
            dst.index_copy_(0, dst_pages.to(dst.device), taken.to(dst.device))


class Runs(NamedTuple):
    """Pages in the order of side `a`, each with its partner in `b`, cut where they are not adjacent."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    bounds: list[tuple[int, int]]


def runs(a: NDArray[np.int64], b: NDArray[np.int64], joint: bool = False) -> Runs:
    """The longest runs of side `a`; `joint`: that are runs of side `b` too (article 5.4 (1) sorts for these)."""
    order = np.argsort(a)
    a, b = a[order], b[order]
    cuts = (np.diff(a) != 1) | (np.diff(b) != 1) & joint
    starts = [0, *(np.flatnonzero(cuts) + 1).tolist()] if len(a) else []
    return Runs(a, b, list(zip(starts, [*starts[1:], len(a)], strict=False)))


def _gather(dst: NDArray[np.int64], src: NDArray[np.int64]) -> Step:
    """`dst` is a run."""
    whole = (np.diff(src) == 1).all()
    return Slice(int(dst[0]), int(src[0]), len(dst)) if whole else Gather(int(dst[0]), torch.tensor(src))


def _scatter(src: NDArray[np.int64], dst: NDArray[np.int64]) -> Step:
    """`src` is a run."""
    whole = (np.diff(dst) == 1).all()
    return Slice(int(dst[0]), int(src[0]), len(src)) if whole else Scatter(torch.tensor(dst), int(src[0]))


def route(dst: NDArray[np.int64], src: NDArray[np.int64], page_bytes: int) -> list[Step]:
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
    return [*steps, Staged(torch.tensor(to[rest]), torch.tensor(of[rest]), max(1, STAGE_BYTES // page_bytes))]
