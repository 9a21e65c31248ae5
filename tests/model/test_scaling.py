"""Shrunk models keep what matters of the big one's cache, and their pools agree with what the model writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.config.models import CATALOGUE, Mha, ModelError, find_model
from hicache_ref.model.scaling import scale

SUPPORTED = sorted(name for name, shape in CATALOGUE.items() if shape.unsupported_reason is None)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SUPPORTED), st.floats(1e-4, 1.0), st.sampled_from([1, 2]))
def test_any_factor_gives_a_smaller_model_of_the_same_kind(name, factor, ranks):
    big = find_model(name)
    small = scale(big, factor=factor).shape
    a, b = big.attention, small.attention
    assert (small.family, b.name, small.kv_dtype) == (big.family, a.name, big.kv_dtype)
    assert small.parameters <= big.parameters and small.layers <= big.layers
    assert len(small.blocks) == len(big.blocks) and b.local_heads(ranks) * ranks == b.heads
    assert b.row_dim <= a.row_dim and b.row_dim % 16 == 0
    assert scale(big, factor=factor).geometry(64, ranks, "fp8_e4m3").page_bytes > 0
    if isinstance(a, Mha):
        assert 2 <= b.group_heads <= a.group_heads and 1 <= b.heads // b.group_heads <= a.heads // a.group_heads


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SUPPORTED), st.integers(2_000_000, 10**9))
def test_a_number_of_parameters_is_kept(name, parameters):
    assert parameters / 2 < scale(find_model(name), parameters=parameters).shape.parameters <= parameters


def test_the_whole_model_is_a_factor_of_one():
    big = find_model("Llama-3.1-8B")
    assert scale(big, factor=1.0).shape == scale(big, parameters=10**12).shape == big


def test_what_makes_no_sense_says_so():
    big = find_model("Llama-3.1-8B")
    with pytest.raises(ModelError, match="give one of them"):
        scale(big)
    with pytest.raises(ModelError, match="above 0, at most 1"):
        scale(big, factor=2.0)
