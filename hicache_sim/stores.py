"""What an L3 store holds, and what it answers: capacity, eviction, leases. Times are the plane's business.

Rules of this file
- A store is asked in batches of page names, and answers how many leading pages are there, read or written.
- A page belongs to the batch in which it was last used, and batches queue in the order they came: the page unused for
  longest is at hand, and a use moves nothing.
- One class for each way of evicting, found by the name in the store's profile. All share one contract suite.
- Everything is a function of the calls and their times; nothing here draws random numbers.
- No call costs more than its pages and those it drives out, however many a store holds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

Name = Any

_SLACK_PAGES = 4096


class Limits(NamedTuple):
    """How much a store keeps; watermarks are shares of it."""

    capacity_pages: float
    high_watermark: float = 1.0
    low_watermark: float = 1.0
    lease_s: float = 0.0


class Use:
    """Pages used together. `number`: its place among all uses of a store; what `time_s` means is the store's kind's."""

    __slots__ = ("names", "number", "start", "time_s")

    def __init__(self, number: int, names: list[Name], time_s: float) -> None:
        self.number = number
        self.names = names
        self.time_s = time_s
        self.start = 0
        """Pages before it have gone, or belong to a later use."""

    def first(self, held: dict[Name, Use]) -> Name | None:
        """The first page it has; None if it has none any more."""
        while self.start < len(self.names):
            name = self.names[self.start]
            if held.get(name) is self:
                return name
            self.start += 1
        return None

    def leave(self, held: dict[Name, Use], pages: int) -> int:
        """Its first pages go, so many or as many as it has; how many have gone."""
        names, at, gone = self.names, self.start, 0
        while at < len(names) and gone < pages:
            name = names[at]
            if held.get(name) is self:
                del held[name]
                gone += 1
            at += 1
        self.start = at
        return gone


class Uses:
    """Uses of pages in `held`, in the order they came. `numbers`: where they get theirs."""

    def __init__(self, held: dict[Name, Use], numbers: Iterator[int]) -> None:
        self._held = held
        self._numbers = numbers
        self._queue: deque[Use] = deque()
        self._names = 0
        """Of all uses in the queue, those too that belong to later ones."""

    def add(self, names: list[Name], time_s: float) -> None:
        """`names`, new ones or held, are used."""
        if not names:
            return
        held = self._held
        use = Use(next(self._numbers), names, time_s)
        for name in names:
            held[name] = use
        self._queue.append(use)
        self._names += len(names)
        if self._names > 2 * len(held) + _SLACK_PAGES:
            self._forget()

    def oldest(self) -> Use | None:
        """The first use that may have pages left."""
        queue = self._queue
        while queue:
            use = queue[0]
            if use.start < len(use.names):
                return use
            queue.popleft()
            self._names -= len(use.names)
        return None

    def clear(self) -> None:
        self._queue.clear()
        self._names = 0

    def _forget(self) -> None:
        """The names that belong to later uses by now: so there are never many more than pages."""
        held = self._held
        for use in self._queue:
            use.names = [name for name in use.names[use.start :] if held.get(name) is use]
            use.start = 0
        self._queue = deque(use for use in self._queue if use.names)
        self._names = sum(len(use.names) for use in self._queue)


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
        self.held: dict[Name, Use] = {}
        """Pages by name, and the use that each belongs to."""
        self._numbers = count()
        self._uses = Uses(self.held, self._numbers)
        self.evicted = 0
        self.refused = 0

    def probe(self, names: Sequence[Name], now_s: float) -> int:
        """How many leading pages are there."""
        return len(self._there(names))

    def read(self, names: Sequence[Name], now_s: float) -> int:
        """How many leading pages can be read."""
        return self.probe(names, now_s)

    def write(self, names: Sequence[Name], now_s: float) -> int:
        """Write what is not there; how many leading pages are there afterwards."""
        held = self.held
        new = [name for name in names if name not in held]
        there = self._room(len(new))
        self._uses.add(new if there == len(new) else new[:there], now_s)
        if there == len(new):
            return len(names)
        done = names.index(new[there])
        self.refused += len(names) - done
        return done

    def by_use(self) -> dict[Name, float]:
        """Pages in the order of their last use, the oldest first, and its `time_s`. A look."""
        uses = {use.number: use for use in self.held.values()}
        in_order = [use for _, use in sorted(uses.items())]
        return {name: use.time_s for use in in_order for name in use.names if self.held.get(name) is use}

    def drop_oldest(self, pages: int) -> None:
        """Lose the pages unused for longest."""
        self._evict(pages, math.inf)

    def clear(self) -> None:
        """Lose everything."""
        self.held.clear()
        self._uses.clear()

    def _there(self, names: Sequence[Name]) -> list[Name]:
        """The leading ones that are held."""
        held, there = self.held, list[Name]()
        for name in names:
            if name not in held:
                break
            there.append(name)
        return there

    def _room(self, pages: int) -> int:
        """For how many of so many more there is room."""
        room = self.capacity_pages - len(self.held)
        return pages if room >= pages else int(max(room, 0))

    def _evict(self, pages: int, now_s: float) -> None:
        """The `pages` unused for longest, or as many as may go."""
        while pages > 0 and (use := self._oldest(now_s)) is not None:
            gone = use.leave(self.held, pages)
            self.evicted += gone
            pages -= gone

    def _oldest(self, now_s: float) -> Use | None:
        """The use whose pages are the next to go."""
        return self._uses.oldest()


class Lru(Store):
    """A write without room drives out the pages unused for longest, down to the low watermark, itself included.

    Reading and writing again are use, asking is not (Redis with allkeys-lru, `RedisClient`; the capped `FileClient`).
    """

    def read(self, names: Sequence[Name], now_s: float) -> int:
        there = self._there(names)
        self._uses.add(there, now_s)
        return len(there)

    def write(self, names: Sequence[Name], now_s: float) -> int:
        held = self.held
        if self._room(len(names)) == len(names) and held.keys().isdisjoint(names):
            self._uses.add(list(names), now_s)
            return len(names)
        self._uses.add([name for name in names if name in held], now_s)
        for name in names:  # one after the other: who is there may be driven out before its turn comes
            if name in held:
                continue
            if not self._room(1):
                if not held:
                    return 0
                self._make_room(now_s)
            self._uses.add([name], now_s)
        return len(names)

    def _make_room(self, now_s: float) -> None:
        """For one more."""
        while self.held and len(self.held) + 1 > self.low_pages:
            self._evict(1, now_s)


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

    def read(self, names: Sequence[Name], now_s: float) -> int:
        found = self.probe(names, now_s)
        self._read.update(names[:found])
        return found

    def write(self, names: Sequence[Name], now_s: float) -> int:
        held = self.held
        new = [name for name in names if name not in held]
        if self._room(len(new)) < len(new):
            self._make_room(len(new), now_s)
        there = self._room(len(new))
        self._uses.add(new[:there], now_s)
        self.refused += len(new) - there
        return len(names) if there == len(new) else names.index(new[there])

    def clear(self) -> None:
        super().clear()
        self._read.clear()

    def _make_room(self, pages: int, now_s: float) -> None:
        read = self._read
        while len(self.held) + pages > self.low_pages and (use := self._uses.oldest()) is not None:
            name = use.first(self.held)
            if name in read:
                read.remove(name)
                self._uses.add([name], use.time_s)
            elif name is not None:
                self._evict(1, now_s)


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
        self._leases = Uses(self.held, self._numbers)
        """Uses that grant one. `time_s`: its end, never before that of an earlier use."""

    def probe(self, names: Sequence[Name], now_s: float) -> int:
        self._look(now_s)
        there = self._there(names)
        self._leases.add(there, now_s + self.lease_s)
        return len(there)

    def write(self, names: Sequence[Name], now_s: float) -> int:
        self._look(now_s)
        held = self.held
        new = [name for name in names if name not in held]
        if len(new) < len(names):
            self._leases.add([name for name in names if name in held], now_s + self.lease_s)
        there = self._room(len(new))
        self._uses.add(new if there == len(new) else new[:there], now_s)
        self._watch(now_s, len(new) - there)
        return len(names) if there == len(new) else names.index(new[there])

    def clear(self) -> None:
        super().clear()
        self._leases.clear()

    def _watch(self, now_s: float, refused: int = 0) -> None:
        self.refused += refused
        if refused or len(self.held) > self.high_pages:
            self._evicts_s = min(self._evicts_s, now_s + self.LOOK_S)

    def _look(self, now_s: float) -> None:
        """What the other thread has done by now."""
        if now_s >= self._evicts_s:
            self._evicts_s = math.inf
            self._evict(math.ceil(len(self.held) - self.low_pages), now_s)
            self._watch(now_s)

    def _oldest(self, now_s: float) -> Use | None:
        """Behind the first on lease, only what has never had one is free."""
        leased, fresh = self._leases.oldest(), self._uses.oldest()
        if leased is None or leased.time_s > now_s:
            return fresh
        return leased if fresh is None or leased.number < fresh.number else fresh


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

    def probe(self, names: Sequence[Name], now_s: float) -> int:
        self._expire(now_s)
        return super().probe(names, now_s)

    def read(self, names: Sequence[Name], now_s: float) -> int:
        self._expire(now_s)
        there = self._there(names)
        self._uses.add(there, now_s)
        return len(there)

    def write(self, names: Sequence[Name], now_s: float) -> int:
        self._expire(now_s)
        return super().write(names, now_s)

    def _expire(self, now_s: float) -> None:
        while (use := self._uses.oldest()) is not None and use.time_s + self.lease_s <= now_s:
            self.evicted += use.leave(self.held, len(use.names))


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
