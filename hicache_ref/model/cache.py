"""The device pool as a model sees it: new rows go in through the codec, and come out through it.

Rules of this file
- Whatever attention reads comes from the pool, rows just computed included: cached and fresh cannot differ.
- Which pages exist and who owns them is not known here. A row is addressed as page * T + place.
- Letters: P pages, T tokens of a page, J cached heads, D elements.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.pools import DevicePool
from .projections import Heads


class Codec(Protocol):
    """How a row is stored; `data.formats` has them."""

    @property
    def plain(self) -> bool:
        """Rows are stored as they are."""
        ...

    def encode(self, x: Tensor) -> Tensor:
        """[.., J, D] to [.., J, D stored] in the store dtype."""
        ...

    def decode(self, rows: Tensor) -> Tensor:
        """The way back, in some float dtype."""
        ...


class PagedView(Protocol):
    """Some pages, for a kernel that takes whole pools and a table of pages."""

    table: NDArray[np.int64]
    """[pages], where each of them lies in what `read` returns."""

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, [P, T, J, D] each."""
        ...


class KvCache:
    """One rank's pool, its codec, and the dtype attention computes in."""

    def __init__(self, pool: DevicePool, codec: Codec, heads: Heads, dtype: torch.dtype, first_layer: int = 0) -> None:
        self.pool, self.codec, self.heads, self.dtype = pool, codec, heads, dtype
        self.page_tokens, self.first_layer = pool.geometry.page_size, first_layer
        self.device = pool.device

    def write(self, layer: int, at: Tensor, rows: tuple[Tensor, ...]) -> None:
        """Rows of n tokens, [n, J, D] a component, to the places `at` [n] int64."""
        for component, new in enumerate(rows):
            self._buffer(component, layer).flatten(0, 1).index_copy_(0, at, self.codec.encode(new))

    def gather(self, layer: int, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `pages` [m] int64, each [m, T, J, D] in memory of its own; MLA's share theirs."""
        found = [
            self._decoded(self._buffer(component, layer).index_select(0, pages))
            for component in range(len(self.pool.buffers))
        ]
        return self.split(found)

    def split(self, components: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values of components: values are a component, or the leading part of the keys."""
        return components[0], components[-1][..., : self.heads.v_dim]

    def view(self, pages: NDArray[np.int64]) -> PagedView:
        """`pages` for a paged kernel: in place where rows are stored as they are, else unpacked layer by layer."""
        plain = self.codec.plain and self.pool.dtype == self.dtype
        return InPlace(self, pages) if plain else Unpacked(self, pages)

    def in_place(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.split([self._buffer(component, layer) for component in range(len(self.pool.buffers))])

    def _buffer(self, component: int, layer: int) -> Tensor:
        return self.pool.buffers[component][self.first_layer + layer]

    def _decoded(self, rows: Tensor) -> Tensor:
        return self.codec.decode(rows).to(self.dtype).contiguous()


class InPlace:
    """The pool itself."""

    def __init__(self, cache: KvCache, pages: NDArray[np.int64]) -> None:
        self._cache, self.table = cache, pages

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._cache.in_place(layer)


class Unpacked:
    """Copies of the pages a batch reads, each once."""

    def __init__(self, cache: KvCache, pages: NDArray[np.int64]) -> None:
        used, self.table = np.unique(pages, return_inverse=True)
        self._cache, self._used = cache, torch.as_tensor(used, device=cache.device)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._cache.gather(layer, self._used)
