"""EAGLE: the tokens are the decoder's own, rounds are saved, and the draft's cache travels by bigrams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hicache_ref.control.keys import TokenPages, common_pages
from hicache_ref.data.formats import codec_for
from hicache_ref.data.pools import DevicePool
from hicache_ref.model.batching import Tiles, Whole
from hicache_ref.model.decoder import random_model
from hicache_ref.model.eagle import (
    DraftRunner,
    Eagle,
    draft_geometry,
    early_exit_draft,
    random_draft,
    with_draft_layer,
)
from hicache_ref.model.rows import Row
from hicache_ref.model.runner import Runner, greedy

from .small import model_of, prompt

COUNT, PAGE, PAGES = 20, 4, 48


def _plain(runner: Runner, rows: list[Row], count: int) -> list[list[int]]:
    """Greedy decoding, one token a step."""
    out = [[token] for token in greedy(runner.forward(rows))]
    for step in range(count - 1):
        at = [
            Row([tokens[-1]], row.start + len(row.tokens) + step, row.pages)
            for row, tokens in zip(rows, out, strict=True)
        ]
        for tokens, token in zip(out, greedy(runner.forward(at)), strict=True):
            tokens.append(token)
    return out


def _rows(model) -> list[Row]:
    slots = np.random.default_rng(3).permutation(PAGES)
    return [Row(prompt(model, 6), 0, slots[:12]), Row(prompt(model, 17, 1), 0, slots[12:24]), Row([5], 0, slots[24:])]


@pytest.mark.parametrize("shared", [False, True], ids=["own pool", "same pool"])
@pytest.mark.parametrize(
    ("kind", "batching"), [("gqa", Whole()), ("gqa", Tiles(8)), ("gqa norm", Tiles(8)), ("mla experts", Tiles(8))]
)
def test_tokens_are_those_of_plain_decoding(kind, batching, shared):
    """For a draft that knows nothing and one that knows something, in a pool of its own or in the decoder's."""
    model = model_of(kind)
    kv = "fp8_e4m3" if kind == "gqa norm" else "float32"
    codec, layers = codec_for(model.spec.shape, kv), model.spec.shape.layers
    geometry = model.spec.geometry(PAGE, 1, kv)
    pool = DevicePool(with_draft_layer(geometry) if shared else geometry, PAGES, codec.store_dtype)
    own = pool if shared else DevicePool(draft_geometry(geometry), PAGES, codec.store_dtype)
    runner, rows = Runner(model, pool, codec, batching=batching), _rows(model)
    pool.poison(range(PAGES))
    expected = _plain(runner, rows, COUNT)
    lengths = []
    for draft in (random_draft(model, 7), early_exit_draft(model)):
        for each in (pool, own):
            each.poison(range(PAGES))
        guesser = DraftRunner(draft, own, codec, batching=batching, layer=layers if shared else 0)
        out = Eagle(runner, guesser, steps=3).generate(rows, COUNT)
        assert [each.tokens for each in out] == expected
        assert all(each.guessed == 3 * each.rounds for each in out)
        lengths.append(sum(each.accept_length for each in out) / len(out))
    assert 1.0 <= lengths[0] < lengths[1]


def test_a_cached_prefix_found_by_bigrams_serves_both():
    """Two prompts equal in 13 tokens share 12 pairs: three pages, whose rows serve decoder and draft alike."""
    model = random_model(model_of("gqa").spec, 4)
    codec = codec_for(model.spec.shape, "float32")
    pool = DevicePool(with_draft_layer(model.spec.geometry(PAGE, 1, "float32")), PAGES, torch.float32)
    pool.poison(range(PAGES))
    layers = model.spec.shape.layers
    guesser = DraftRunner(early_exit_draft(model), pool, codec, batching=Tiles(8), layer=layers)
    eagle = Eagle(Runner(model, pool, codec, batching=Tiles(8)), guesser)
    first = prompt(model, 20)
    second = np.concatenate([first[:13], (first[13:] + 1) % model.spec.shape.vocab])
    keys = TokenPages(PAGE, pairs=True)
    a, b = keys.key(first.tolist()), keys.key(second.tolist())
    hit = common_pages(a, 0, b, 0)
    assert hit == 3
    eagle.generate([Row(first, 0, np.arange(12))], 8)
    pages = np.concatenate([np.arange(hit), np.arange(20, 29)])
    fences = []
    served = eagle.generate([Row(second[hit * PAGE :], hit * PAGE, pages)], 16, fences.append)[0]
    assert fences == list(range(layers + 1))
    cached = pool.whole[:, :, torch.as_tensor(pages)].flatten(2, 3)[:, :, :20].clone()
    pool.poison(range(PAGES))
    fresh = eagle.generate([Row(second, 0, np.arange(12))], 16)[0]
    assert served == fresh
    assert torch.equal(cached, pool.whole[:, :, :12].flatten(2, 3)[:, :, :20])


def test_rounds_leave_the_rows_that_a_prefill_leaves():
    """Decoder and draft: what accepted tokens left behind is what a prompt of the same tokens leaves, bit by bit."""
    model = model_of("gqa")
    codec = codec_for(model.spec.shape, "float32")
    pool = DevicePool(with_draft_layer(model.spec.geometry(PAGE, 1, "float32")), PAGES, torch.float32)
    guesser = DraftRunner(random_draft(model, 7), pool, codec, batching=Tiles(8), layer=model.spec.shape.layers)
    eagle, first = Eagle(Runner(model, pool, codec, batching=Tiles(8)), guesser), prompt(model, 9)
    tokens = eagle.generate([Row(first, 0, np.arange(12))], 12)[0].tokens
    eagle.generate([Row([*first, *tokens[:-1]], 0, np.arange(12, 24))], 1)
    rows = pool.whole.flatten(2, 3)
    assert torch.equal(rows[:, :, :20], rows[:, :, 12 * PAGE : 12 * PAGE + 20])
