"""Keys: one atom a page, and names that chain."""

import hashlib
import struct
from array import array
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.control.keys import ATOM_BYTES, AtomKeys, TokenPages, common_pages, page_hash

TOKENS = [7, 0, 2**31 + 5, 4, 5, 6, 7, 8, 9]


def sha(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def words(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def test_names_are_the_sha256_chain():
    """By hand, from the article's rule: digest of the page before, if any, then the tokens as little-endian u32."""
    keys = TokenPages(2)
    first = sha(words(7, 0))
    second = sha(bytes.fromhex(first), words(2**31 + 5, 4))
    assert keys.chain(keys.key([7, 0, 2**31 + 5, 4]), None) == [first, second]


@pytest.mark.parametrize("page_tokens", [1, 2, 4])
def test_chain_goes_on_where_it_was_left(page_tokens):
    keys = TokenPages(page_tokens)
    key = keys.key(TOKENS)
    whole = keys.chain(key, None)
    assert keys.chain(key[ATOM_BYTES:], whole[0]) == whole[1:]
    assert whole[0] == page_hash(TOKENS[:page_tokens], None).hex()
    assert whole[1] == page_hash(TOKENS[page_tokens : 2 * page_tokens], bytes.fromhex(whole[0])).hex()


@pytest.mark.parametrize("page_tokens", [1, 2])
def test_names_of_pairs_write_both_tokens(page_tokens):
    """EAGLE: N tokens are N - 1 pairs, and a page of them writes two tokens each."""
    keys = TokenPages(page_tokens, pairs=True)
    pairs = list(pairwise(TOKENS))
    key = keys.key(TOKENS)
    assert len(key) == len(pairs) // page_tokens * ATOM_BYTES
    prior, names = b"", []
    for at in range(0, len(pairs) // page_tokens * page_tokens, page_tokens):
        page = [token for pair in pairs[at : at + page_tokens] for token in pair]
        prior = hashlib.sha256(prior + words(*page)).digest()
        names.append(prior.hex())
    assert keys.chain(key, None) == names


def test_pairs_differ_where_the_next_token_does():
    keys = TokenPages(1, pairs=True)
    a, b = keys.key([1, 2, 3]), keys.key([1, 2, 4])
    assert common_pages(a, 0, b, 0) == 1
    assert keys.key([1]) == keys.key([]) == b""


@pytest.mark.parametrize("page_tokens", [1, 3, 4])
def test_keys_are_whole_pages(page_tokens):
    key = TokenPages(page_tokens).key(range(10))
    assert len(key) == 10 // page_tokens * ATOM_BYTES


@pytest.mark.parametrize(("page_tokens", "pairs"), [(1, False), (4, False), (1, True), (4, True)])
def test_first_token_of_a_page(page_tokens, pairs):
    keys = TokenPages(page_tokens, pairs)
    atoms = memoryview(keys.key(TOKENS)).cast("q")
    assert [keys.first_token(atom) for atom in atoms] == TOKENS[::page_tokens][: len(atoms)]


@given(a=st.lists(st.integers(0, 3)), b=st.lists(st.integers(0, 3)), page_tokens=st.integers(1, 3))
def test_equal_pages_are_equal_atoms(a, b, page_tokens):
    keys = TokenPages(page_tokens)
    pages = [
        [tuple(tokens[at : at + page_tokens]) for at in range(0, len(tokens) - page_tokens + 1, page_tokens)]
        for tokens in (a, b)
    ]
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*pages, strict=False)))
    assert common_pages(keys.key(a), 0, keys.key(b), 0) == common


atoms = st.lists(st.sampled_from([0, 1, 2**56, -1]), max_size=10).map(lambda values: array("q", values).tobytes())


@given(a=atoms, b=atoms, a_at=st.integers(0, 5), b_at=st.integers(0, 5))
def test_common_pages_counts_whole_atoms(a, b, a_at, b_at):
    """Against the obvious loop, at any offset, where atoms differ in their first byte only, or in their last."""
    count = 0
    while True:
        size = (count + 1) * ATOM_BYTES
        one, other = a[a_at * ATOM_BYTES :][:size], b[b_at * ATOM_BYTES :][:size]
        if len(one) < size or one != other:
            break
        count += 1
    assert common_pages(a, a_at * ATOM_BYTES, b, b_at * ATOM_BYTES) == count


def test_prefix_unique_atoms_are_their_own_names():
    key = struct.pack("=3q", 5, -1, 2**62)
    assert list(AtomKeys().chain(key, None)) == list(AtomKeys().chain(key, "whatever")) == [5, -1, 2**62]
