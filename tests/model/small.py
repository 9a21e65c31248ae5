"""Small models of every kind, and pools for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hicache_ref.config.models import find_model
from hicache_ref.data.formats import codec_for
from hicache_ref.data.pools import DevicePool
from hicache_ref.model.batching import Batching
from hicache_ref.model.decoder import Model, random_model
from hicache_ref.model.rows import Row
from hicache_ref.model.runner import Runner
from hicache_ref.model.scaling import scale


class Kind(NamedTuple):
    """A model of the catalogue and how its cache is stored."""

    model: str
    kv: str


KINDS = {
    "gqa": Kind("Llama-3.1-8B", "float32"),
    "gqa bias": Kind("Qwen2.5-7B", "bfloat16"),
    "gqa norm": Kind("Qwen3-8B", "fp8_e4m3"),
    "gqa experts": Kind("GLM-4.5", "float32"),
    "mla experts": Kind("DeepSeek-V3", "float32"),
    "mla packed": Kind("Kimi-K2", "fp4_e2m1"),
    "nsa": Kind("DeepSeek-V3.2", "fp8_e4m3"),
}


@cache
def model_of(kind: str) -> Model:
    return random_model(scale(find_model(KINDS[kind].model), factor=0.001), seed=1)


def runner_of(
    kind: str, pages: int, page_tokens: int, batching: Batching | None = None, attention: str = "torch_native"
) -> Runner:
    """A model over a pool of its own, all of it poisoned."""
    return runner_for(model_of(kind), KINDS[kind].kv, pages, page_tokens, batching, attention)


def runner_for(
    model: Model,
    kv: str,
    pages: int,
    page_tokens: int,
    batching: Batching | None = None,
    attention: str = "torch_native",
) -> Runner:
    codec = codec_for(model.spec.shape, kv)
    geometry = model.spec.geometry(page_tokens, model.part.size, kv)
    pool = DevicePool(geometry, pages, codec.store_dtype)
    pool.poison(range(pages))
    return Runner(model, pool, codec, attention, batching)


def prompt(model: Model, tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.spec.shape.vocab, tokens)


def whole_row(tokens: Sequence[int] | np.ndarray, pages: np.ndarray) -> Row:
    return Row(tokens, 0, pages)


def cached(pool: DevicePool, pages: np.ndarray, tokens: int) -> Tensor:
    """What the pool holds of a sequence, in the order of its tokens: bytes, [C, L, tokens, row]."""
    held = pool.whole[:, :, torch.as_tensor(pages)].flatten(2, 3)[:, :, :tokens]
    return held.flatten(3).contiguous().view(torch.uint8)
