"""What goes wrong with a store, and when: slow, down, an owner lost, pages lost, writes refused, reads cut short.

Rules of this file
- A fault is a window of simulated time. It asks nothing of the store's code: it stands between the plane and the store.
- Faults that strike single pages draw from their own seeded generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hicache_ref.control.types import Record

from .hardware import StoreProfile
from .stores import Store


class Verdict(Record):
    """What a fault makes of one batch: its pages, and the time it takes."""

    __slots__ = ("factor", "fails_after_s", "pages")

    def __init__(self, pages: int, factor: float = 1.0, fails_after_s: float | None = None) -> None:
        self.pages = pages
        self.factor = factor
        """Multiplies latency and bytes."""
        self.fails_after_s = fails_after_s
        """The call fails, after this long, without moving anything."""

    def fields(self) -> tuple[Any, ...]:
        return self.pages, self.factor, self.fails_after_s


class Fault(Protocol):
    """One window of trouble."""

    start_s: float
    end_s: float

    def probed(self, pages: int) -> Verdict: ...

    def read(self, pages: int) -> Verdict: ...

    def wrote(self, pages: int) -> Verdict: ...

    def begins(self, store: Store) -> None:
        """The window opens."""
        ...

    def ends(self, store: Store) -> None:
        """The window closes."""
        ...


class _Window:
    """A fault that does nothing."""

    def __init__(self, start_s: float, end_s: float, value: float, profile: StoreProfile, rng: random.Random) -> None:
        self.start_s = start_s
        self.end_s = end_s
        self.value = value
        self.profile = profile
        self.rng = rng

    def probed(self, pages: int) -> Verdict:
        return Verdict(pages)

    def read(self, pages: int) -> Verdict:
        return Verdict(pages)

    def wrote(self, pages: int) -> Verdict:
        return Verdict(pages)

    def begins(self, store: Store) -> None:
        pass

    def ends(self, store: Store) -> None:
        pass


class Slow(_Window):
    """Everything takes `value` times as long."""

    def probed(self, pages: int) -> Verdict:
        return Verdict(pages, self.value)

    def read(self, pages: int) -> Verdict:
        return self.probed(pages)

    def wrote(self, pages: int) -> Verdict:
        return self.probed(pages)


class Outage(_Window):
    """The metadata service is gone: every call fails after the time a caller needs to notice."""

    def probed(self, pages: int) -> Verdict:
        return Verdict(0, 1.0, self.profile.master_dead_s)

    def read(self, pages: int) -> Verdict:
        return self.probed(pages)

    def wrote(self, pages: int) -> Verdict:
        return self.probed(pages)


class OwnerLost(_Window):
    """The owner of all pages dies: until the store notices it says "there" and reads fail; then everything is gone.

    The window is the profile's `client_ttl_s`, whatever its end says.
    """

    def __init__(self, start_s: float, end_s: float, value: float, profile: StoreProfile, rng: random.Random) -> None:
        super().__init__(start_s, start_s + profile.client_ttl_s, value, profile, rng)

    def read(self, pages: int) -> Verdict:
        return Verdict(0, 1.0, self.profile.owner_dead_s)

    def wrote(self, pages: int) -> Verdict:
        return self.read(pages)

    def ends(self, store: Store) -> None:
        store.clear()


class Lose(_Window):
    """At the start, the share `value` of the pages, those unused for longest, is lost."""

    def begins(self, store: Store) -> None:
        store.drop_oldest(int(len(store.held) * self.value))


class Refuse(_Window):
    """Writes are refused."""

    def wrote(self, pages: int) -> Verdict:
        return Verdict(0)


class Partial(_Window):
    """Each page of a read fails with probability `value`; what is behind it is lost for the reader."""

    def read(self, pages: int) -> Verdict:
        failed = next((at for at in range(pages) if self.rng.random() < self.value), pages)
        return Verdict(failed)


FAULTS: dict[str, Callable[..., Fault]] = {
    "slow": Slow,
    "outage": Outage,
    "owner-lost": OwnerLost,
    "lose": Lose,
    "refuse": Refuse,
    "partial": Partial,
}


class FaultError(ValueError):
    """A fault that cannot be read. One line."""


def parse_fault(text: str, profile: StoreProfile, seed: int) -> Fault:
    """`KIND:START_S:DURATION_S[:VALUE]`, e.g. `slow:60:30:5` or `outage:600:120`."""
    kind, _, rest = text.partition(":")
    if kind not in FAULTS:
        raise FaultError(f"--storage-fault {text}: unknown kind {kind!r}: known are {', '.join(FAULTS)}")
    try:
        start_s, duration_s, *more = (float(part) for part in rest.split(":"))
        (value,) = more or (1.0,)
    except ValueError:
        raise FaultError(f"--storage-fault {text}: write KIND:START_S:DURATION_S[:VALUE]") from None
    if not min(start_s, duration_s, value) >= 0.0:
        raise FaultError(f"--storage-fault {text}: no number may be below 0")
    return FAULTS[kind](start_s, start_s + duration_s, value, profile, random.Random(f"fault/{seed}/{text}"))


class FaultyStore:
    """A store with its faults: what the plane talks to. Without faults, just the store."""

    def __init__(self, store: Store, faults: Sequence[Fault] = ()) -> None:
        self.store = store
        self._sound = not faults
        self._waiting = sorted(faults, key=lambda fault: fault.start_s)
        self._active: list[Fault] = []
        self.failed_calls = 0

    def probe(self, names: Sequence[Any], now_s: float) -> Verdict:
        if self._sound:
            return Verdict(self.store.probe(names, now_s))
        self._move_to(now_s)
        return self._ask(self.store.probe, names, now_s, [fault.probed for fault in self._active])

    def read(self, names: Sequence[Any], now_s: float) -> Verdict:
        if self._sound:
            return Verdict(self.store.read(names, now_s))
        self._move_to(now_s)
        return self._ask(self.store.read, names, now_s, [fault.read for fault in self._active])

    def write(self, names: Sequence[Any], now_s: float) -> Verdict:
        if self._sound:
            return Verdict(self.store.write(names, now_s))
        self._move_to(now_s)
        return self._ask(self.store.write, names, now_s, [fault.wrote for fault in self._active])

    def _ask(
        self,
        call: Callable[[Sequence[Any], float], int],
        names: Sequence[Any],
        now_s: float,
        faults: list[Callable[[int], Verdict]],
    ) -> Verdict:
        """What the faults leave of a call. The store hears of no more than that: what fails is no use of a page."""
        if not faults:
            return Verdict(call(names, now_s))
        pages, factor = len(names), 1.0
        for fault in faults:
            verdict = fault(pages)
            if verdict.fails_after_s is not None:
                self.failed_calls += 1
                return verdict
            pages, factor = min(pages, verdict.pages), factor * verdict.factor
        return Verdict(call(names[:pages], now_s) if pages else 0, factor)

    def _move_to(self, now_s: float) -> None:
        while self._waiting and self._waiting[0].start_s <= now_s:
            fault = self._waiting.pop(0)
            fault.begins(self.store)
            self._active.append(fault)
        for fault in [fault for fault in self._active if fault.end_s <= now_s]:
            fault.ends(self.store)
            self._active.remove(fault)
