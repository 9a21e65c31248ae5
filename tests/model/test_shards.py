"""Ranks: shares of one model that together compute what it computes, and keep the shares of what it keeps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

from hicache_ref.config.models import ModelError
from hicache_ref.model.decoder import Model, shard
from hicache_ref.model.rows import Row

from .small import model_of, prompt, runner_for


class Meeting:
    """An all-reduce between threads: everyone brings a part, everyone leaves with the sum."""

    def __init__(self, size: int) -> None:
        self._parts: list = [None] * size
        self._all = Barrier(size, timeout=20)

    def of(self, rank: int):
        def all_reduce(x):
            self._parts[rank] = x
            self._all.wait()
            total = sum(self._parts[1:], self._parts[0])
            self._all.wait()
            return total

        return all_reduce


def _run(model: Model, rows: list[list[Row]]):
    runner = runner_for(model, "float32", 16, 4)
    return [runner.forward(batch) for batch in rows], runner.pool.whole


def _together(model: Model, size: int, rows: list[list[Row]]):
    meeting = Meeting(size)
    shards = [shard(model, rank, size, meeting.of(rank)) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(lambda each: _run(each, rows), shards))


@pytest.mark.parametrize("kind", ["gqa", "gqa bias", "gqa experts", "mla experts"])
@pytest.mark.parametrize("size", [2, 4])
def test_shares_add_up(kind, size):
    """Logits agree on all ranks and with the whole model; MHA's ranks hold slices of its heads, MLA's all hold the row.

    With four ranks and two KV heads, each head is on two ranks.
    """
    model, pages = model_of(kind), np.random.default_rng(0).permutation(16)
    tokens = prompt(model, 40)
    rows = [[Row(tokens[:32], 0, pages)], [Row(tokens[32:], 32, pages)]]
    logits, kept = _run(model, rows)
    heads = model.heads.kv
    for rank, (mine, held) in enumerate(_together(model, size, rows)):
        assert torch.allclose(mine[1], logits[1], atol=1e-4)
        first = 0 if model.heads.latent else rank * heads // size
        share = kept[..., first : first + held.shape[4], :]
        assert held.shape[4] == max(1, heads // size)
        assert torch.allclose(held, share, atol=1e-4, equal_nan=True)


def test_weights_of_ranks_are_slices():
    model = model_of("gqa")
    halves = [shard(model, rank, 2, lambda x: x).layers[0].projections for rank in range(2)]
    whole = model.layers[0].projections
    assert torch.equal(torch.cat([half.out for half in halves], 1), whole.out)
    assert sum(len(half.qkv) for half in halves) == len(whole.qkv)


def test_what_does_not_split_says_so():
    with pytest.raises(ModelError, match="8 query heads do not split over 3 ranks"):
        shard(model_of("gqa"), 0, 3, lambda x: x)
