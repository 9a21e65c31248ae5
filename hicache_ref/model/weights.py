"""Where weights come from, and which part of them a rank keeps.

Rules of this file
- A source gives whole tensors by their Hugging Face names; cutting is the loader's business. So the weights of a rank
  are slices of the very tensors a single rank would have, whatever the number of ranks.
- Random weights depend on the seed and the tensor's name only, not on the order they are asked for.
- A folder that holds tensors nobody asked for is an error: the model would compute something else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..config.models import ModelError

AllReduce = Callable[[Tensor], Tensor]
"""The sum over all ranks of a tensor each of them has a part of."""


class Part(NamedTuple):
    """One rank of a tensor parallel group."""

    rank: int = 0
    size: int = 1

    def of(self, total: int, what: str) -> slice:
        """This rank's equal share of `total`."""
        if total % self.size:
            raise ModelError(f"{total} {what} do not split over {self.size} ranks")
        each = total // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def of_kv(self, heads: int) -> slice:
        """Its share of KV heads, which repeat once there are more ranks than heads."""
        if self.size <= heads:
            return self.of(heads, "KV heads")
        if self.size % heads:
            raise ModelError(f"{heads} KV heads do not repeat evenly over {self.size} ranks")
        head = self.rank * heads // self.size
        return slice(head, head + 1)


def times(part: slice, width: int) -> slice:
    """A slice of heads as a slice of their elements."""
    return slice(part.start * width, part.stop * width)


class Source(Protocol):
    """Whole tensors by name."""

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor on the CPU, in any float dtype. ModelError: missing, or of another shape."""
        ...

    def finish(self) -> None:
        """All has been asked for. ModelError: something was left over."""
        ...


class Seeded:
    """Random weights: matrices that keep a vector's size, norms near one, small biases.

    depth: matrices that add to the residual stream are this much smaller.
    """

    def __init__(self, seed: int, depth: float = 1.0) -> None:
        self.seed, self.depth = seed, depth

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        chance = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        noise = torch.randn(shape, generator=chance, dtype=torch.float32)
        if name.endswith("norm.weight"):
            return 1 + 0.1 * noise
        if len(shape) == 1:
            return 0.1 * noise
        if "embed_tokens" in name:
            return noise
        small = self.depth if re.search(r"(o_proj|down_proj)\.weight$", name) else 1.0
        return noise.mul(shape[-1] ** -0.5 / small)

    def finish(self) -> None:
        """Nothing is left over of chance."""


_UNUSED = re.compile(r"rotary_emb\.inv_freq$|\.indexer\.|_scale_inv$|\.mtp\.|^mtp\.")
"""Tensors that a decoder without sparse index and draft layers does not need, or that belong to others."""


class Folder:
    """Safetensors of a Hugging Face folder. FP8 matrices are unpacked by their blocks' scales.

    layers: how many the model has; those above are draft layers (MTP) and not asked for.
    """

    def __init__(self, folder: str | Path, layers: int) -> None:
        self._open = _safe_open()
        self._folder, self._layers = Path(folder), layers
        self._files = self._index()
        self._handles: dict[str, Any] = {}
        self._used: set[str] = set()

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self._read(name)
        self._used.add(name)
        if tuple(found.shape) != shape:
            raise ModelError(f"{self._folder}: {name} is {list(found.shape)}, its config.json says {list(shape)}")
        scales = f"{name}_scale_inv"
        return _unpacked(found, self._read(scales)) if scales in self._files else found

    def finish(self) -> None:
        self._handles.clear()
        left = sorted(name for name in self._files if self._asked(name) and name not in self._used)
        if left:
            raise ModelError(f"{self._folder} has {len(left)} tensors this decoder does not use: {', '.join(left[:3])}")

    def _asked(self, name: str) -> bool:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        return not _UNUSED.search(name) and (layer is None or int(layer[1]) < self._layers)

    def _index(self) -> dict[str, str]:
        """Tensor name to file name."""
        index = self._folder / "model.safetensors.index.json"
        if index.exists():
            return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        single = self._folder / "model.safetensors"
        if not single.exists():
            raise ModelError(f"{self._folder} has neither model.safetensors nor its index: download the whole model")
        with self._open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single.name)

    def _read(self, name: str) -> Tensor:
        if name not in self._files:
            raise ModelError(f"{self._folder} has no tensor {name}")
        file = self._files[name]
        if file not in self._handles:
            self._handles[file] = self._open(self._folder / file, framework="pt")
        found: Tensor = self._handles[file].get_tensor(name)
        return found


def _safe_open() -> Callable[..., Any]:
    try:
        from safetensors import safe_open
    except ImportError:
        raise ModelError("reading weights needs the package safetensors: pip install safetensors") from None
    return safe_open


def _unpacked(packed: Tensor, scales: Tensor) -> Tensor:
    """FP8 [N, K] with a scale for each block of 128 x 128."""
    rows, columns = packed.shape
    wide = scales.float().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return packed.float() * wide


class Loader:
    """Weights of one rank, in the dtype and on the device it computes with."""

    def __init__(self, source: Source, part: Part, dtype: torch.dtype, device: torch.device) -> None:
        self.source, self.part, self.dtype, self.device = source, part, dtype, device

    def get(self, name: str, *shape: int, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        """Rows or columns of the tensor, all of it if neither is given. Memory of its own."""
        whole = self.source.get(name, shape)
        cut = whole[rows] if rows is not None else whole
        cut = cut[:, columns] if columns is not None else cut
        return cut.to(self.device, self.dtype, copy=True).contiguous()
