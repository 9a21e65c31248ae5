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

NOTHING: Indices = array("q")


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
        rest = self.pages - pages
        if rest < 0 or pages < 0:
            raise SlotError(f"{pages} slots wanted of {self.pages}")
        indices = self.indices
        self.pages = rest
        if not rest:
            self.indices = NOTHING
            return Extent(indices, pages, self.owner)
        self.indices = indices[pages:]
        return Extent(indices[:pages], pages, self.owner)

    def absorb(self, other: Extent) -> None:
        """Put what `other` has behind its own; `other` has nothing any more. Raises SlotError unless owners agree."""
        if other.owner is not self.owner:
            raise SlotError(f"slots of {other.owner.name} behind {self.owner.name}'s")
        self.indices = self.indices + other.indices if self.pages else other.indices
        self.pages += other.pages
        other.indices, other.pages = NOTHING, 0


def nothing(owner: Owner) -> Extent:
    """No slots yet."""
    return Extent(NOTHING, 0, owner)


class SlotPool:
    """`pages` slots of one level.

    The free slots are a stack in an array: an allocation is a slice, however scattered the indices in it.
    """

    __slots__ = ("_of_requests", "_of_transit", "_stack", "free", "name", "pages")

    def __init__(self, name: str, pages: int) -> None:
        self.name = name
        self.pages = pages
        self.free = pages
        self._stack = array("q", np.arange(pages - 1, -1, -1, dtype=np.int64).tobytes())
        # What the laws compare with who has slots. All others that are not free are the tree's.
        self._of_requests = 0
        self._of_transit = 0

    def alloc(self, pages: int, owner: Owner) -> Extent | None:
        """`pages` slots for `owner`, or None if fewer are free."""
        end = self.free
        rest = end - pages
        if rest < 0:
            return None
        if pages < 0:
            raise SlotError(f"{self.name}: {pages} slots asked for")
        self.free = rest
        self._count(owner, pages)
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
        self._count(owner, -extent.pages)
        self._count(to, extent.pages)

    def _count(self, owner: Owner, pages: int) -> None:
        if owner is Owner.REQUEST:
            self._of_requests += pages
        elif owner is Owner.TRANSIT:
            self._of_transit += pages

    def owned(self) -> dict[Owner, int]:
        """Slots per owner. For the laws."""
        others = self.free + self._of_requests + self._of_transit
        return {
            Owner.FREE: self.free,
            Owner.TREE: self.pages - others,
            Owner.REQUEST: self._of_requests,
            Owner.TRANSIT: self._of_transit,
        }

    def free_slots(self) -> Slots:
        """[free] the slots that are free. For the laws."""
        return np.array(self._stack[: self.free])
