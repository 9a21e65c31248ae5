"""How a page lies in host memory, and which of upstream's operators move it: the article's table 5.4 as objects.

Rules of this file
- A layout is an order of axes: L layers, P pages, T tokens of a page, H heads, D elements of a row. All else about it
  (dims, runs, objects of a page) is derived from that order.
- The device always holds (L, P, T, H, D), one tensor per layer and component. So a piece that one memcpy can move is
  the axes both orders end with.
- Whether a combination exists is one look into `OPERATORS`, never a comparison of names.
- No torch here: the simulator prices with these objects, the data plane allocates with them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hicache_ref.config.models import ModelShape

DEVICE_AXES = "LPTHD"


class LayoutError(ValueError):
    """A layout, an io backend or a combination that upstream does not have. One line, with what it has."""


@dataclass(frozen=True)
class KvGeometry:
    """The part of a model that copies see, on one rank."""

    pool: str
    """ "mha" or "mla": which host pool of upstream's holds it."""
    components: int
    """Tensors of their own: 2 for K and V, 1 for latent rows."""
    layers: int
    page_size: int
    heads: int
    dim: int
    itemsize: int
    parts: tuple[int, ...]
    """`dim` as the split layout cuts it; whole where the row's scales lie behind all of it (FP4)."""

    @property
    def token_layer_bytes(self) -> int:
        """One token of one layer and component: what a copy kernel reads at a time."""
        return self.heads * self.dim * self.itemsize

    @property
    def layer_page_bytes(self) -> int:
        """One layer of one page, all components."""
        return self.components * self.page_size * self.token_layer_bytes

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_page_bytes

    def sizes(self, pages: int) -> dict[str, int]:
        return {"L": self.layers, "P": pages, "T": self.page_size, "H": self.heads, "D": self.dim}


def geometry(model: ModelShape, page_size: int, tp_size: int = 1, kv_cache_dtype: str = "auto") -> KvGeometry:
    """What one of `tp_size` ranks keeps of `model`."""
    attention, kv = model.attention, model.kv_format(kv_cache_dtype)
    dim, parts = attention.row_bytes(kv) // kv.itemsize, attention.row_parts(kv)
    return KvGeometry(
        pool=attention.pool,
        components=len(attention.components),
        layers=model.layers,
        page_size=page_size,
        heads=attention.local_kv_heads(tp_size),
        dim=dim,
        itemsize=kv.itemsize,
        parts=parts if sum(parts) == dim else (dim,),
    )


class Segments(NamedTuple):
    """Pieces contiguous on both sides of a copy. Together they are the payload."""

    pieces: int
    total_bytes: int

    @property
    def bytes_each(self) -> float:
        return self.total_bytes / self.pieces if self.pieces else 0.0


@dataclass(frozen=True)
class Layout:
    """One value of `--hicache-mem-layout`."""

    name: str
    axes: str
    split: bool = False
    """The parts of a row lie in buffers of their own (Ascend)."""
    stored: bool = True
    """L3 works with it: v0.5.7's `get_page_buffer_meta` and `get_data_page` know it."""

    def host_buffers(self, g: KvGeometry, pages: int) -> tuple[tuple[int, ...], ...]:
        """The dims of each host tensor, as upstream allocates it. Pages and tokens that lie together are one axis."""
        rows = g.parts if self.split else (g.dim,)
        return tuple(self._dims(g, pages, row) for row in rows)

    def host_dims(self, g: KvGeometry, pages: int) -> tuple[int, ...]:
        return self.host_buffers(g, pages)[0]

    def _dims(self, g: KvGeometry, pages: int, row: int) -> tuple[int, ...]:
        sizes = g.sizes(pages) | {"S": pages * g.page_size, "D": row}
        dims = tuple(sizes[axis] for axis in self.axes.replace("PT", "S"))
        return (g.components, *dims) if g.components > 1 else dims

    @property
    def piece(self) -> str:
        """The axes a single memcpy covers: those with which host and device order both end."""
        common = 0
        while common < 5 and self.axes[-1 - common] == DEVICE_AXES[-1 - common]:
            common += 1
        return self.axes[5 - common :]

    @property
    def merges_pages(self) -> bool:
        """Adjacent pages go in one piece, within a layer."""
        return "P" in self.piece

    def load_segments(self, g: KvGeometry, pages: int, runs: int | None = None) -> Segments:
        """Pieces of ONE layer of `pages` pages. `runs`: groups of pages adjacent on host and device (default: none)."""
        groups = pages if runs is None or not self.merges_pages else runs
        return Segments(groups * self._pieces_per_group(g), pages * g.layer_page_bytes)

    def _pieces_per_group(self, g: KvGeometry) -> int:
        outside = (size for axis, size in g.sizes(1).items() if axis not in self.piece and axis != "L")
        return g.components * math.prod(outside) * (len(g.parts) if self.split else 1)

    def backup_segments(self, g: KvGeometry, pages: int, runs: int | None = None) -> Segments:
        """Pieces of all layers of `pages` pages: device memory is cut by layer, so the layers add up."""
        one = self.load_segments(g, pages, runs)
        return Segments(one.pieces * g.layers, one.total_bytes * g.layers)

    def element_bytes(self, g: KvGeometry) -> int:
        """The contiguous run a copy kernel's warp moves: a token's row, or one head of it where heads lie apart."""
        sizes = g.sizes(1)
        return math.prod(sizes[axis] for axis in self.piece if axis in "HD") * g.itemsize

    @property
    def page_contiguous(self) -> bool:
        """A component of a page is one piece of host memory, so a store can take it without a copy."""
        return self.axes[0] == "P"

    def objects_per_page(self, g: KvGeometry) -> int:
        """Objects a page becomes in a zero-copy store."""
        parts = len(g.parts) if self.split else 1
        return g.components * parts * (1 if self.page_contiguous else g.layers)

    def io_backends(self, pool: str) -> tuple[str, ...]:
        return tuple(backend for backend, layout, kind in OPERATORS if layout == self.name and kind == pool)


