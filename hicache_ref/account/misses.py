"""Why tokens missed: for every prompt token that had to be computed, the one reason.

Rules of this file
- Reasons are looked up when a request is first admitted, among what the cache has noted about pages that entered and
  left the tree, and what became of the request's prefetch.
- A page never seen ends the search: nothing behind it can have been seen, because atoms name prefixes.
- The reasons of a request add up to the tokens it computed (law L12).
"""

from __future__ import annotations

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
_CODES: dict[Drop | None, int] = {
    None: _SEEN,
    Drop.L1_UNBACKED: 2,
    Drop.L1_ORPHANED: 2,
    Drop.L2_EVICTED: 3,
    Drop.L2_FULL: 3,
    Drop.WRITE_FAILED: 2,
}
_LOST_FROM = {1: Miss.EVICTED_L1, 2: Miss.EVICTED_L1, 3: Miss.EVICTED_L2}
"""The reason where there is no L3. Code 1: in the tree a moment ago, evicted by the very admission that looks."""


class Fates(Protocol):
    """A byte for each page: what became of it."""

    def get(self, atoms: NDArray[np.int64]) -> NDArray[np.uint8]: ...

    def put(self, atoms: NDArray[np.int64], code: int) -> None:
        """Set the code, keeping whether the page was ever stored."""
        ...

    def mark_stored(self, atoms: NDArray[np.int64]) -> None: ...


class DenseFates:
    """For atoms numbered without large gaps: a byte for each `grain` ids, in an array that grows with them."""

    def __init__(self, grain: int) -> None:
        self._grain = grain
        self._codes = np.zeros(1 << 16, np.uint8)

    def get(self, atoms: NDArray[np.int64]) -> NDArray[np.uint8]:
        places = self._places(atoms)  # first: it may replace the array
        return self._codes[places]

    def put(self, atoms: NDArray[np.int64], code: int) -> None:
        places = self._places(atoms)
        self._codes[places] = (self._codes[places] & _STORED) | code

    def mark_stored(self, atoms: NDArray[np.int64]) -> None:
        places = self._places(atoms)
        self._codes[places] |= _STORED

    def _places(self, atoms: NDArray[np.int64]) -> NDArray[np.int64]:
        places = atoms // self._grain
        last = int(places.max(initial=0))
        if last >= len(self._codes):
            grown = np.zeros(max(last + 1, 2 * len(self._codes)), np.uint8)
            grown[: len(self._codes)] = self._codes
            self._codes = grown
        return places


class SparseFates:
    """For atoms that are hashes."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}

    def get(self, atoms: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.array([self._codes.get(atom, 0) for atom in atoms.tolist()], np.uint8)

    def put(self, atoms: NDArray[np.int64], code: int) -> None:
        codes = self._codes
        for atom in atoms.tolist():
            codes[atom] = (codes.get(atom, 0) & _STORED) | code

    def mark_stored(self, atoms: NDArray[np.int64]) -> None:
        codes = self._codes
        for atom in atoms.tolist():
            codes[atom] = codes.get(atom, 0) | _STORED


DENSE_BELOW = 1 << 36
"""Ids from here on are taken for hashes."""


class MissReasons:
    """Notes what becomes of pages, and explains admissions. `held`: atoms of the pages in L3; None: there is no L3."""

    def __init__(
        self, page_tokens: int, grain: int, key_lag_tokens: int = 0, held: Container[int] | None = None
    ) -> None:
        self.facts: list[tuple[Drop | None, bytes]] = []
        """The cache appends here; drained at every admission."""
        self._page = page_tokens
        self._lag = key_lag_tokens
        self._grain = grain
        self._fates: Fates | None = None
        self._held = held

    def stored(self, names: Sequence[Any]) -> None:
        """Pages have been written to L3."""
        atoms = np.asarray(names, np.int64)
        self._table(atoms).mark_stored(atoms[atoms >= 0])

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
            atoms = np.frombuffer(request.key[matched * ATOM_BYTES : pages * ATOM_BYTES], np.int64)
            named = atoms[: _leading(atoms >= 0)]
            codes = self._table(named).get(named)
            seen = _leading(codes != 0)
            reasons[Miss.NEVER_SEEN] = (len(atoms) - seen) * page
            # Where among the pages it was prefetched for this request's search begins.
            first = matched - (pages - request.prefetch.pages) if request.prefetch is not None else 0
            for at, (atom, code) in enumerate(zip(named[:seen].tolist(), codes[:seen].tolist(), strict=True)):
                reasons[self._reason(request, first + at, atom, code)] += page
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
        for drop, key in self.facts:
            atoms = np.frombuffer(key, np.int64)
            if atoms[-1] < 0:
                atoms = atoms[atoms >= 0]
            if len(atoms):
                self._table(atoms).put(atoms, _CODES[drop])
        self.facts.clear()

    def _table(self, atoms: NDArray[np.int64]) -> Fates:
        if self._fates is None:
            self._fates = DenseFates(self._grain) if int(atoms.max(initial=0)) < DENSE_BELOW else SparseFates()
        return self._fates


def _leading(holds: NDArray[np.bool_]) -> int:
    """How many leading entries are true."""
    if not len(holds):
        return 0
    first = int(holds.argmin())
    return len(holds) if holds[first] else first
