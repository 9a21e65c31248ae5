"""Why tokens missed: for every prompt token that had to be computed, the one reason.

Rules of this file
- Reasons are looked up when a request is first admitted, among what the cache has noted about pages that entered and
  left the tree, and what became of the request's prefetch.
- A page never seen ends the search: nothing behind it can have been seen, because atoms name prefixes.
- The reasons of a request add up to the tokens it computed (law L12).
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..control.active import Active
from ..control.counters import Drop, Refusal
from ..control.keys import ATOM_BYTES


class Miss(IntEnum):
    """Reasons, in the order in which a report lists them."""

    NEVER_SEEN = 0
    EVICTED_L1 = 1
    EVICTED_L2 = 2
    WRITE_UNFINISHED = 3
    LOAD_REFUSED = 4
    PREFETCH_REFUSED = 5
    PREFETCH_LATE = 6
    PREFETCH_FAILED = 7
    NOT_IN_STORE = 8
    PAGE_TAIL = 9

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = (
    "never seen",
    "evicted from L1 before its backup",
    "evicted from L2",
    "write to L3 unfinished",
    "load from L2 refused",
    "prefetch refused",
    "prefetch late",
    "prefetch failed",
    "not in the store",
    "page tail",
)

_SEEN, _STORED = 1, 128
_CODES: dict[Drop | None, bytes] = {
    None: bytes([_SEEN]),
    Drop.L1_UNBACKED: bytes([2]),
    Drop.L1_ORPHANED: bytes([2]),
    Drop.L2_EVICTED: bytes([3]),
    Drop.L2_FULL: bytes([3]),
    Drop.WRITE_FAILED: bytes([2]),
}
_LOST_FROM = {1: Miss.EVICTED_L1, 2: Miss.EVICTED_L1, 3: Miss.EVICTED_L2}
"""The reason where there is no L3. Code 1: in the tree a moment ago, evicted by the very admission that looks."""


class Fates(Protocol):
    """A byte for each page: what became of it, 0 for pages never seen. Pages are atoms, 8 bytes each."""

    def get(self, atoms: bytes) -> bytes:
        """[pages] codes."""
        ...

    def note(self, atoms: bytes, codes: bytes, stored: bytes) -> None:
        """`codes`: what became of each page of `atoms`; of a page named twice the last one counts. `stored`: pages that
        have been stored, which no code changes."""
        ...


class DenseFates:
    """For atoms numbered without large gaps: a byte for each `grain` ids, in an array that grows with them.

    Bounded: ids that are `most` pages older than the newest are forgotten, as if they had never been seen.
    """

    def __init__(self, grain: int, most: int = 1 << 26) -> None:
        self._grain = grain
        self._most = most
        self._base = -1
        """The id (over the grain) of the first place, which stands for all before it and always has code 0."""
        self._codes = np.zeros(1 << 16, np.uint8)
        """The last place stands for all behind it and always has code 0."""

    def get(self, atoms: bytes) -> bytes:
        return self._codes.take(self._places(atoms), mode="clip").tobytes()

    def note(self, atoms: bytes, codes: bytes, stored: bytes) -> None:
        places = self._room_for(self._places(atoms + stored))
        table, put, marked = self._codes, places[: len(codes)], places[len(codes) :]
        table[put] = (table[put] & _STORED) | np.frombuffer(codes, np.uint8)
        table[marked] |= _STORED
        table[0] = 0

    def _places(self, atoms: bytes) -> NDArray[np.int64]:
        """Of each page; those of atoms that are not in the array lie outside it."""
        return np.frombuffer(atoms, np.int64) // self._grain - self._base

    def _room_for(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make the array reach as far as `places`; where they are then, those before its beginning at 0."""
        np.maximum(places, 0, out=places)
        last, size = int(places.max(initial=0)), len(self._codes)
        if last < size - 1:
            return places
        forgotten = max(last + 2 - self._most, 0)
        if forgotten:  # half of it at once, so that this is rare
            forgotten = max(forgotten, self._most // 2)
        grown = np.zeros(min(max(last + 2 - forgotten, 2 * size), self._most), np.uint8)
        kept = self._codes[forgotten : forgotten + len(grown)]
        grown[: len(kept)] = kept
        grown[0] = 0
        self._codes = grown
        self._base += forgotten
        return np.maximum(places - forgotten, 0)


class SparseFates:
    """For atoms that are hashes: a dict, and the one before it. Bounded: what is in neither is forgotten."""

    def __init__(self, most: int = 1 << 22) -> None:
        self._half = most // 2
        self._codes: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def get(self, atoms: bytes) -> bytes:
        return bytes([self._code(atom) for atom in _ids(atoms)])

    def note(self, atoms: bytes, codes: bytes, stored: bytes) -> None:
        for atom, code in zip(_ids(atoms), codes, strict=True):
            self._set(atom, (self._code(atom) & _STORED) | code)
        for atom in _ids(stored):
            self._set(atom, self._code(atom) | _STORED)

    def _code(self, atom: int) -> int:
        code = self._codes.get(atom)
        return self._older.get(atom, 0) if code is None else code

    def _set(self, atom: int, code: int) -> None:
        if atom < 0:
            return
        if len(self._codes) >= self._half:
            self._codes, self._older = {}, self._codes
        self._codes[atom] = code


def _ids(atoms: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(atoms, np.int64).tolist()
    return ids


DENSE_BELOW = 1 << 36
"""Ids from here on are taken for hashes."""


class MissReasons:
    """Notes what becomes of pages, and explains admissions. `held`: atoms of the pages in L3; None: there is no L3."""

    def __init__(
        self, page_tokens: int, grain: int, key_lag_tokens: int = 0, held: Container[int] | None = None
    ) -> None:
        self.facts: list[tuple[Drop | None, bytes]] = []
        """The cache appends here; drained at every admission."""
        self._written: list[Any] = []
        """Names of pages that have been written to L3; drained likewise."""
        self._page = page_tokens
        self._lag = key_lag_tokens
        self._grain = grain
        self._fates: Fates | None = None
        self._held = held

    def stored(self, names: Sequence[Any]) -> None:
        """Pages have been written to L3."""
        self._written.append(names)

    def explain(self, request: Active) -> list[int]:
        """Tokens of `request`, just admitted for the first time, that had to be computed: [reasons], by `Miss`."""
        self._drain()
        page = self._page
        pages = (request.input_tokens - 1 - self._lag) // page
        matched = (request.device_hit_tokens + request.host_hit_tokens) // page
        reasons = [0] * len(Miss)
        reasons[Miss.PAGE_TAIL] = request.input_tokens - pages * page
        reasons[Miss.LOAD_REFUSED] = request.host_hit_tokens - request.loaded_tokens
        if matched < pages:
            atoms = request.key[matched * ATOM_BYTES : pages * ATOM_BYTES]
            codes = self._table(atoms).get(atoms)
            seen = codes.find(0)  # pages that nobody else can name have none
            if seen < 0:
                seen = pages - matched
            reasons[Miss.NEVER_SEEN] = (pages - matched - seen) * page
            if seen:
                # Where among the pages it was prefetched for this request's search begins.
                first = matched - (pages - request.prefetch.pages) if request.prefetch is not None else 0
                for at, atom in enumerate(_ids(atoms[: seen * ATOM_BYTES])):
                    reasons[self._reason(request, first + at, atom, codes[at])] += page
        return reasons

    def _reason(self, request: Active, at: int, atom: int, code: int) -> Miss:
        """Why the page that is number `at` of the request's prefetch was not there."""
        lost = _LOST_FROM[code & ~_STORED]
        if self._held is None or at < 0:  # it was there when the request came, and was lost while it waited
            return lost
        if atom not in self._held:
            if code & _STORED:
                return Miss.NOT_IN_STORE
            return lost if lost is Miss.EVICTED_L1 and code != _SEEN else Miss.WRITE_UNFINISHED
        prefetch = request.prefetch
        if prefetch is None:
            return Miss.PREFETCH_REFUSED
        found = at < prefetch.promised_pages
        if prefetch.refused is not None and (found or prefetch.refused is not Refusal.FEW_HITS):
            return Miss.PREFETCH_REFUSED
        return Miss.PREFETCH_FAILED if found and prefetch.over else Miss.PREFETCH_LATE

    def _drain(self) -> None:
        facts, written = self.facts, self._written
        if facts or written:
            atoms = b"".join([key for _, key in facts])
            codes = b"".join([_CODES[drop] * (len(key) // ATOM_BYTES) for drop, key in facts])
            stored = b"".join([array("q", names).tobytes() for names in written])
            facts.clear()
            written.clear()
            self._table(atoms).note(atoms, codes, stored)

    def _table(self, atoms: bytes) -> Fates:
        if self._fates is None:
            largest = max(_ids(atoms), default=0)
            self._fates = DenseFates(self._grain) if largest < DENSE_BELOW else SparseFates()
        return self._fates