@dataclass(frozen=True)
class IoBackend:
    """One value of `--hicache-io-backend`."""

    name: str
    takes_sms: bool
    """Copies run on the processors that also compute; else on the copy engines."""
    layerwise: bool = True
    """A load comes layer by layer; else all of it with the first layer."""


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("layer_first", "LPTHD"),
        Layout("page_first", "PTLHD"),
        Layout("page_first_direct", "PLTHD"),
        Layout("page_head", "PHTLD"),
        Layout("page_first_kv_split", "PLTHD", split=True, stored=False),
    )
}

IO_BACKENDS: dict[str, IoBackend] = {
    backend.name: backend
    for backend in (
        IoBackend("kernel", takes_sms=True),
        IoBackend("direct", takes_sms=False),
        IoBackend("kernel_ascend", takes_sms=False, layerwise=False),
    )
}


class Operators(NamedTuple):
    """Upstream's functions: `load` for one layer, `backup` for all."""

    load: str
    backup: str


OPERATORS: dict[tuple[str, str, str], Operators] = {
    ("kernel", "layer_first", "mha"): Operators("jit_transfer_hicache_one_layer", "jit_transfer_hicache_all_layer"),
    ("kernel", "page_first", "mha"): Operators("transfer_kv_per_layer_pf_lf", "transfer_kv_all_layer_lf_pf"),
    ("kernel", "page_head", "mha"): Operators("transfer_kv_per_layer_ph_lf", "transfer_kv_all_layer_lf_ph"),
    ("direct", "layer_first", "mha"): Operators("transfer_kv_direct", "transfer_kv_direct"),
    ("direct", "page_first_direct", "mha"): Operators(
        "transfer_kv_per_layer_direct_pf_lf", "transfer_kv_all_layer_direct_lf_pf"
    ),
    ("kernel_ascend", "page_first_direct", "mha"): Operators("transfer_kv_dim_exchange", "transfer_kv_dim_exchange"),
    ("kernel", "layer_first", "mla"): Operators("transfer_kv_per_layer_mla", "transfer_kv_all_layer_mla"),
    ("kernel", "page_first", "mla"): Operators("transfer_kv_per_layer_mla_pf_lf", "transfer_kv_all_layer_mla_lf_pf"),
    ("direct", "layer_first", "mla"): Operators("transfer_kv_direct", "transfer_kv_direct"),
    ("direct", "page_first_direct", "mla"): Operators(
        "transfer_kv_per_layer_direct_pf_lf", "transfer_kv_all_layer_direct_lf_pf"
    ),
    ("kernel_ascend", "page_first_kv_split", "mla"): Operators("transfer_kv_dim_exchange", "transfer_kv_dim_exchange"),
}
"""(io backend, layout, pool) to operators. What is not here raises in upstream's host pools."""

WITHOUT_JIT = Operators("transfer_kv_per_layer", "transfer_kv_all_layer")
"""What MHA's kernel and layer_first fall back to where the JIT kernel does not build for the row's width."""


OWN = Operators("copy_layer", "copy_pages")
"""What moves a combination that upstream does not have: `hicache_ref.data.copy` takes any order of axes."""


def register(layout: Layout, io_backends: Iterable[str], pools: Iterable[str]) -> None:
    """Make a layout of your own known to flags and copies, or a known one to a `pool` of your own.

    LayoutError: another layout has that name, or an io backend is unknown. What upstream has stays as it is.
    """
    if LAYOUTS.setdefault(layout.name, layout) != layout:
        raise LayoutError(f"there is another layout called {layout.name!r}: give yours its own name")
    for io_backend, pool in itertools.product(io_backends, tuple(pools)):
        OPERATORS.setdefault((find_io_backend(io_backend).name, layout.name, pool), OWN)


def find_layout(name: str) -> Layout:
    if name not in LAYOUTS:
        raise LayoutError(f"unknown memory layout {name!r}; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def find_io_backend(name: str) -> IoBackend:
    if name not in IO_BACKENDS:
        raise LayoutError(f"unknown io backend {name!r}; known: {', '.join(IO_BACKENDS)}")
    return IO_BACKENDS[name]


def operators(io_backend: str, layout: str, pool: str) -> Operators:
    """What upstream calls for this combination, or a LayoutError that lists the combinations of this pool."""
    find_io_backend(io_backend)
    find_layout(layout)
    found = OPERATORS.get((io_backend, layout, pool))
    if found is None:
        valid = ", ".join(f"{backend} + {name}" for backend, name, kind in OPERATORS if kind == pool)
        raise LayoutError(f"no operator for {io_backend} + {layout} with {pool} attention; there are: {valid}")
    return found
