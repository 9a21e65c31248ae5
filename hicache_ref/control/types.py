"""The nouns everyone imports: operations, what planes answer, and the verdicts of the control plane.

Rules of this file
- Records only. Nothing here decides, allocates or reads a clock.
- An operation names pages of slots; a plane executes it and answers with exactly one `Completion`, before it any
  number of `Progress`, after one that lingers a `Released`. Only the leading `pages_ok` pages of a destination hold
  what they should.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[Any]
"""[pages] int64: page indices of one pool, in the order of the pages they hold. What planes are given."""

Indices: TypeAlias = "array[int]"
"""The same with typecode "q". What the control plane keeps: it is cut and joined at a fraction of the cost."""

PageKeys = Sequence[Any]
"""One key a page: the hex digest of the SHA-256 chain, or the atom itself where atoms are prefix-unique."""


class OpKind(IntEnum):
    """What a plane can be asked to do. L1 is device memory, L2 host memory, L3 the store."""

    __hash__ = int.__hash__  # Enum's own is a Python function, and planes look up what to do by kind

    BACKUP = 0  # L1 -> L2
    LOAD = 1  # L2 -> L1, usable layer by layer
    PROBE = 2  # how many leading pages of a chain L3 has
    FETCH = 3  # L3 -> L2
    STORE = 4  # L2 -> L3
    COMPUTE = 5  # one batch on the device
    CLEAR = 6  # forget all of L3


class Record(ABC):
    """What passes between the worlds: equal if of one kind with equal fields, and fit to be sent to other processes.

    Not a NamedTuple: the compiled build makes and reads these ten times as fast.
    """

    __slots__ = ()

    @abstractmethod
    def fields(self) -> tuple[Any, ...]:
        """In the order in which the constructor takes them."""

    def __eq__(self, other: object) -> bool:
        return self.__class__ is other.__class__ and isinstance(other, Record) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.fields())

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}{self.fields()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, self.fields()


class Op(Record):
    """One operation. `src` and `dst` are slots where the kind has them, `keys` where it touches L3."""

    __slots__ = ("_dst", "_src", "batch", "id", "keys", "kind", "pages")

    def __init__(
        self,
        id: int,
        kind: OpKind,
        pages: int,
        src: Slots | Indices | None = None,
        dst: Slots | Indices | None = None,
        keys: PageKeys = (),
        batch: Any = None,
    ) -> None:
        self.id = id
        self.kind = kind
        self.pages = pages
        self._src = src
        self._dst = dst
        self.keys = keys
        self.batch = batch
        """COMPUTE: a `scheduler.Batch`. LOAD: id of the COMPUTE it feeds is in that batch's `loads`."""

    def fields(self) -> tuple[Any, ...]:
        return self.id, self.kind, self.pages, self.src, self.dst, self.keys, self.batch

    # Views that are made when somebody asks: planes that move no bytes do not.

    @property
    def src(self) -> Slots | None:
        return None if self._src is None else np.asarray(self._src)

    @property
    def dst(self) -> Slots | None:
        return None if self._dst is None else np.asarray(self._dst)


class Cancel(Record):
    """Stop an operation early: a wish, not a fact. Its completion still comes, and may be whole."""

    __slots__ = ("op_id",)

    def __init__(self, op_id: int) -> None:
        self.op_id = op_id

    def fields(self) -> tuple[Any, ...]:
        return (self.op_id,)


class Completion(Record):
    """The end of an operation: the leading `pages_ok` pages are good (COMPUTE: decode steps done)."""

    __slots__ = ("failed", "lingers", "op_id", "pages_ok")

    def __init__(self, op_id: int, pages_ok: int, failed: bool = False, lingers: bool = False) -> None:
        self.op_id = op_id
        self.pages_ok = pages_ok
        self.failed = failed
        self.lingers = lingers
        """FETCH and STORE: a call hangs that may still touch the pages after `pages_ok`, until a `Released` comes."""

    def fields(self) -> tuple[Any, ...]:
        return self.op_id, self.pages_ok, self.failed, self.lingers

    @property
    def ends(self) -> bool:
        """Whether this is the last report on its operation."""
        return True


class Progress(Record):
    """So many leading pages of a running FETCH are good by now; never falls."""

    __slots__ = ("op_id", "pages_ok")

    def __init__(self, op_id: int, pages_ok: int) -> None:
        self.op_id = op_id
        self.pages_ok = pages_ok

    def fields(self) -> tuple[Any, ...]:
        return self.op_id, self.pages_ok

    @property
    def ends(self) -> bool:
        return False

    @property
    def lingers(self) -> bool:
        return False


class Released(Record):
    """An operation that was reported as lingering touches its pages no more."""

    __slots__ = ("op_id",)

    def __init__(self, op_id: int) -> None:
        self.op_id = op_id

    def fields(self) -> tuple[Any, ...]:
        return (self.op_id,)

    @property
    def ends(self) -> bool:
        return False


Report: TypeAlias = Completion | Progress | Released
"""What a plane reports."""


class Wait(NamedTuple):
    """A step cannot go on before these operations have completed: the blocking wait of write_back's eviction."""

    op_ids: tuple[int, ...]
