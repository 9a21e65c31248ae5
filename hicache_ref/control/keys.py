"""Keys: one 64-bit atom a page, and the names pages have in the store.

Rules of this file
- A key is bytes: 8 a page, native order. Matching is a memory comparison, a child is found by its first atom.
- What an atom means is the keyspace's business. `TokenPages` interns real tokens; workloads hand out prefix-unique
  ids, for which `AtomKeys` is enough.
- The name of a page in L3 is a chain: it names the page and all before it (article 4.1).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from .types import PageKeys

ATOM_BYTES: Final = 8


class Keyspace(Protocol):
    """How the pages of a key are named in L3."""

    def chain(self, atoms: bytes, prior: object | None) -> PageKeys:
        """One name a page of `atoms`, given the name of the page before them (None at the start of a prompt)."""
        ...


def common_pages(a: bytes, a_at: int, b: bytes, b_at: int) -> int:
    """Leading pages equal in a[a_at:] and b[b_at:], offsets in bytes. Bisection over memory comparisons."""
    low, high = 0, min(len(a) - a_at, len(b) - b_at) // ATOM_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        size = middle * ATOM_BYTES
        if b.startswith(a[a_at : a_at + size], b_at):
            low = middle
        else:
            high = middle - 1
    return low


class AtomKeys:
    """Atoms that are prefix-unique by construction name their page as they are: what simulation needs."""

    def chain(self, atoms: bytes, prior: object | None) -> PageKeys:
        names = array("q")
        names.frombytes(atoms)
        return names


def page_hash(tokens: Sequence[int], prior: bytes | None) -> bytes:
    """SHA-256 of the prior page's digest, if any, and the tokens as little-endian u32.

    Source: article 4.1; `hicache_storage.py` of 0.5.7. In EAGLE mode both tokens of each
    pair are passed in turn.
    """
    words = array("I", tokens)
    hasher = hashlib.sha256(prior or b"")
    hasher.update(words.tobytes())
    return hasher.digest()


class TokenPages:
    """Keys over real tokens, at any page size, with EAGLE's pairs as an option.

    Page size 1: the atom is the token, or the pair packed into 64 bits. Larger pages are interned: equal pages, equal
    atoms. Interning keeps every distinct page it has met; it serves engines and tests, not endless traces.
    """

    def __init__(self, page_tokens: int, pairs: bool = False) -> None:
        self.page_tokens = page_tokens
        self.pairs = pairs
        self._atom_of: dict[bytes, int] = {}
        self._words_of: list[bytes] = []
        self._page_bytes = page_tokens * (8 if pairs else 4)

    def key(self, tokens: Sequence[int]) -> bytes:
        """Atoms of the whole pages of a prompt. N tokens are N - 1 pairs in EAGLE mode; the tail is cut."""
        words = self._words(tokens)
        whole = len(words) // self._page_bytes * self._page_bytes
        if self.page_tokens == 1:
            return words[:whole] if self.pairs else np.frombuffer(words, np.uint32).astype(np.int64).tobytes()
        size, known, intern = self._page_bytes, self._atom_of, self._intern
        pages = (words[at : at + size] for at in range(0, whole, size))
        return array("q", [known[page] if page in known else intern(page) for page in pages]).tobytes()

    def chain(self, atoms: bytes, prior: object | None) -> list[str]:
        """Hex digests of the SHA-256 chain, one a page; `prior` is the hex digest before them."""
        digest = bytes.fromhex(str(prior)) if prior is not None else b""
        names = []
        for atom in memoryview(atoms).cast("q"):
            digest = hashlib.sha256(digest + self._page_words(atom)).digest()
            names.append(digest.hex())
        return names

    def first_token(self, atom: int) -> int:
        """The first token of a page."""
        return int.from_bytes(self._page_words(atom)[:4], "little")

    def _words(self, tokens: Sequence[int]) -> bytes:
        words = array("I", tokens)
        if not self.pairs:
            return words.tobytes()
        doubled = array("I", bytes(8 * max(len(words) - 1, 0)))
        doubled[0::2], doubled[1::2] = words[:-1], words[1:]
        return doubled.tobytes()

    def _intern(self, page: bytes) -> int:
        atom = self._atom_of[page] = len(self._words_of)
        self._words_of.append(page)
        return atom

    def _page_words(self, atom: int) -> bytes:
        if self.page_tokens > 1:
            return self._words_of[atom]
        return atom.to_bytes(8, "little", signed=True)[: self._page_bytes]
