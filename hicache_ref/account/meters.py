"""What a plane counts, whether it moves bytes or only time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..control.types import OpKind


@dataclass(slots=True)
class Slice:
    """One thing a stream did, for the timeline of a run. Tracks: `files.TRACKS`."""

    track: str
    start_s: float
    end_s: float
    op_id: int
    pages: int


class LinkMeter(Protocol):
    """A link: what it has carried, and what it could at most (inf where nobody knows)."""

    @property
    def name(self) -> str: ...

    @property
    def moved_bytes(self) -> float: ...

    @property
    def bytes_per_s(self) -> float: ...


class StoreMeter(Protocol):
    """L3 as seen from here. Pages, of all ranks together one."""

    @property
    def capacity_pages(self) -> float:
        """inf: without a bound, or not known."""
        ...

    @property
    def held_pages(self) -> int: ...

    @property
    def evicted_pages(self) -> int: ...

    @property
    def refused_pages(self) -> int: ...

    @property
    def failed_calls(self) -> int: ...

    @property
    def read_pages(self) -> int: ...

    @property
    def written_pages(self) -> int: ...


class Meters(Protocol):
    """All counters of a plane. Seconds are sums since the start."""

    @property
    def links(self) -> Sequence[LinkMeter]: ...

    @property
    def store(self) -> StoreMeter | None: ...

    @property
    def op_counts(self) -> Mapping[OpKind, int]:
        """Operations submitted, by kind."""
        ...

    @property
    def busy_s(self) -> float:
        """The device computed, or waited in a batch."""
        ...

    @property
    def waited_s(self) -> float:
        """Of those: waited for loads."""
        ...

    @property
    def slowed_s(self) -> float:
        """Of those: lost to copies that run on the same processors."""
        ...
