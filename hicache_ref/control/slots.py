"""Page slots of one memory level, handed out by index.

Rules of this file
- A slot is free or in exactly one extent, and an extent has one owner. Freeing what one does not own raises at once,
  where the bug is.
- An extent is cut and joined, never copied: what is taken out of it is in it no more. So its owner is one number,
  however many slots it has.
- All or nothing: `alloc` gives every page asked for, or None and no change.
- Deterministic: the same calls give the same indices, in every rank and in every world.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

import numpy as np

from .errors import SlotError
from .types import Indices, Slots


class Owner(IntEnum):
    """Who holds a slot."""

    FREE = 0
    TREE = 1
    """A node of the radix tree."""
    REQUEST = 2
    """L1: pages a request computes and has not yet given to the tree."""
    TRANSIT = 3
    """L2: pages a fetch fills, and pages given back by workers that return to the pool at the next tick."""


class Extent:
    """Slots that are owned together, in the order of the pages they hold.

    `indices`: [pages], never changed in place: an operation copies what it was told to copy, whatever is cut off
    meanwhile.
    """

    __slots__ = ("indices", "owner", "pages")

    def __init__(self, indices: Indices, pages: int, owner: Owner) -> None:
        self.indices = indices
        self.pages = pages
        self.owner = owner

    def cut(self, pages: int) -> Extent:
        """Take the first `pages` slots out; the rest stays. Raises SlotError if there are fewer."""
        if not 0 <= pages <= self.pages:
            raise SlotError(f"{pages} slots wanted of {self.pages}")
        indices = self.indices
        self.indices = indices[pages:]
        self.pages -= pages
        return Extent(indices[:pages], pages, self.owner)


def concatenated(parts: list[Indices]) -> Indices:
    """Indices of slots, one after the other."""
    if len(parts) == 1:
        return parts[0]
    whole = array("q")
    for part in parts:
        whole.extend(part)
    return whole


def joined(parts: list[Extent], owner: Owner) -> Extent:
    """One extent of `owner` for all of `parts`, one after the other; they have nothing any more."""
    indices = concatenated([part.indices for part in parts])
    for part in parts:
        part.indices, part.pages = array("q"), 0
    return Extent(indices, len(indices), owner)


class SlotPool:
    """`pages` slots of one level.

    The free slots are a stack in an array: an allocation is a slice, however scattered the indices in it.
    """

    __slots__ = ("_owned", "_stack", "free", "name", "pages")

    def __init__(self, name: str, pages: int) -> None:
        self.name = name
        self.pages = pages
        self.free = pages
        self._stack = array("q", np.arange(pages - 1, -1, -1, dtype=np.int64).tobytes())
        self._owned = [pages, 0, 0, 0]
        """Slots by owner. What the laws compare with who has them."""

    def alloc(self, pages: int, owner: Owner) -> Extent | None:
        """`pages` slots for `owner`, or None if fewer are free."""
        end = self.free
        rest = end - pages
        if rest < 0:
            return None
        if pages < 0:
            raise SlotError(f"{self.name}: {pages} slots asked for")
        self.free = rest
        self._move(Owner.FREE, owner, pages)
        return Extent(self._stack[rest:end], pages, owner)

    def give_back(self, extent: Extent, owner: Owner) -> None:
        """Free slots that `owner` holds. Raises SlotError if they are another's, or free."""
        self.hand_over(extent, owner, Owner.FREE)
        end = self.free + extent.pages
        self._stack[self.free : end] = extent.indices
        self.free = end

    def hand_over(self, extent: Extent, owner: Owner, to: Owner) -> None:
        """Change the owner of slots. Raises SlotError unless `owner` holds them."""
        if extent.owner is not owner:
            raise SlotError(f"{self.name}: slots of {extent.owner.name} treated as {owner.name}'s")
        extent.owner = to
        self._move(owner, to, extent.pages)

    def _move(self, owner: int, to: int, pages: int) -> None:
        """Owners as numbers: the compiled build finds them at once."""
        self._owned[owner] -= pages
        self._owned[to] += pages

    def owned(self) -> dict[Owner, int]:
        """Slots per owner. For the laws."""
        return {owner: self._owned[owner] for owner in Owner}

    def free_slots(self) -> Slots:
        """[free] the slots that are free. For the laws."""
        return np.array(self._stack[: self.free])
