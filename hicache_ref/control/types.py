"""The nouns everyone imports: operations, what planes answer, and the verdicts of the control plane.

Rules of this file
- Records only. Nothing here decides, allocates or reads a clock.
- An operation names pages of slots; a plane executes it and answers with exactly one `Completion`, before it any
  number of `Progress`, after one that lingers a `Released`. Only the leading `pages_ok` pages of a destination hold
  what they should.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

Slots = NDArray[Any]
"""[pages] int64: page indices of one pool, in the order of the pages they hold."""

PageKeys = Sequence[Any]
"""One key a page: the hex digest of the SHA-256 chain, or the atom itself where atoms are prefix-unique."""


class OpKind(IntEnum):
    """What a plane can be asked to do. L1 is device memory, L2 host memory, L3 the store."""

    BACKUP = 0  # L1 -> L2
    LOAD = 1  # L2 -> L1, usable layer by layer
    PROBE = 2  # how many leading pages of a chain L3 has
    FETCH = 3  # L3 -> L2
    STORE = 4  # L2 -> L3
    COMPUTE = 5  # one batch on the device
    CLEAR = 6  # forget all of L3


class Op(NamedTuple):
    """One operation. `src` and `dst` are slots where the kind has them, `keys` where it touches L3."""

    id: int
    kind: OpKind
    pages: int
    src: Slots | None = None
    dst: Slots | None = None
    keys: PageKeys = ()
    batch: Any = None
    """COMPUTE: a `scheduler.Batch`. LOAD: id of the COMPUTE it feeds is in that batch's `loads`."""


class Cancel(NamedTuple):
    """Stop an operation early: a wish, not a fact. Its completion still comes, and may be whole."""

    op_id: int


class Completion(NamedTuple):
    """The end of an operation: the leading `pages_ok` pages are good (COMPUTE: decode steps done)."""

    op_id: int
    pages_ok: int
    failed: bool = False
    lingers: bool = False
    """FETCH and STORE: a call hangs that may still touch the pages after `pages_ok`, until a `Released` comes."""

    @property
    def ends(self) -> bool:
        """Whether this is the last report on its operation."""
        return True


class Progress(NamedTuple):
    """So many leading pages of a running FETCH are good by now; never falls."""

    op_id: int
    pages_ok: int

    @property
    def ends(self) -> bool:
        return False

    @property
    def lingers(self) -> bool:
        return False


class Released(NamedTuple):
    """An operation that was reported as lingering touches its pages no more."""

    op_id: int

    @property
    def ends(self) -> bool:
        return False


Report: TypeAlias = Completion | Progress | Released
"""What a plane reports."""


class Wait(NamedTuple):
    """A step cannot go on before these operations have completed: the blocking wait of write_back's eviction."""

    op_ids: tuple[int, ...]
