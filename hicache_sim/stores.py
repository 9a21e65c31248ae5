"""What an L3 store holds, and what it answers: capacity, eviction, leases. Times are the plane's business.

Rules of this file
- A store is asked in batches of page names, and answers how many leading pages are there, read or written.
- One class for each way of evicting, found by the name in the store's profile. All share one contract suite.
- Everything is a function of the calls and their times; nothing here draws random numbers.
- No call costs more than its pages and those it drives out, however many a store holds.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

Name = Any


class Limits(NamedTuple):
    """How much a store keeps; watermarks are shares of it."""

    capacity_pages: float
    high_watermark: float = 1.0
    low_watermark: float = 1.0
    lease_s: float = 0.0


class Store:
    """Pages by name, without limit and for ever, up to `capacity_pages`: then it refuses writes."""

    checks_after_reading = False
    """Whether a page may be overwritten while it is read."""

    def __init__(self, limits: Limits) -> None:
        pages = limits.capacity_pages
        self.capacity_pages = pages if math.isinf(pages) else math.floor(pages)
        self.high_pages = self.capacity_pages * limits.high_watermark
        self.low_pages = self.capacity_pages * limits.low_watermark
        self.lease_s = limits.lease_s
        self.held: dict[Name, float] = self._nothing()
        """Name to the time of its last use (what that means is the kind's), oldest first where the kind keeps order."""
        self.evicted = 0
        self.refused = 0

    def _nothing(self) -> dict[Name, float]:
        """An empty dict. Where pages are taken from the front one by one it must be an ordered one: a plain dict would
        step over all that have gone, over and over."""
        return {}

    def probe(self, names: Sequence[Name], now_s: float) -> int:
        """How many leading pages are there."""
        held = self.held
        for at, name in enumerate(names):
            if name not in held:
                return at
        return len(names)

    def read(self, names: Sequence[Name], now_s: float) -> int:
        """How many leading pages can be read."""
        return self.probe(names, now_s)

    def write(self, names: Sequence[Name], now_s: float) -> int:
        """Write what is not there; how many leading pages are there afterwards."""
        held = self.held
        if self._fits(names, self.capacity_pages):
            self._add(names, now_s)
            return len(names)
        for at, name in enumerate(names):
            if name in held:
                continue
            if len(held) >= self.capacity_pages:
                self.refused += len(names) - at
                return at
            held[name] = now_s
        return len(names)

    def drop_oldest(self, pages: int) -> None:
        """Lose the pages unused for longest."""
        for name in list(islice(self.held, pages)):
            del self.held[name]
        self.evicted += pages

    def clear(self) -> None:
        """Lose everything."""
        self.held.clear()

    def _fits(self, names: Sequence[Name], limit: float) -> bool:
        """Whether all of `names` are new and fit below `limit`: the common case, done in bulk."""
        return len(self.held) + len(names) <= limit and self.held.keys().isdisjoint(names)

    def _add(self, names: Sequence[Name], now_s: float) -> None:
        self.held.update(dict.fromkeys(names, now_s))

    def _touch(self, names: Sequence[Name], now_s: float) -> None:
        held = self.held
        use_s: Any = now_s  # one object for all
        for name in names:
            del held[name]
            held[name] = use_s


class Lru(Store):
    """A write without room drives out the pages unused for longest, down to the low watermark, itself included.

    Reading and writing again are use, asking is not (Redis with allkeys-lru, `RedisClient`; the capped `FileClient`).
    """

    def _nothing(self) -> dict[Name, float]:
        return OrderedDict()

    def read(self, names: Sequence[Name], now_s: float) -> int:
        found = self.probe(names, now_s)
        self._touch(names[:found], now_s)
        return found

    def write(self, names: Sequence[Name], now_s: float) -> int:
        held = self.held
        if self._fits(names, self.capacity_pages):
            self._add(names, now_s)
            return len(names)
        self._touch([name for name in names if name in held], now_s)
        for name in names:
            if name in held:
                continue
            if len(held) >= self.capacity_pages:
                if not held:
                    return 0
                self._make_room()
            held[name] = now_s
        return len(names)

    def _make_room(self) -> None:
        """For one more."""
        held = self.held
        while held and len(held) + 1 > self.low_pages:
            del held[next(iter(held))]
            self.evicted += 1


class LruPageTable(Lru):
    """A write takes the page of the least recently used key at once, whoever reads it (3FS's metadata server).

    A reader finds out after reading that its page has gone.
    """

    checks_after_reading = True


class SecondChance(Store):
    """Pages go in the order they came, those read since then once later, down to the low watermark (`LmdbClient`)."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._read = set[Name]()

    def _nothing(self) -> dict[Name, float]:
        return OrderedDict()

    def read(self, names: Sequence[Name], now_s: float) -> int:
        found = self.probe(names, now_s)
        self._read.update(names[:found])
        return found

    def write(self, names: Sequence[Name], now_s: float) -> int:
        held = self.held
        new = [name for name in names if name not in held]
        if len(held) + len(new) > self.capacity_pages:
            self._make_room(len(new))
        there = int(min(len(new), max(self.capacity_pages - len(held), 0)))
        self._add(new[:there], now_s)
        self.refused += len(new) - there
        return len(names) if there == len(new) else names.index(new[there])

    def clear(self) -> None:
        super().clear()
        self._read.clear()

    def _make_room(self, pages: int) -> None:
        held, read = self.held, self._read
        while held and len(held) + pages > self.low_pages:
            name = next(iter(held))
            if name in read:
                read.remove(name)
                self._touch([name], held[name])
            else:
                del held[name]
                self.evicted += 1


class WatermarkLease(Store):
    """Refuses writes at once when full. Somebody else evicts a moment after a refusal, or as long as the high watermark
    is passed: down to the low one, oldest use first, but nothing on lease (Mooncake). Asking and reading grant the
    lease, writing does not, except to what was there: who writes asks first."""

    LOOK_S = 0.01
    """After which the master's thread looks again."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._evicts_s = math.inf
        """When room will be made."""
        self._written: deque[tuple[float, Sequence[Name], int]] = deque()
        """What was written when, and how much of it is known to be gone or to have had a lease since: a page held since
        the very time of its writing has never had one. Not older than the oldest page by more than a lease."""

    def probe(self, names: Sequence[Name], now_s: float) -> int:
        self._look(now_s)
        found = super().probe(names, now_s)
        self._touch(names[:found], now_s + self.lease_s)
        return found

    def write(self, names: Sequence[Name], now_s: float) -> int:
        self._look(now_s)
        held = self.held
        if self._fits(names, self.capacity_pages):
            self._add(names, now_s)
            self._written.append((now_s, names, 0))
            self._watch(now_s)
            return len(names)
        self._touch([name for name in names if name in held], now_s + self.lease_s)
        new = [name for name in names if name not in held]
        there = new[: int(min(len(new), self.capacity_pages - len(held)))]
        self._add(there, now_s)
        self._written.append((now_s, there, 0))
        self._watch(now_s, len(new) - len(there))
        return len(names) if len(there) == len(new) else names.index(new[len(there)])

    def _watch(self, now_s: float, refused: int = 0) -> None:
        self.refused += refused
        if refused or len(self.held) > self.high_pages:
            self._evicts_s = min(self._evicts_s, now_s + self.LOOK_S)

    def _look(self, now_s: float) -> None:
        """What the other thread has done by now."""
        if now_s >= self._evicts_s:
            self._evicts_s = math.inf
            self._evict(now_s)
            self._watch(now_s)

    def _evict(self, now_s: float) -> None:
        """The first page on lease ends the search in the order of use; behind it only fresh ones are free."""
        held = self.held
        wanted = math.ceil(len(held) - self.low_pages)
        gone = []
        for name, leased_until_s in islice(held.items(), wanted):
            if leased_until_s > now_s:
                break
            gone.append(name)
        for name in gone:
            del held[name]
        self.evicted += len(gone)
        for _ in range(wanted - len(gone)):
            fresh = self._oldest_fresh()
            if fresh is None:
                return
            del held[fresh]
            self.evicted += 1
        oldest_s = next(iter(held.values()), math.inf) - self.lease_s
        while self._written and self._written[0][0] < oldest_s:
            self._written.popleft()

    def _oldest_fresh(self) -> Name | None:
        """The page written first of those that have never had a lease."""
        held, written = self.held, self._written
        while written:
            at_s, names, start = written[0]
            for at in range(start, len(names)):
                if held.get(names[at]) == at_s:
                    written[0] = at_s, names, at
                    return names[at]
            written.popleft()
        return None


class WatermarkCleaner(Store):
    """A cleaner looks every `period_s`, and from the high watermark on deletes the oldest files, some at a time, until
    below the low one (NIXL's l3_cleaner, 0.5.23)."""

    period_s = 30.0
    batch_pages = 50

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._next_s = self.period_s

    def probe(self, names: Sequence[Name], now_s: float) -> int:
        self._clean(now_s)
        return super().probe(names, now_s)

    def write(self, names: Sequence[Name], now_s: float) -> int:
        self._clean(now_s)
        return super().write(names, now_s)

    def _clean(self, now_s: float) -> None:
        if now_s < self._next_s:
            return
        self._next_s = now_s + self.period_s
        if self.held and len(self.held) >= self.high_pages:
            self._drop_some()
            while self.held and len(self.held) >= self.low_pages:
                self._drop_some()

    def _drop_some(self) -> None:
        self.drop_oldest(min(self.batch_pages, len(self.held)))


class Ttl(Store):
    """A page is gone `lease_s` after it was last written or read."""

    def _nothing(self) -> dict[Name, float]:
        return OrderedDict()

    def probe(self, names: Sequence[Name], now_s: float) -> int:
        self._expire(now_s)
        return super().probe(names, now_s)

    def read(self, names: Sequence[Name], now_s: float) -> int:
        found = self.probe(names, now_s)
        self._touch(names[:found], now_s)
        return found

    def write(self, names: Sequence[Name], now_s: float) -> int:
        self._expire(now_s)
        return super().write(names, now_s)

    def _expire(self, now_s: float) -> None:
        held = self.held
        while held:
            oldest = next(iter(held))
            if held[oldest] + self.lease_s > now_s:
                return
            del held[oldest]
            self.evicted += 1


STORES: dict[str, Callable[..., Store]] = {
    "none": Store,
    "lru": Lru,
    "second_chance": SecondChance,
    "lru_page_table": LruPageTable,
    "watermark_lease": WatermarkLease,
    "watermark_cleaner": WatermarkCleaner,
    "ttl": Ttl,
}
"""By the `eviction` of a store profile."""


def make_store(eviction: str, capacity_pages: float, high: float, low: float, lease_s: float) -> Store:
    """An empty store. ValueError lists the known kinds."""
    if eviction not in STORES:
        raise ValueError(f"unknown store eviction {eviction!r}: known are {', '.join(STORES)}")
    return STORES[eviction](Limits(capacity_pages, high, low, lease_s))
