"""Content: arithmetic atoms agree with ids written out token by token, at any page size."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workloads import Blocks, Runs

page_sizes = st.integers(1, 70)
ids = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=12, unique=True)


def expected(tokens: list[int], page_tokens: int, pages: int) -> list[int]:
    return [tokens[page * page_tokens + page_tokens - 1] for page in range(pages)]


@given(ids, st.integers(1, 64), page_sizes, st.data())
def test_blocks_agree_with_their_tokens(blocks, block_tokens, page_tokens, data):
    tokens = [first * block_tokens + position for first in blocks for position in range(block_tokens)]
    pages = data.draw(st.integers(0, len(tokens) // page_tokens))
    atoms = Blocks(np.array(blocks, dtype=np.int64), block_tokens).atoms(page_tokens, pages)
    assert np.frombuffer(atoms, dtype=np.int64).tolist() == expected(tokens, page_tokens, pages)


@given(ids, st.lists(st.integers(0, 50), min_size=12, max_size=12), page_sizes, st.data())
def test_runs_agree_with_their_tokens(firsts, lengths, page_tokens, data):
    lengths = lengths[: len(firsts)]
    tokens = [first + position for first, length in zip(firsts, lengths, strict=True) for position in range(length)]
    pages = data.draw(st.integers(0, len(tokens) // page_tokens))
    content = Runs(np.array(firsts, dtype=np.int64), np.array(lengths, dtype=np.int64))
    atoms = content.atoms(page_tokens, pages)
    assert np.frombuffer(atoms, dtype=np.int64).tolist() == expected(tokens, page_tokens, pages)


@given(ids, st.integers(1, 8), st.integers(1, 8))
def test_a_page_that_divides_the_block_costs_no_more_than_its_bytes(blocks, pages_a_block, page_tokens):
    content = Blocks(np.array(blocks, dtype=np.int64), pages_a_block * page_tokens)
    assert len(content.atoms(page_tokens, 1)) == 8


@given(ids, st.integers(1, 64), page_sizes, st.data())
def test_page_ids_tell_pages_apart_as_atoms_do(blocks, block_tokens, page_tokens, data):
    content = Blocks(np.array(blocks, dtype=np.int64), block_tokens)
    pages = data.draw(st.integers(0, len(blocks) * block_tokens // page_tokens))
    atoms, ids = (np.frombuffer(named(page_tokens, pages), np.int64) for named in (content.atoms, content.page_ids))
    assert ids.tolist() == (atoms // page_tokens if block_tokens % page_tokens == 0 else atoms).tolist()
    assert len(set(ids.tolist())) == pages


def test_the_atom_of_a_page_names_all_before_it():
    """Same tail, other head: other ids, so other atoms (here: blocks 1 and 2 stand for different prefixes)."""
    one, two = (Blocks(np.array([head, head + 10], dtype=np.int64), 512) for head in (1, 2))
    assert not set(np.frombuffer(one.atoms(64, 16), np.int64)) & set(np.frombuffer(two.atoms(64, 16), np.int64))
