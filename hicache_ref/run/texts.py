"""Real tokens for requests that a trace knows by content only, and the names their pages have in L3.

Rules of this file
- A token is a function of its prefix-unique id, so requests that share a prefix in the trace share it in tokens, and
  their KV is the same.
- Keys are the atoms the simulator uses, so both worlds decide on the same tree. Names are those SGLang would give:
  the SHA-256 chain over the tokens (article 4.1).
- Names are kept for every page met. That serves runs on a real machine, whose length it bounds, not endless traces.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from workloads.request import Request

from ..control.active import Active
from ..control.keys import page_hash

Tokens = NDArray[np.int64]


class Texts:
    """The tokens of every request in the engine, and a `Keyspace` for the pages of all that were ever there.

    vocab: token ids are below it. pairs: EAGLE's keys, where a page covers pairs of neighbours.
    """

    def __init__(self, page_tokens: int, vocab: int, pairs: bool = False) -> None:
        self._page_tokens = page_tokens
        self._vocab = vocab
        self._pairs = pairs
        self._tokens: dict[int, Tokens] = {}
        self._name_of: dict[int, str] = {}
        self._atom_of: dict[str, int] = {}

    def of(self, request_id: int) -> Tokens:
        """[input + output] token ids of a request in the engine; its answer is what the trace says."""
        return self._tokens[request_id]

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        self._tokens.pop(request_id, None)

    def activator(self, activate: Callable[[Request], Active]) -> Callable[[Request], Active]:
        """`activate`, and remember the text."""

        def with_text(request: Request) -> Active:
            active = activate(request)
            tokens = self._tokens[request.id] = _tokens(request, self._vocab)
            self._learn(active.key, tokens)
            return active

        return with_text

    # Satisfies control.keys.Keyspace

    def chain(self, atoms: bytes, prior: object | None) -> list[str]:
        return [self._name_of[atom] for atom in memoryview(atoms).cast("q")]

    def atoms(self, names: Sequence[str]) -> list[int]:
        """The atoms of pages by their names, of those that were met."""
        return [self._atom_of[name] for name in names if name in self._atom_of]

    def name(self, atom: int) -> str | None:
        return self._name_of.get(atom)

    def _learn(self, key: bytes, tokens: Tokens) -> None:
        """Name the pages of a key. Atoms stand for prefixes: from the first unknown one on, all are new."""
        atoms, size = memoryview(key).cast("q"), self._page_tokens
        known = _leading_known(atoms, self._name_of)
        digest = bytes.fromhex(self._name_of[atoms[known - 1]]) if known else None
        for at in range(known, len(atoms)):
            digest = page_hash(self._page(tokens, at * size, (at + 1) * size), digest)
            self._name_of[atoms[at]] = name = digest.hex()
            self._atom_of[name] = atoms[at]

    def _page(self, tokens: Tokens, first: int, last: int) -> array[int]:
        if not self._pairs:
            return array("I", tokens[first:last].tolist())
        return array("I", np.stack([tokens[first:last], tokens[first + 1 : last + 1]], axis=1).ravel().tolist())


def _leading_known(atoms: memoryview[int], names: dict[int, str]) -> int:
    """How many leading atoms have names, by bisection: known pages come first."""
    low, high = 0, len(atoms)
    while low < high:
        middle = (low + high) // 2
        if atoms[middle] in names:
            low = middle + 1
        else:
            high = middle
    return low


def _tokens(request: Request, vocab: int) -> Tokens:
    """[input + output (+ 1 for the last pair)] tokens; what the content does not name is this request's own."""
    total = request.input_tokens + request.output_tokens + 1
    named = min(request.content_tokens, total)
    ids = np.frombuffer(request.content.atoms(1, named), np.int64)
    if named < total:
        own = -1 - (np.int64(request.id) << 24) - np.arange(named, total, dtype=np.int64)
        ids = np.concatenate([ids, own])
    tokens: Tokens = (_mixed(ids.astype(np.uint64)) % np.uint64(vocab)).astype(np.int64)
    return tokens


def _mixed(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: neighbouring ids become unlike numbers."""
    ids = (ids ^ (ids >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    ids = (ids ^ (ids >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = ids ^ (ids >> np.uint64(31))
    return mixed
