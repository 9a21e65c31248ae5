"""How numbers become bytes of the cache: one codec for each way of storing a row.

Rules of this file
- A codec turns rows [.., H, D] of any float dtype into rows [.., H, D stored] of the store dtype, and back. D stored is
  what `KvGeometry.dim` says; the two are counted apart and tests hold them together.
- Formats that torch's indexing does not know are stored as bytes, as upstream does (`store_dtype` of
  `memory_pool.py`). Scales lie in the row they belong to, so whatever moves a row moves them.
- Values out of range saturate. All bits set decode to NaN in every format.
- A codec is found by the attention's and the format's names, else by the format's alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ..config.models import Format, ModelShape


class KvCodec(ABC):
    """One way of storing rows."""

    plain: ClassVar[bool] = False
    """Rows are stored as they are, in a dtype one can compute with."""
    store_dtype: torch.dtype = torch.uint8

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """[.., H, D] of a float dtype to [.., H, D stored] of `store_dtype`."""

    @abstractmethod
    def decode(self, rows: Tensor) -> Tensor:
        """The way back: [.., H, D], float32 unless `plain`."""


class Plain(KvCodec):
    """Numbers as they are."""

    plain = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.store_dtype = dtype

    def encode(self, x: Tensor) -> Tensor:
        return x.to(self.store_dtype)

    def decode(self, rows: Tensor) -> Tensor:
        return rows


class Fp8(KvCodec):
    """One byte a number, no scales."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.largest = dtype, torch.finfo(dtype).max

    def encode(self, x: Tensor) -> Tensor:
        return x.clamp(-self.largest, self.largest).to(self.dtype).view(torch.uint8)

    def decode(self, rows: Tensor) -> Tensor:
        return rows.view(self.dtype).float()


class NsaRow(KvCodec):
    """DeepSeek's sparse attention under FP8: the latent in blocks of FP8, a scale each, and the position part in bf16.

    [512 of FP8 | 4 scales of FP32 | 64 of bf16] = 656 bytes for V3.2 (`quant_k_cache.py`, `override_kv_cache_dim`).
    """

    def __init__(self, fp8: Fp8, latent: int, block: int) -> None:
        self.fp8, self.latent, self.block = fp8, latent, block
        self.scales_end = latent + latent // block * torch.float32.itemsize

    def encode(self, x: Tensor) -> Tensor:
        blocks = _blocks(x[..., : self.latent].float(), self.block)
        scales = blocks.abs().amax(-1, keepdim=True) / self.fp8.largest
        numbers = self.fp8.encode(blocks / scales.masked_fill(scales == 0, 1.0)).flatten(-2)
        position = x[..., self.latent :].bfloat16().contiguous().view(torch.uint8)
        return torch.cat([numbers, scales.squeeze(-1).contiguous().view(torch.uint8), position], -1)

    def decode(self, rows: Tensor) -> Tensor:
        numbers = _blocks(self.fp8.decode(rows[..., : self.latent]), self.block)
        scales = rows[..., self.latent : self.scales_end].contiguous().view(torch.float32)
        position = rows[..., self.scales_end :].contiguous().view(torch.bfloat16).float()
        return torch.cat([(numbers * scales.unsqueeze(-1)).flatten(-2), position], -1)


class Fp4(KvCodec):
    """Two numbers a byte (E2M1), and a power of two for every `block` of them: [numbers | scales].

    Source: OCP Microscaling Formats 1.0, 5.3.3 (E2M1) and 5.4.1 (E8M0, whose 255 is NaN); blocks of 16 as upstream's.
    """

    LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    BIAS, NAN = 127, 255

    def __init__(self, elements: int, block: int) -> None:
        if elements % 2:
            raise ValueError(f"a row of {elements} numbers does not pack into bytes of two: take an even head size")
        self.elements, self.block = elements, block
        self.padding = -elements % block
        levels = torch.tensor(self.LEVELS)
        self.bounds = (levels[1:] + levels[:-1]) / 2
        self.values = torch.cat([levels, -levels])

    def encode(self, x: Tensor) -> Tensor:
        blocks = _blocks(torch.nn.functional.pad(x.float(), (0, self.padding)), self.block)
        largest = blocks.abs().amax(-1, keepdim=True)
        # The least power of two by which the largest comes to 6 or less: frexp's, one less where it is exact.
        mantissa, exponent = torch.frexp(largest / self.LEVELS[-1])
        exponent = (exponent - (mantissa == 0.5).int()).clamp(-self.BIAS, self.BIAS)
        level = torch.bucketize(torch.ldexp(blocks.abs(), -exponent), self.bounds.to(x.device), out_int32=True)
        codes = (level + 8 * blocks.signbit()).to(torch.uint8).flatten(-2)[..., : self.elements]
        scales = (exponent + self.BIAS).masked_fill(~largest.isfinite(), self.NAN).to(torch.uint8)
        return torch.cat([codes[..., ::2] | codes[..., 1::2] << 4, scales.squeeze(-1)], -1)

    def decode(self, rows: Tensor) -> Tensor:
        packed, scales = rows[..., : self.elements // 2], rows[..., self.elements // 2 :].int()
        codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        numbers = self.values.to(rows.device)[codes.int()]
        powers = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales - self.BIAS)
        powers = powers.masked_fill(scales == self.NAN, torch.nan)
        return numbers * powers.repeat_interleave(self.block, -1)[..., : self.elements]


def _blocks(x: Tensor, size: int) -> Tensor:
    """[.., n * size] as [.., n, size]."""
    return x.reshape(*x.shape[:-1], -1, size)


Maker = Callable[[ModelShape, Format], KvCodec]

_FP8 = {"fp8_e4m3": Fp8(torch.float8_e4m3fn), "fp8_e5m2": Fp8(torch.float8_e5m2)}


def _nsa_row(model: ModelShape, kv: Format) -> KvCodec:
    attention = model.attention
    return NsaRow(_FP8[kv.name], attention.kv_lora_rank, attention.quant_block)  # type: ignore[attr-defined]


CODECS: dict[str, Maker] = {
    "bfloat16": lambda model, kv: Plain(torch.bfloat16),
    "float16": lambda model, kv: Plain(torch.float16),
    "float32": lambda model, kv: Plain(torch.float32),
    "fp8_e4m3": lambda model, kv: _FP8[kv.name],
    "fp8_e5m2": lambda model, kv: _FP8[kv.name],
    "fp4_e2m1": lambda model, kv: Fp4(model.attention.row_dim, kv.block),
}
"""By name of the format."""

ROWS: dict[tuple[str, str], Maker] = {("nsa", "fp8_e4m3"): _nsa_row, ("nsa", "fp8_e5m2"): _nsa_row}
"""By names of the attention and the format, where that attention has rows of its own."""


def codec_for(model: ModelShape, kv_cache_dtype: str = "auto") -> KvCodec:
    """How `model` stores its cache. ModelError for an unknown `kv_cache_dtype`, with the known ones."""
    kv = model.kv_format(kv_cache_dtype)
    maker = ROWS.get((model.attention.name, kv.name)) or CODECS[kv.name]
    return maker(model, kv)
