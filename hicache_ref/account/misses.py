"""Why tokens missed: for every prompt token that had to be computed, the one reason.

Rules of this file
- Reasons are looked up when a request is first admitted, among what the cache has noted about pages that left the
  tree, and what became of the request's prefetch. What is in the tree is no miss, so that needs no note.
- A page never seen ends the search: nothing behind it can have been seen, because atoms name prefixes.
- The reasons of a request add up to the tokens it computed (law L12).
"""

from __future__ import annotations

import sys
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

_LOST_FROM = (Miss.EVICTED_L1, Miss.EVICTED_L1, Miss.EVICTED_L2)
"""By code: the reason where there is no L3."""
_CODES = {
    Drop.L1_UNBACKED: b"\1",
    Drop.L1_ORPHANED: b"\1",
    Drop.L2_EVICTED: b"\2",
    Drop.L2_FULL: b"\2",
    Drop.WRITE_FAILED: b"\1",
}
_NOTHING_MISSED = [0] * len(Miss)
_STORED = 128
"""Added to the code of a page that has been in L3."""


class Fates(Protocol):
    """A byte for each page: what became of it, 0 for pages never seen. Pages are atoms, 8 bytes each."""

    def get(self, atoms: bytes) -> bytes:
        """[pages] codes, or those up to the first 0."""
        ...

    def note(self, atoms: bytes, codes: bytes, stored: bytes) -> None:
        """`codes`: what became of each page of `atoms`; of a page named twice the last one counts. `stored`: pages that
        have been stored, which no code changes."""
        ...


class DenseFates:
    """For atoms numbered without large gaps: two bytes for each, in arrays that grow with them.

    Bounded: those `most` older than the newest are forgotten, as if they had never been seen.
    """

    def __init__(self, most: int = 1 << 26) -> None:
        self._most = most
        self._base = -1
        """The atom of the first place, which stands for all before it; the last place does for all behind it."""
        self._lost = np.zeros(1 << 16, np.uint8)
        """What left the tree, by code."""
        self._stored = np.zeros(1 << 16, np.uint8)

    def get(self, atoms: bytes) -> bytes:
        if not self._known(int.from_bytes(atoms[:ATOM_BYTES], sys.byteorder, signed=True)):
            return bytes(1)  # and nothing behind it: see the rules of this file
        places = self._places(atoms)
        return (self._lost.take(places, mode="clip") | self._stored.take(places, mode="clip")).tobytes()

    def note(self, atoms: bytes, codes: bytes, stored: bytes) -> None:
        noted = atoms + stored
        self._put(self._places(noted), codes, stored)
        if self._lost[-1] or self._stored[-1]:
            self._reach(max(_ids(noted)))
            self._put(self._places(noted), codes, stored)

    def _put(self, places: NDArray[np.int64], codes: bytes, stored: bytes) -> None:
        if codes:
            self._lost.put(places[: len(codes)], np.frombuffer(codes, np.uint8), mode="clip")
        if stored:
            self._stored.put(places[len(codes) :], _STORED, mode="clip")
        self._lost[0] = self._stored[0] = 0

    def _known(self, atom: int) -> bool:
        """Whether there is a code for it."""
        place = atom - self._base
        return 0 < place < len(self._lost) and bool(self._lost[place] or self._stored[place])

    def _places(self, atoms: bytes) -> NDArray[np.int64]:
        """Of each page; those of atoms that are not in the arrays lie outside."""
        return np.frombuffer(atoms, np.int64) - self._base

    def _reach(self, last: int) -> None:
        """Make the arrays reach beyond the atom `last`."""
        self._lost[-1] = self._stored[-1] = 0
        needed, size = last - self._base + 2, len(self._lost)
        forgotten = max(needed - self._most, 0)
        if forgotten:  # half of it at once, so that this is rare
            forgotten = max(forgotten, self._most // 2)
        size = min(max(needed - forgotten, 2 * size), self._most)
        self._lost, self._stored = (_moved(table, forgotten, size) for table in (self._lost, self._stored))
        self._base += forgotten


def _moved(table: NDArray[np.uint8], forgotten: int, size: int) -> NDArray[np.uint8]:
    """`table` without its first places, grown to `size`."""
    grown = np.zeros(size, np.uint8)
    kept = table[forgotten : forgotten + size]
    grown[: len(kept)] = kept
    grown[0] = 0
    return grown


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
    """Notes what becomes of pages, and explains admissions. `held`: atoms of the pages in L3; None: there is no L3, or
    nothing ever gets there."""

    def __init__(self, page_tokens: int, key_lag_tokens: int = 0, held: Container[int] | None = None) -> None:
        self.facts: list[tuple[Drop | None, bytes]] = []
        """The cache appends here; drained at every admission."""
        self._written: list[Any] = []
        """Names of pages that have been written to L3; drained likewise."""
        self._page = page_tokens
        self._lag = key_lag_tokens
        self._fates: Fates | None = None
        self.held = held

    def stored(self, names: Sequence[Any]) -> None:
        """Pages have been written to L3."""
        self._written.append(names)

    def explain(self, request: Active) -> list[int]:
        """Tokens of `request`, just admitted for the first time, that had to be computed: [reasons], by `Miss`."""
        self._drain()
        page = self._page
        pages = (request.input_tokens - 1 - self._lag) // page
        matched = (request.device_hit_tokens + request.host_hit_tokens) // page
        reasons = _NOTHING_MISSED.copy()
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
                self._explain_lost(request, first, atoms[: seen * ATOM_BYTES], codes[:seen], reasons)
        return reasons

    def _explain_lost(self, request: Active, first: int, atoms: bytes, codes: bytes, reasons: list[int]) -> None:
        """Add to `reasons` those of pages seen before; they are number `first` … of the request's prefetch."""
        pages, page = len(codes), self._page
        there = bytes(pages) if self.held is None else bytes(map(self.held.__contains__, _ids(atoms)))
        promised = request.prefetch.promised_pages if request.prefetch is not None else 0
        start = 0
        for at in range(1, pages + 1):  # runs of pages of which the same can be said
            if (
                at == pages
                or codes[at] != codes[start]
                or there[at] != there[start]
                or first + at == 0
                or first + at == promised
            ):
                why = self._reason(request, first + start, codes[start], there[start] > 0)
                reasons[why] += (at - start) * page
                start = at

    def _reason(self, request: Active, at: int, code: int, held: bool) -> Miss:
        """Why the page that is number `at` of the request's prefetch was not there. `held`: it is in L3 now."""
        lost = _LOST_FROM[code & ~_STORED]
        if self.held is None or at < 0:  # it was there when the request came, and was lost while it waited
            return lost
        if not held:
            if code & _STORED:
                return Miss.NOT_IN_STORE
            return lost if lost is Miss.EVICTED_L1 else Miss.WRITE_UNFINISHED
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
            gone = [(_CODES[drop], key) for drop, key in facts if drop is not None]
            atoms = b"".join([key for _, key in gone])
            codes = b"".join([code * (len(key) // ATOM_BYTES) for code, key in gone])
            stored = b"".join([array("q", names) for names in written])
            facts.clear()
            written.clear()
            if atoms or stored:
                self._table(atoms or stored).note(atoms, codes, stored)

    def _table(self, atoms: bytes) -> Fates:
        if self._fates is None:
            largest = max(_ids(atoms), default=0)
            self._fates = DenseFates() if largest < DENSE_BELOW else SparseFates()
        return self._fates
