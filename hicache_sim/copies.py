"""The price of a copy between L1 and L2: launches, pieces and bytes, by layout and io backend.

Rules of this file
- Two numbers leave this file apart, because they are spent in different places: `overhead_s` on the stream that
  issues the copy, `link_bytes` on the link it crosses. A link is shared, a stream's own time is not.
- `link_bytes` is the payload over the efficiency with which this kind of copy uses a link, so `link_bytes` at the
  link's full bandwidth takes as long as the payload really does. Reports count `bytes`.
- How many pieces a copy has is the layout's knowledge, what a piece costs is the hardware profile's. Neither is here.
- Everything that does not depend on the copy is worked out once. A price is a handful of multiplications: a run asks
  for hundreds of thousands.

What the backends do (v0.5.7, and sgl-kernel's `transfer.cu`). `kernel`: one launch a layer for a load, one in all for a
backup; a warp copies one token's row at a time, so the row's size decides how well the link is used, and contiguity
does not matter. `direct`: one cudaMemcpyAsync for every piece that is contiguous on both sides, issued from a loop on
the CPU, each with its fixed cost: adjacent pages help only where the layout lets a piece run across them.
`kernel_ascend`: one call for all layers, priced as the copy engines of `direct` are, without the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hicache_ref.config.layouts import IoBackend, KvGeometry, Layout, find_io_backend, find_layout, operators
from hicache_sim.hardware import HardwareProfile


class CopyCost(NamedTuple):
    """One copy, or one part of it."""

    launches: int
    segments: int
    """Pieces contiguous on both sides; what they cost is in `overhead_s`."""
    bytes: int
    """Payload."""
    overhead_s: float
    link_bytes: float

    def seconds(self, link_bytes_per_s: float) -> float:
        """On a link that does nothing else."""
        return self.overhead_s + self.link_bytes / link_bytes_per_s


class Measured(NamedTuple):
    """What a calibration has found for one combination. compute_share: of compute's time, while a copy runs."""

    load: Direction
    backup: Direction
    compute_share: float


@dataclass(frozen=True)
class Direction:
    """What one direction costs: fixed, by launch and by piece, and the share of the link that bytes reach."""

    launch_s: float
    segment_s: float
    efficiency: float


class Pricing(Protocol):
    """How an io backend spends time, from the hardware profile."""

    @property
    def launches_per_part(self) -> int: ...

    def load(self, hardware: HardwareProfile, row_bytes: int) -> Direction: ...

    def backup(self, hardware: HardwareProfile, row_bytes: int) -> Direction: ...


class KernelPricing:
    """Pieces cost nothing of their own; rows too short to keep the link busy cost bandwidth."""

    launches_per_part: int = 1

    def load(self, hardware: HardwareProfile, row_bytes: int) -> Direction:
        return self._direction(hardware, hardware.kernel_h2d_efficiency, row_bytes)

    def backup(self, hardware: HardwareProfile, row_bytes: int) -> Direction:
        return self._direction(hardware, hardware.kernel_d2h_efficiency, row_bytes)

    def _direction(self, hardware: HardwareProfile, longest: float, row_bytes: int) -> Direction:
        filled = row_bytes / (row_bytes + hardware.kernel_half_row_bytes)
        return Direction(hardware.kernel_launch_s, 0.0, longest * filled)


class DirectPricing:
    """No launches, but a call for every piece."""

    launches_per_part: int = 0

    def load(self, hardware: HardwareProfile, row_bytes: int) -> Direction:
        return Direction(0.0, hardware.direct_h2d_segment_s, hardware.direct_efficiency)

    def backup(self, hardware: HardwareProfile, row_bytes: int) -> Direction:
        return Direction(0.0, hardware.direct_d2h_segment_s, hardware.direct_efficiency)


class AscendPricing:
    """One call moves all pieces, on copy engines."""

    launches_per_part: int = 1

    def load(self, hardware: HardwareProfile, row_bytes: int) -> Direction:
        return Direction(hardware.kernel_launch_s, 0.0, hardware.direct_efficiency)

    backup = load


PRICINGS: dict[str, Pricing] = {
    "kernel": KernelPricing(),
    "direct": DirectPricing(),
    "kernel_ascend": AscendPricing(),
}


class CopyModel:
    """Prices the copies of one rank: a layout, an io backend and a model's geometry on a machine.

    A load comes in `parts` equal parts, one a layer where the backend works by layers, so that layer i can compute
    when part i is there. While a copy runs, compute is slower by the share `compute_slowdown`.
    """

    def __init__(
        self,
        layout: str,
        io_backend: str,
        geometry: KvGeometry,
        hardware: HardwareProfile,
        measured: Measured | None = None,
    ) -> None:
        operators(io_backend, layout, geometry.pool)  # raises where upstream has none
        self.layout: Layout = find_layout(layout)
        self.io_backend: IoBackend = find_io_backend(io_backend)
        self.geometry = geometry
        self.parts = geometry.layers if self.io_backend.layerwise else 1
        if measured is not None:
            self.load_direction, self.backup_direction, self.compute_slowdown = measured
            self._launches = 1
        else:
            self.compute_slowdown = hardware.kernel_blocks / hardware.sms if self.io_backend.takes_sms else 0.0
            pricing, row_bytes = PRICINGS[io_backend], self.layout.element_bytes(geometry)
            self.load_direction = pricing.load(hardware, row_bytes)
            self.backup_direction = pricing.backup(hardware, row_bytes)
            self._launches = pricing.launches_per_part
        self._merges = self.layout.merges_pages
        self._layer_pieces = self.layout.load_segments(geometry, 1).pieces
        self._layers_per_part = geometry.layers // self.parts

    def load_part(self, pages: int, runs: int | None = None) -> CopyCost:
        """One of the `parts` of a load. `runs`: groups of pages adjacent on both sides; None when none are."""
        return self._cost(self.load_direction, self._layers_per_part, self._launches, pages, runs)

    def load(self, pages: int, runs: int | None = None) -> CopyCost:
        """A whole load: its parts, one after the other."""
        return self._cost(self.load_direction, self.geometry.layers, self._launches * self.parts, pages, runs)

    def backup(self, pages: int, runs: int | None = None) -> CopyCost:
        """A whole backup: all layers in one operation."""
        return self._cost(self.backup_direction, self.geometry.layers, self._launches, pages, runs)

    def _cost(self, by: Direction, layers: int, launches: int, pages: int, runs: int | None) -> CopyCost:
        groups = pages if runs is None or not self._merges else runs
        segments = groups * self._layer_pieces * layers
        payload = pages * self.geometry.layer_page_bytes * layers
        overhead_s = launches * by.launch_s + segments * by.segment_s
        return CopyCost(launches, segments, payload, overhead_s, payload / by.efficiency)
