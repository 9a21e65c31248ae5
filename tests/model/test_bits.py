"""Exact tiles: what a token's cache and logits are does not depend on how the prompt was chunked, batched or paged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.model.batching import Tiles, Whole
from hicache_ref.model.rows import Row

from .small import KINDS, cached, model_of, prompt, runner_of

TOKENS = 70
TILE = 16


@cache
def alone(kind: str, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cache bytes and logits of the first `tokens` of the prompt, computed at once in pages of 16."""
    runner = runner_of(kind, 8, 16, Tiles(TILE))
    pages = np.arange(8)
    logits = runner.forward([Row(prompt(model_of(kind), TOKENS)[:tokens], 0, pages)])
    return cached(runner.pool, pages, tokens), logits[0]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_chunks_batches_and_pages_leave_every_bit(kind, data):
    """The same prompt in random chunks, each beside other rows, over scattered pages of any size."""
    page_tokens = data.draw(st.sampled_from([1, 4, 16, 64]), "page tokens")
    cuts = data.draw(st.sets(st.integers(1, TOKENS - 1), max_size=4), "cuts")
    need = -(-TOKENS // page_tokens)
    runner = runner_of(kind, 3 * need, page_tokens, Tiles(TILE))
    slots = np.random.default_rng(data.draw(st.integers(0, 99), "slots")).permutation(3 * need)
    mine, others = slots[:need], slots[need:]
    tokens = prompt(model_of(kind), TOKENS)
    edges = [0, *sorted(cuts), TOKENS]
    for start, end in pairwise(edges):
        beside = [Row(prompt(model_of(kind), end - start, seed=end), 0, others)]
        place = data.draw(st.integers(0, 1), "place")
        rows = [*beside[:place], Row(tokens[start:end], start, mine), *beside[place:]]
        logits = runner.forward(rows)
        assert torch.equal(logits[place], alone(kind, end)[1])
    assert torch.equal(cached(runner.pool, mine, TOKENS), alone(kind, TOKENS)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_is_prefilling(kind):
    """Tokens fed one at a time leave the bits that a prefill of them leaves."""
    runner, pages = runner_of(kind, 8, 16, Tiles(TILE)), np.arange(8)
    tokens = prompt(model_of(kind), TOKENS)
    runner.forward([Row(tokens[:40], 0, pages)])
    for at in range(40, 52):
        logits = runner.forward([Row(tokens[at : at + 1], at, pages)])
    assert torch.equal(logits[0], alone(kind, 52)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_whole_batches_agree_but_for_rounding(kind):
    """The fast way computes the same function. Packed formats turn a last bit into a step, so they may differ more."""
    runner = runner_of(kind, 24, 16, Whole())
    slots = np.random.default_rng(1).permutation(24)
    tokens = prompt(model_of(kind), TOKENS)
    runner.forward([Row(tokens[:33], 0, slots[:8])])
    rows = [Row(tokens, 0, slots[8:16]), Row(tokens[33:], 33, slots[:8]), Row(tokens[:1], 0, slots[16:])]
    logits = runner.forward(rows)
    loose = 1e-4 if KINDS[kind].kv == "float32" else 0.5
    assert torch.allclose(logits[0], alone(kind, TOKENS)[1], atol=loose)
    assert torch.allclose(logits[1], logits[0], atol=loose)
    assert not logits.isnan().any()


def test_tiles_do_what_whole_batches_do_not():
    """That the bits agree is due to the tiles: whole batches of another size do differ."""
    runner, pages, tokens = runner_of("gqa", 8, 16, Whole()), np.arange(8), prompt(model_of("gqa"), TOKENS)
    seen = set()
    for cut in (1, 3, 17, 33, 50):
        runner.forward([Row(tokens[:cut], 0, pages)])
        seen.add(bytes(runner.forward([Row(tokens[cut:], cut, pages)]).numpy().tobytes()))
    assert len(seen) > 1


def test_bits_are_the_same_in_another_thread():
    """The compute stream is a thread of its own; what it computes is what anybody computes."""
    runner, pages, tokens = runner_of("gqa", 8, 16, Tiles(TILE)), np.arange(8), prompt(model_of("gqa"), TOKENS)
    with ThreadPoolExecutor(1) as pool:
        logits = pool.submit(runner.forward, [Row(tokens, 0, pages)]).result()
    assert torch.equal(logits[0], alone("gqa", TOKENS)[1])
