"""The contract of attention backends, for whoever can run here. `python -m tests.model.attending` checks `triton`.

Triton decides at import whether it interprets, so that run has a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hicache_ref.config.layouts import KvGeometry
from hicache_ref.data.formats import Fp8, KvCodec, Plain
from hicache_ref.data.pools import DevicePool
from hicache_ref.model.attention import AttentionBackend, Span
from hicache_ref.model.cache import KvCache
from hicache_ref.model.projections import Heads


class Case(NamedTuple):
    heads: Heads
    codec: KvCodec
    dtype: torch.dtype
    page_tokens: int
    loose: float


F32, F16 = torch.float32, torch.float16
CASES = {
    "mha": Case(Heads(2, 2, 16, 16, 0.25, False), Plain(F32), F32, 4, 1e-5),
    "gqa": Case(Heads(6, 2, 24, 24, 0.2, False), Plain(F32), F32, 1, 1e-5),
    "mqa half": Case(Heads(3, 1, 32, 32, 0.2, False), Plain(F16), F16, 16, 5e-3),
    "mla": Case(Heads(20, 1, 40, 32, 0.15, True), Plain(F32), F32, 4, 1e-5),
    "gqa fp8": Case(Heads(4, 2, 16, 16, 0.25, False), Fp8(torch.float8_e4m3fn), F32, 8, 1e-5),
    "mla fp8": Case(Heads(4, 1, 48, 32, 0.2, True), Fp8(torch.float8_e4m3fn), F32, 16, 1e-5),
}

SHAPES = ((0, 37), (36, 1), (20, 5), (0, 1), (30, 40), (8, 1), (9, 1))
"""(cached tokens, new tokens) of the rows of a batch."""


class Setup:
    """A poisoned pool with some sequences in it, and spans over them."""

    def __init__(self, case: Case, shapes: tuple[tuple[int, int], ...] = SHAPES, seed: int = 0) -> None:
        self.case, chance = case, torch.Generator().manual_seed(seed)
        heads, size = case.heads, case.page_tokens
        need = [-(-(start + new) // size) for start, new in shapes]
        width = case.codec.encode(torch.zeros(1, 1, heads.k_dim)).shape[-1]
        components, bytes_each = 1 if heads.latent else 2, case.codec.store_dtype.itemsize
        geometry = KvGeometry("any", components, 1, size, heads.kv, width, bytes_each, (width,))
        pool = DevicePool(geometry, sum(need) + 3, case.codec.store_dtype)
        pool.poison(range(pool.pages))
        self.cache = KvCache(pool, case.codec, heads, case.dtype)
        slots = np.random.default_rng(seed).permutation(pool.pages)
        self.spans, self.queries = [], []
        for (start, new), stop in zip(shapes, np.cumsum(need), strict=True):
            pages = slots[stop - -(-(start + new) // size) : stop]
            at = np.arange(start + new)
            rows = tuple(torch.randn(len(at), heads.kv, heads.k_dim, generator=chance) for _ in range(components))
            self.cache.write(0, torch.as_tensor(pages[at // size] * size + at % size), rows)
            self.spans.append(Span(pages, start, new, start + new, start + new))
            self.queries.append(torch.randn(new, heads.queries, heads.k_dim, generator=chance).to(case.dtype))

    def expected(self, number: int) -> Tensor:
        """One query, one head after another, in float64."""
        heads, span, size = self.case.heads, self.spans[number], self.case.page_tokens
        k, v = (each.flatten(0, 1).double() for each in self.cache.gather(0, torch.as_tensor(span.pages)))
        out = torch.empty(span.queries, heads.queries, heads.v_dim, dtype=torch.float64)
        assert len(k) == len(span.pages) * size
        for query in range(span.queries):
            seen = span.first + query + 1
            for head in range(heads.queries):
                mine = head // (heads.queries // heads.kv)
                scores = k[:seen, mine] @ self.queries[number][query, head].double() * heads.scale
                out[query, head] = torch.softmax(scores, 0) @ v[:seen, mine]
        return out


Maker = Callable[[KvCache], AttentionBackend]


def check_batch(make: Maker, name: str) -> None:
    """All rows in one batch equal the formula, and nothing of a free page shows."""
    setup = Setup(CASES[name])
    out = make(setup.cache).plan(setup.spans).attend(0, torch.cat(setup.queries)).double()
    expected = torch.cat([setup.expected(number) for number in range(len(setup.spans))])
    assert out.shape == expected.shape
    assert torch.allclose(out, expected, atol=CASES[name].loose), (out - expected).abs().max()


def check_decoding(make: Maker, name: str) -> None:
    """Many rows of one query each, of very different lengths, equal the formula row by row."""
    setup = Setup(CASES[name], ((0, 1), (130, 1), (17, 1), (16, 1), (121, 1), (5, 1)), seed=1)
    out = make(setup.cache).plan(setup.spans).attend(0, torch.cat(setup.queries)).double()
    for number in range(len(setup.spans)):
        assert torch.allclose(out[number : number + 1], setup.expected(number), atol=CASES[name].loose)


def check_padding(make: Maker, name: str) -> None:
    """A tile whose first queries and last keys are absent gives the others what they get anyway."""
    setup = Setup(CASES[name], ((0, 22),), seed=2)
    (span,), (q,) = setup.spans, setup.queries
    tile = torch.zeros(16, *q.shape[1:], dtype=q.dtype)
    tile[2:6] = q[18:22]
    out = make(setup.cache).plan([Span(span.pages, 16, 16, 22, 32)]).attend(0, tile).double()
    assert torch.allclose(out[2:6], setup.expected(0)[18:22], atol=CASES[name].loose)
    assert not out.isnan().any()


if __name__ == "__main__":
    from hicache_ref.model.attention import make_attention, triton_paged

    torch.set_num_threads(1)
    triton_paged._SPLIT_KEYS = 32  # so that contexts this short are split as well
    for case in CASES:
        for check in (check_batch, check_decoding, check_padding):
            check(lambda cache: make_attention("triton", cache), case)
            print(check.__name__, case)
