"""Copies by processors of the device: one Triton kernel for every layout, attention and direction.

Rules of this file
- The kernel sees addresses: a table of the device's tensors, one a layer and component, and the host's strides. What
  differs between upstream's kernels (`transfer_kv_per_layer_pf_lf`, `..._ph_lf`, `..._mla` and their all-layer kin) is
  strides, and a component more or less.
- The tables stand on the device, filled once (article 5.2); host memory is reached by its own addresses, which a
  device can do where it is pinned.
- Words are as wide as rows allow; from 16 bytes on, lanes move 16 at a time. Where rows are narrower than a word of 4,
  or host memory is not pinned, `can_move` says no and another operator does it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from numpy.typing import NDArray

from ..pools import DevicePool, HostPool, Pages
from .base import BackupPlan, Copier, LoadPlan

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BLOCK_WORDS = 256, 1024
"""What a program moves at least and at most: a vector of 16 bytes for each of its threads, and a few."""
_WORDS = {8: tl.int64, 4: tl.int32}


@triton.jit(do_not_specialize=["first_layer", "layers"])  # type: ignore[untyped-decorator]
def _move(  # type: ignore[no-untyped-def]
    host_table,
    device_table,
    host_pages,
    device_pages,
    first_layer,
    layers,
    LAYERS: tl.constexpr,
    HOST_L: tl.constexpr,
    HOST_P: tl.constexpr,
    HOST_T: tl.constexpr,
    HOST_H: tl.constexpr,
    HEADS: tl.constexpr,
    ROW: tl.constexpr,
    PAGE: tl.constexpr,
    WORD: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
    LOAD: tl.constexpr,
):
    """One block of words of one page, layer and component. On the device a page is contiguous, on the host strided.

    HOST_*: strides in words. ROW, PAGE: words of a row, and of a page of one layer. Grid: pages, blocks, C * layers.
    """
    component = tl.program_id(2) // layers
    layer = (first_layer + tl.program_id(2) % layers).to(tl.int64)  # a layer of the host may be more than 2^31 words
    host_page = tl.load(host_pages + tl.program_id(0))
    device_page = tl.load(device_pages + tl.program_id(0))
    host = tl.load(host_table + component).to(tl.pointer_type(WORD)) + (host_page * HOST_P + layer * HOST_L)
    device = tl.load(device_table + component * LAYERS + layer).to(tl.pointer_type(WORD)) + device_page * PAGE
    host = tl.multiple_of(host, ALIGN)
    device = tl.multiple_of(device, ALIGN)

    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = word < PAGE
    row = word // ROW
    strided = (row // HEADS) * HOST_T + (row % HEADS) * HOST_H + word % ROW
    if LOAD:
        tl.store(device + word, tl.load(host + strided, mask=inside), mask=inside)
    else:
        tl.store(host + strided, tl.load(device + word, mask=inside), mask=inside)


def can_move(device: DevicePool, host: HostPool) -> bool:
    """Whether the kernel reaches both pools and their rows are whole and wide enough."""
    reached = host.memory.pinned if device.device.type == "cuda" else INTERPRETED
    return reached and len(host.parts) == 1 and _word_bytes(device) in _WORDS


def _word_bytes(device: DevicePool) -> int:
    row_bytes = device.geometry.dim * device.geometry.itemsize
    return next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)


class KernelLoad(LoadPlan):
    def __init__(self, copier: KernelCopier, host: NDArray[np.int64], device: NDArray[np.int64]) -> None:
        self.parts = copier.device.geometry.layers
        self.copier, self.pages = copier, _Indices(host, device, copier)

    def layer(self, layer: int) -> None:
        self.copier.move(*self.pages.there(), first_layer=layer, layers=1, load=True)


class KernelBackup(BackupPlan):
    def __init__(self, copier: KernelCopier, host: NDArray[np.int64], device: NDArray[np.int64]) -> None:
        self.copier, self.pages = copier, _Indices(host, device, copier)

    def run(self) -> None:
        layers = self.copier.device.geometry.layers
        self.copier.move(*self.pages.there(), first_layer=0, layers=layers, load=False)


class _Indices:
    """Page indices, sent to the device on the stream that first needs them, and kept."""

    def __init__(self, host: NDArray[np.int64], device: NDArray[np.int64], copier: KernelCopier) -> None:
        self._here = torch.from_numpy(np.stack([host, device]))
        self._device = copier.device.device
        self._there: torch.Tensor | None = None

    def there(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._there is None:
            self._there = self._here.to(self._device)
        return self._there[0], self._there[1]


class KernelCopier(Copier):
    """One launch a layer of a load, and one for a whole backup."""

    def __init__(self, device: DevicePool, host: HostPool) -> None:
        super().__init__(device, host)
        geometry, word = device.geometry, _word_bytes(device)
        _, view = host.parts[0]
        row = geometry.dim * geometry.itemsize // word
        page = geometry.page_size * geometry.heads * row
        strides = {f"HOST_{axis}": view.stride(at) * geometry.itemsize // word for at, axis in enumerate("LPTH", 1)}
        self._fixed: dict[str, Any] = {
            **strides,
            "LAYERS": geometry.layers,
            "HEADS": geometry.heads,
            "ROW": row,
            "PAGE": page,
            "WORD": _WORDS[word],
            "ALIGN": 16 if row * word % 16 == 0 else word,
            "BLOCK": min(BLOCK_WORDS[1], max(BLOCK_WORDS[0], triton.next_power_of_2(page))),
        }
        self._grid = (triton.cdiv(page, self._fixed["BLOCK"]), geometry.components)
        self._host_table = self._table([component.data_ptr() for component in view])
        self._device_table = self._table([layer.data_ptr() for layers in device.buffers for layer in layers])

    def _table(self, addresses: list[int]) -> torch.Tensor:
        return torch.tensor(addresses, dtype=torch.int64, device=self.device.device)

    def load(self, host_pages: Pages, device_pages: Pages) -> LoadPlan:
        return KernelLoad(self, *self.paired(host_pages, device_pages))

    def backup(self, device_pages: Pages, host_pages: Pages) -> BackupPlan:
        return KernelBackup(self, *self.paired(host_pages, device_pages))

    def move(
        self, host_pages: torch.Tensor, device_pages: torch.Tensor, first_layer: int, layers: int, load: bool
    ) -> None:
        """Launch on the stream of the calling thread. Pages: int64 [n] on the device."""
        if not len(host_pages):
            return
        blocks, components = self._grid
        _move[(len(host_pages), blocks, components * layers)](
            self._host_table,
            self._device_table,
            host_pages,
            device_pages,
            first_layer,
            layers,
            LOAD=load,
            **self._fixed,
        )
