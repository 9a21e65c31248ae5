"""The pages that requests touch, in order, as arrays; or a spatially hashed sample of them.

Rules of this file
- A page is known by its atom, which is prefix-unique (`workloads.request`), and its namespace. Whole pages of prompts
  count, as in an untimed replay; prompts of less than a page are left out.
- A sample holds every reference to the pages whose hash falls below the rate, and no other (SHARDS: Waldspurger et
  al., FAST '15). What is left of a prompt is still a chain, and of the prompts still a tree: a sampled page's nearest
  sampled ancestor takes the place of its parent. So a sample can be replayed, in a cache scaled by the rate.
- Hashes are our own arithmetic on atoms: the same seed gives the same sample everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workloads.request import Request

Ints = NDArray[np.int64]

_GATHERED = 1 << 20
"""Pages hashed at once."""


@dataclass(frozen=True)
class References:
    """What was asked for.

    atoms: [references] int64, root first within a prompt. starts: [requests + 1] int64, where each prompt begins.
    space: [requests] int64, number of the request's namespace in `spaces`. arrival_s: [requests] float64.
    total: references of the whole workload, of which these are all, or a sample of `rate`.
    longest: pages of the longest whole prompt.
    """

    atoms: Ints
    starts: Ints
    space: Ints
    spaces: tuple[str | None, ...]
    arrival_s: NDArray[np.float64]
    page_tokens: int
    total: int
    longest: int
    rate: float = 1.0
    seed: int = 0

    def __len__(self) -> int:
        return len(self.atoms)

    @cached_property
    def request(self) -> Ints:
        """[references] int64: which request each belongs to."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @cached_property
    def page(self) -> Ints:
        """[references] int64: a number for each page; its atom, unless namespaces share atoms."""
        if len(self.spaces) < 2:
            return self.atoms
        known = np.unique(self.atoms, return_inverse=True)[1].astype(np.int64)
        return known * len(self.spaces) + self.space[self.request]

    @cached_property
    def previous(self) -> Ints:
        """[references] int64: the reference before each one to the same page, -1 if there is none."""
        return previous_use(self.page)

    @cached_property
    def reuse(self) -> tuple[Ints, Ints]:
        """[re-references] int64 each: number of the request that used a page before, and of the one that does again."""
        again = np.flatnonzero(self.previous >= 0)
        return self.request[self.previous[again]], self.request[again]

    @cached_property
    def distinct(self) -> int:
        """Pages that are touched at all: an infinite cache misses each once."""
        return int((self.previous < 0).sum())

    @cached_property
    def back_to_front(self) -> Ints:
        """[references] int64: where each reference stands if every prompt is read from its last page to its first."""
        first, past = self.starts[:-1][self.request], self.starts[1:][self.request]
        return first + past - 1 - np.arange(len(self.atoms))

    def part(self, index: int, parts: int) -> References:
        """A sample of this: one of `parts` disjoint ones, at a rate so much smaller. `total` stays."""
        hashes = _hashes(self.atoms, self.space[self.request], self.seed + 1)
        return self._where(hashes % np.uint64(parts) == np.uint64(index), self.rate / parts)

    def sample(self, rate: float, seed: int = 0) -> References:
        """The references of a sample, as `gather` would have taken them."""
        hashes = _hashes(self.atoms, self.space[self.request], seed)
        return self._where(_below(hashes, rate), rate, seed)

    def _where(self, kept: NDArray[np.bool_], rate: float, seed: int | None = None) -> References:
        counts = np.concatenate([[0], np.cumsum(kept)])
        return References(
            self.atoms[kept],
            counts[self.starts],
            self.space,
            self.spaces,
            self.arrival_s,
            self.page_tokens,
            self.total,
            self.longest,
            rate,
            self.seed if seed is None else seed,
        )


def gather(
    requests: Iterable[Request],
    page_tokens: int,
    rate: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> References:
    """Read a workload's references; `rate` below 1 samples them as they are read, so that memory is the sample's.

    ValueError: a rate outside (0, 1], a page of no tokens.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"sampling rate {rate}: give a share of the pages, above 0 and at most 1")
    if page_tokens < 1:
        raise ValueError(f"page size {page_tokens}: give at least one token")
    taken = _Taken(rate, seed)
    for number, request in enumerate(requests):
        pages = min(request.input_tokens, request.content_tokens) // page_tokens
        if pages:
            taken.add(request, request.content.atoms(page_tokens, pages), pages)
        if progress is not None:
            progress(number + 1, request.arrival_s)
    return taken.all(page_tokens)


class _Taken:
    """References as they come in; hashed, and thinned out, a million at a time."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rate, self.seed = rate, seed
        self.spaces: dict[str | None, int] = {}
        self._keys: list[bytes] = []
        self._pages: list[int] = []
        self._space: list[int] = []
        self._arrival_s: list[float] = []
        self._kept: list[tuple[Ints, Ints]] = []
        self._pending = self._from = self._total = 0

    def add(self, request: Request, key: bytes, pages: int) -> None:
        self._keys.append(key)
        self._pages.append(pages)
        self._space.append(self.spaces.setdefault(request.extra_key, len(self.spaces)))
        self._arrival_s.append(request.arrival_s)
        self._pending += pages
        if self._pending >= _GATHERED:
            self._thin_out()

    def _thin_out(self) -> None:
        atoms = np.frombuffer(b"".join(self._keys), np.int64)
        pages = np.array(self._pages[self._from :], np.int64)
        self._from, self._total = len(self._pages), self._total + self._pending
        self._keys.clear()
        self._pending = 0
        if self.rate < 1:
            space = np.array(self._space[-len(pages) :], np.int64)
            kept = _below(_hashes(atoms, np.repeat(space, pages), self.seed), self.rate)
            counts = np.concatenate([[0], np.cumsum(kept)])
            ends = np.cumsum(pages)
            atoms, pages = atoms[kept], counts[ends] - counts[ends - pages]
        self._kept.append((atoms, pages))

    def all(self, page_tokens: int) -> References:
        if self._keys:
            self._thin_out()
        atoms = np.concatenate([np.empty(0, np.int64), *(atoms for atoms, _ in self._kept)])
        pages = np.concatenate([np.empty(0, np.int64), *(pages for _, pages in self._kept)])
        return References(
            atoms,
            np.concatenate([[0], np.cumsum(pages)]).astype(np.int64),
            np.array(self._space, np.int64),
            tuple(self.spaces),
            np.array(self._arrival_s),
            page_tokens,
            self._total,
            max(self._pages, default=0),
            self.rate,
            self.seed,
        )


def previous_use(page: Ints) -> Ints:
    """[references] int64: the reference before each one to the same page, -1 if there is none."""
    order = np.argsort(page, kind="stable")
    again = page[order[1:]] == page[order[:-1]]
    previous = np.full(len(page), -1, np.int64)
    previous[order[1:][again]] = order[:-1][again]
    return previous


def _below(hashes: NDArray[np.uint64], rate: float) -> NDArray[np.bool_]:
    below: NDArray[np.bool_] = hashes >> np.uint64(11) < np.uint64(rate * 2**53)
    return below


def _hashes(atoms: Ints, space: Ints, seed: int) -> NDArray[np.uint64]:
    """A well mixed number a page (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        mixed = atoms.astype(np.uint64) + (space.astype(np.uint64) * np.uint64(0x632BE59BD9B4E019))
        mixed += np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
        return hashed
