"""Page slots of one memory level, handed out by index.

Rules of this file
- A slot is free or has exactly one owner. Freeing what one does not own raises at once, where the bug is.
- All or nothing: `alloc` gives every page asked for, or None and no change.
- Deterministic: the same calls give the same indices, in every rank and in every world.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from .errors import SlotError
from .types import Slots


class Owner(IntEnum):
    """Who holds a slot."""

    FREE = 0
    TREE = 1
    """A node of the radix tree."""
    REQUEST = 2
    """L1: pages a request computes and has not yet given to the tree."""
    TRANSIT = 3
    """L2: pages a fetch fills, and pages given back by workers that return to the pool at the next tick."""


class SlotPool:
    """`pages` slots of one level.

    The free slots are a stack in an array: an allocation is a slice, however scattered the indices in it.
    """

    __slots__ = ("_owner", "_stack", "free", "name", "pages")

    def __init__(self, name: str, pages: int) -> None:
        self.name = name
        self.pages = pages
        self.free = pages
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int64)
        self._owner = np.zeros(pages, dtype=np.uint8)

    def alloc(self, pages: int, owner: Owner) -> Slots | None:
        """[pages] slots for `owner`, or None if fewer are free."""
        rest = self.free - pages
        if rest < 0:
            return None
        if pages < 0:
            raise SlotError(f"{self.name}: {pages} slots asked for")
        slots: Slots = self._stack[rest : self.free].copy()
        self.free = rest
        self._owner[slots] = int(owner)  # numpy takes thrice as long over an enum
        return slots

    def give_back(self, slots: Slots, owner: Owner) -> None:
        """Free slots that `owner` holds. Raises SlotError for any other; one named twice in a call breaks law L1."""
        self.hand_over(slots, owner, Owner.FREE)
        end = self.free + len(slots)
        if end > self.pages:
            raise SlotError(f"{self.name}: {end} free slots in a pool of {self.pages}: one was freed twice in one call")
        self._stack[self.free : end] = slots
        self.free = end

    def hand_over(self, slots: Slots, owner: Owner, to: Owner) -> None:
        """Change the owner of slots. Raises SlotError unless `owner` holds them all."""
        held = self._owner[slots].tobytes()
        if held.count(owner) != len(held):
            foreign = {Owner(other).name for other in held if other != owner}
            raise SlotError(f"{self.name}: slots of {' and '.join(sorted(foreign))} treated as {Owner(owner).name}'s")
        self._owner[slots] = int(to)

    def owned(self) -> dict[Owner, int]:
        """Slots per owner, counted afresh. For the laws."""
        counts = np.bincount(self._owner, minlength=len(Owner))
        return {owner: int(counts[owner]) for owner in Owner}

    def duplicates_free(self) -> bool:
        """Whether the stack of free slots names each free slot once. For the laws."""
        stack = self._stack[: self.free]
        return len(np.unique(stack)) == self.free and not self._owner[stack].any()


def joined(parts: list[Slots]) -> Slots:
    """One after the other."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
