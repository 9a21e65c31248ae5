"""What every slot and every page of the store holds: an identity in place of the bytes.

Rules of this file
- The identity of a page names the page and all before it, whatever the namespace, as the bytes of a real KV page do.
- Slots start as garbage and become garbage again wherever a plane may leave some (rule 2 of the protocol).
- Law L10 for the cache: what the tree would serve from L1 or copy from L2 holds what its key says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..control.cache import HiCache
from ..control.invariants import LawBroken
from ..control.tree import Node
from ..control.types import Indices, Slots

GARBAGE = -1
START = 0
"""What is before the first page of a prompt."""


class Identities:
    """One number a page, equal exactly where the page and all before it are equal."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def of(self, key: bytes, before: int = START) -> list[int]:
        """Identities of the pages of `key`, which come after the page `before`."""
        known, found = self._known, []
        for atom in memoryview(key).cast("q"):
            before = known.setdefault((before, atom), len(known) + 1)
            found.append(before)
        return found


class ShadowMemory:
    """L1 and L2 as identities, slot by slot."""

    def __init__(self, l1_pages: int, l2_pages: int, identities: Identities) -> None:
        self.l1 = np.full(l1_pages, GARBAGE)
        self.l2 = np.full(l2_pages, GARBAGE)
        self._identities = identities

    def check(self, cache: HiCache, page_called: Mapping[Any, int] | None = None) -> None:
        """L10: every page of the tree that is settled on a level is there as its key says, and bears its own name.

        `page_called`: the page behind each name, where names are to be checked. Raises LawBroken.
        """
        for node, pages in self._pages_of_nodes(cache):
            if page_called is not None and node.names is not None:
                named = [page_called.get(name) for name in node.names]
                _require(named == pages, f"L10: node {node.id} bears the names of pages {named}, not {pages}")
            if node.device is not None and node.load is None:
                self._holds(self.l1, node.device.indices, pages, f"L1 slots of node {node.id}")
            if node.host is not None and node.write is None:
                self._holds(self.l2, node.host.indices, pages, f"L2 slots of node {node.id}")

    def check_device(self, slots: Indices, pages: list[int], whose: str) -> None:
        """L10 for device slots that are about to be computed from."""
        self._holds(self.l1, slots, pages, whose)

    def _pages_of_nodes(self, cache: HiCache) -> Iterator[tuple[Node, list[int]]]:
        """Every node with the identities of its pages."""
        last = {cache.tree.root.id: START}
        for node in cache.tree.nodes():
            assert node.parent is not None
            pages = self._identities.of(node.key, last[node.parent.id])
            last[node.id] = pages[-1]
            yield node, pages

    def _holds(self, level: Slots, slots: Indices, pages: list[int], whose: str) -> None:
        held = level[np.asarray(slots)].tolist()
        _require(held == pages, f"L10: {whose} hold pages {held}, not {pages} (-1: garbage)")


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise LawBroken(words)
