"""Chaining: equal prefixes and nothing else give equal ids; content of real tokens is exact at any page size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import TokenRow, TraceError, from_tokens, token_content, trace_stats
from workloads.prefix import block_ids, id_limit, prefix_ids

hashes = st.lists(st.integers(0, 3), max_size=12)


def chain(values, block_tokens=16):
    return prefix_ids(np.array(values, dtype=np.int64), block_tokens).tolist()


@given(hashes, hashes)
def test_ids_are_equal_exactly_while_prefixes_are(one, two):
    ids_one, ids_two = chain(one), chain(two)
    for position in range(min(len(one), len(two))):
        assert (ids_one[position] == ids_two[position]) == (one[: position + 1] == two[: position + 1])


@given(st.integers(1, 4096), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_ids_leave_room_for_the_blocks_tokens(block_tokens, values):
    ids = chain(values, block_tokens)
    assert all(value >= 0 and value * block_tokens + block_tokens - 1 < 1 << 63 for value in ids)


def test_a_million_prefixes_do_not_collide():
    ids = chain(range(1_000_000))
    assert len(set(ids)) == 1_000_000


@given(st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=5), max_size=10), st.integers(1, 4096))
def test_folded_ids_are_a_function_of_the_id(values, block_tokens):
    limit = id_limit(block_tokens)
    ids = block_ids(values, limit).tolist()
    assert ids == [int(block_ids([value], limit)[0]) for value in values]
    assert len(set(ids)) == len(set(map(repr, values)))
    assert all(0 <= value < 2 * limit for value in ids)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_pages_of_real_tokens_are_shared_as_their_tokens_are(one, two, page_tokens):
    pages = min(len(one), len(two)) // page_tokens
    atoms_one, atoms_two = (token_content(tokens).atoms(page_tokens, pages) for tokens in (one, two))
    for page in range(pages):
        same = atoms_one[8 * page : 8 * page + 8] == atoms_two[8 * page : 8 * page + 8]
        assert same == (one[: (page + 1) * page_tokens] == two[: (page + 1) * page_tokens])


def test_logged_tokens_become_requests():
    rows = [
        TokenRow(0.0, [1, 2, 3, 4], [5, 6]),
        TokenRow(1.5, [1, 2, 3, 4, 5, 6, 7], output_tokens=9),
        TokenRow(2.0, [1, 2, 3, 4], extra_key="lora"),
    ]
    first, second, third = from_tokens(rows)
    assert (first.id, first.input_tokens, first.output_tokens, first.content_tokens) == (0, 4, 2, 6)
    assert (second.arrival_s, second.input_tokens, second.output_tokens, second.content_tokens) == (1.5, 7, 9, 7)
    assert second.content.atoms(2, 3) == first.content.atoms(2, 3)
    assert (third.output_tokens, third.extra_key) == (1, "lora")
    assert trace_stats(from_tokens(rows), 2).hit_tokens == 4


def test_bad_token_rows_are_named():
    with pytest.raises(TraceError, match="token row 1: an empty prompt"):
        list(from_tokens([TokenRow(0.0, [1]), TokenRow(1.0, [])]))
    with pytest.raises(TraceError, match=r"token row 1: 1.0 s comes after 2.0 s"):
        list(from_tokens([TokenRow(2.0, [1]), TokenRow(1.0, [1])]))
