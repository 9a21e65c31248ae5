"""L3 stores: one contract that every kind keeps, then each kind's own law, against references that keep no order."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_sim import hardware
from hicache_sim.stores import STORES, Store, WatermarkCleaner, WatermarkLease, make_store

LEASE_S = 10.0
calls = st.lists(
    st.tuples(
        st.sampled_from(["probe", "read", "write", "write"]),
        st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True),
        st.sampled_from([0.0, 0.5, 3.0, 12.0, 40.0]),
    ),
    max_size=30,
)
thorough = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def store_of(kind: str, capacity: float = 8, high: float = 1.0, low: float = 0.5) -> Store:
    return make_store(kind, capacity, high, low, LEASE_S)


class StoreContract:
    """What every store does."""

    kind: str

    @thorough
    @given(story=calls, capacity=st.sampled_from([1, 2, 5.5, 8, math.inf]), high=st.sampled_from([0.6, 1.0]))
    def test_answers_are_true(self, story, capacity, high):
        """Capacity is never exceeded; answers are leading pages; what is read was written and is there."""
        store = store_of(self.kind, capacity, high)
        written: set[int] = set()
        now_s = 0.0
        for call, names, wait_s in story:
            now_s += wait_s
            before, evicted = set(store.held), store.evicted
            answer = getattr(store, call)(names, now_s)
            assert 0 <= answer <= len(names)
            assert len(store.held) <= capacity
            if call == "write":
                written |= set(names)
                # Who has to evict may drive out what the same call has brought.
                assert store.evicted > evicted or set(names[:answer]) <= set(store.held)
            else:
                assert set(names[:answer]) <= before & written
                assert answer == len(names) or names[answer] not in store.held

    def test_a_probe_counts_to_the_first_hole(self):
        store = store_of(self.kind)
        assert store.probe([1, 2, 3], 0.0) == 0
        assert store.write([1, 2, 4], 0.0) == 3
        assert store.probe([1, 2, 3, 4], 1.0) == 2
        assert store.read([1, 2, 3, 4], 1.0) == 2
        assert store.read([3, 1], 1.0) == 0
        assert store.read([4, 2, 1], 1.0) == 3

    def test_writing_again_changes_nothing(self):
        store = store_of(self.kind)
        store.write([1, 2, 3], 0.0)
        assert store.write([1, 2, 3], 0.0) == 3
        assert (set(store.held), store.evicted, store.refused) == ({1, 2, 3}, 0, 0)
        assert store.write([2, 5, 1], 1.0) == 3
        assert set(store.held) == {1, 2, 3, 5}

    def test_what_does_not_fit_is_refused_or_drives_others_out(self):
        store = store_of(self.kind, 4)
        assert store.write([1, 2, 3, 4], 0.0) == 4
        fits = store.write([2, 5, 6, 7, 8], 0.0)
        assert len(store.held) <= 4
        assert store.refused == (5 - fits if fits < 5 else 0)
        assert store.evicted == 4 + (fits - 1 if fits else 0) - len(store.held) or self.kind == "watermark_lease"

    def test_pages_can_be_lost(self):
        store = store_of(self.kind)
        store.write([1, 2, 3], 0.0)
        store.drop_oldest(2)
        assert (list(store.held), store.evicted) == ([3], 2)
        store.clear()
        assert store.probe([3], 0.0) == 0
        assert store.write([1], 1.0) == 1

    def test_no_capacity_holds_nothing(self):
        store = store_of(self.kind, 0.5)
        assert store.write([1, 2], 0.0) == 0
        assert not store.held

    def test_the_same_calls_give_the_same_answers(self):
        first, second = store_of(self.kind, 3), store_of(self.kind, 3)
        for store in (first, second):
            for at in range(12):
                store.write([at, at * 7 % 5], float(at))
                store.read([at - 1, at], at + 0.5)
        assert list(first.by_use().items()) == list(second.by_use().items())
        assert (first.evicted, first.refused) == (second.evicted, second.refused)


class TestNeverEvicts(StoreContract):
    kind = "none"

    def test_full_is_full_for_ever(self):
        store = store_of(self.kind, 3)
        assert store.write([1, 2, 3, 4, 5], 0.0) == 3
        assert store.refused == 2
        assert store.write([1, 4], 1e9) == 1
        assert store.read([1, 2, 3], 1e9) == 3
        assert store.evicted == 0


class Recency:
    """A least recently used list in the plainest form."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.names: list[int] = []

    def found(self, names: list[int]) -> int:
        return next((at for at, name in enumerate(names) if name not in self.names), len(names))

    def use(self, names: list[int]) -> None:
        for name in names:
            self.names.remove(name)
            self.names.append(name)

    def add(self, name: int) -> None:
        if name not in self.names:
            self.names.append(name)
            self.names = self.names[-self.capacity :]


class TestLru(StoreContract):
    """Redis with allkeys-lru: reading and writing again are use, asking is not."""

    kind = "lru"
    used_by = ("read", "write")

    @thorough
    @given(story=calls, capacity=st.integers(6, 10))
    def test_the_least_recently_used_goes(self, story, capacity):
        store, model = store_of(self.kind, capacity, low=1.0), Recency(capacity)
        for at, (call, names, _) in enumerate(story):
            answer = getattr(store, call)(names, float(at))
            if call != "write":
                assert answer == model.found(names)
                if call in self.used_by:
                    model.use(names[:answer])
            else:
                assert answer == len(names)
                if call in self.used_by:
                    model.use([name for name in names if name in model.names])
                for name in names:
                    model.add(name)
            assert list(store.by_use()) == model.names

    def test_never_refuses(self):
        store = store_of(self.kind, 2, low=1.0)
        assert store.write([1, 2, 3, 4, 5], 0.0) == 5
        assert (set(store.held), store.evicted, store.refused) == ({4, 5}, 3, 0)

    def test_makes_room_down_to_the_low_mark(self):
        store = store_of(self.kind, 10, low=0.75)
        store.write(list(range(10)), 0.0)
        store.read([0, 1], 1.0)
        store.write([10], 2.0)
        assert list(store.by_use()) == [6, 7, 8, 9, 0, 1, 10]


class TestLruPageTable(TestLru):
    """3FS: who reads finds out afterwards."""

    kind = "lru_page_table"

    def test_readers_look_again(self):
        assert store_of(self.kind).checks_after_reading
        assert not store_of("lru").checks_after_reading


class TestSecondChance(StoreContract):
    """LMDB: pages go as they came, unless they were read since."""

    kind = "second_chance"

    def test_what_was_read_stays_once(self):
        store = store_of(self.kind, 4, low=0.75)
        store.write([1, 2, 3, 4], 0.0)
        store.read([1, 2], 1.0)
        store.write([5], 2.0)
        assert list(store.by_use()) == [1, 2, 5]
        store.write([6], 3.0)
        assert list(store.by_use()) == [1, 2, 5, 6]
        store.write([7, 8], 4.0)
        assert list(store.by_use()) == [6, 7, 8]

    def test_a_batch_that_can_never_fit_is_cut(self):
        store = store_of(self.kind, 4)
        assert store.write(list(range(10)), 0.0) == 4
        assert store.refused == 6


class TestWatermarkLease(StoreContract):
    """Mooncake: probes and reads grant a lease, and leased pages stay whatever comes."""

    kind = "watermark_lease"

    @thorough
    @given(story=calls, high=st.sampled_from([0.5, 0.75, 1.0]), low=st.sampled_from([0.25, 0.5]))
    def test_leases_are_kept_and_the_oldest_goes_first(self, story, high, low):
        store = store_of(self.kind, 8, high, low)
        now_s = 0.0
        for call, names, wait_s in story:
            now_s += wait_s
            before, refused = store.by_use(), store.refused
            answer = getattr(store, call)(names, now_s)
            gone = [name for name in before if name not in store.held]
            kept = [name for name in before if name in store.held and name not in names]
            assert all(before[name] <= now_s for name in gone)
            order = [name for name in before if name in gone or (name in kept and before[name] <= now_s)]
            assert order[: len(gone)] == gone
            assert (store.refused > refused) <= (len(store.held) == 8)
            if call != "write":
                after = store.by_use()
                assert all(after[name] == now_s + LEASE_S for name in names[:answer])
                assert list(after)[len(after) - answer :] == names[:answer]

    def test_evicts_down_to_the_low_mark(self):
        store = store_of(self.kind, 10, high=0.8, low=0.5)
        store.write(list(range(8)), 0.0)
        store.write([8], 1.0)
        assert len(store.held) == 9
        store.write([100], 2.0)
        assert list(store.by_use()) == [4, 5, 6, 7, 8, 100]
        assert store.evicted == 4

    def test_all_leased_is_full(self):
        store = store_of(self.kind, 4)
        store.write([1, 2, 3, 4], 0.0)
        store.probe([1, 2, 3, 4], 1.0)
        assert store.write([5, 6], 1.0 + LEASE_S - 0.1) == 0
        assert store.refused == 2
        assert store.write([5, 6], 1.0 + LEASE_S) == 2

    def test_room_is_made_after_a_refusal_not_before(self):
        store = store_of(self.kind, 4)
        store.write([1, 2, 3, 4], 0.0)
        assert store.write([5, 6], 1.0) == 0
        assert store.write([5, 6], 1.0 + WatermarkLease.LOOK_S) == 2
        assert list(store.by_use()) == [3, 4, 5, 6]

    def test_who_writes_again_grants_a_lease(self):
        """Since it asks before what is there."""
        store = store_of(self.kind, 4, low=0.9)
        store.write([1, 2, 3, 4], 0.0)
        assert store.write([1, 5], 1.0) == 1
        assert store.write([5], 1.1) == 1
        assert set(store.held) == {1, 3, 4, 5}

    def test_an_unleased_page_behind_leased_ones_goes(self):
        """Written after the others were read, it has no lease: it is not protected by theirs."""
        store = store_of(self.kind, 4, low=0.9)
        store.write([1, 2, 3], 0.0)
        store.read([1, 2, 3], 1.0)
        store.write([4], 2.0)
        assert store.write([5], 3.0) == 0
        assert store.write([5], 3.1) == 1
        assert set(store.held) == {1, 2, 3, 5}


class TestWatermarkCleaner(StoreContract):
    """NIXL's cleaner comes by now and then; until then a full disk refuses."""

    kind = "watermark_cleaner"

    @pytest.fixture(autouse=True)
    def one_at_a_time(self, monkeypatch):
        monkeypatch.setattr(WatermarkCleaner, "batch_pages", 1)

    def test_cleans_when_its_time_has_come(self):
        store = store_of(self.kind, 10, high=0.8, low=0.5)
        store.write(list(range(10)), 0.0)
        assert store.write([10], WatermarkCleaner.period_s - 1.0) == 0
        assert store.refused == 1
        assert store.write([10], WatermarkCleaner.period_s) == 1
        assert list(store.by_use()) == [6, 7, 8, 9, 10]
        store.write(list(range(20, 25)), WatermarkCleaner.period_s + 1.0)
        assert store.probe(list(store.held), 2 * WatermarkCleaner.period_s - 1.0) == 10
        assert store.read([6], 2 * WatermarkCleaner.period_s) == 0

    def test_deletes_some_at_a_time(self, monkeypatch):
        monkeypatch.setattr(WatermarkCleaner, "batch_pages", 3)
        store = store_of(self.kind, 10, high=0.8, low=0.5)
        store.write(list(range(8)), 0.0)
        store.probe([], WatermarkCleaner.period_s)
        assert list(store.by_use()) == [6, 7]

    def test_leaves_alone_what_is_below_the_mark(self):
        store = store_of(self.kind, 10, high=0.8, low=0.5)
        store.write(list(range(7)), 0.0)
        assert store.probe(list(range(7)), 10 * WatermarkCleaner.period_s) == 7


class TestTtl(StoreContract):
    kind = "ttl"

    @thorough
    @given(story=calls)
    def test_a_page_lives_from_its_last_use(self, story):
        store = store_of(self.kind, math.inf)
        used_s: dict[int, float] = {}
        now_s = 0.0
        for call, names, wait_s in story:
            now_s += wait_s
            used_s = {name: at_s for name, at_s in used_s.items() if at_s + LEASE_S > now_s}
            answer = getattr(store, call)(names, now_s)
            if call == "read":
                used_s |= dict.fromkeys(names[:answer], now_s)
            elif call == "write":
                used_s = dict.fromkeys(names, now_s) | used_s
            assert store.by_use() == used_s

    def test_what_was_read_outlives_what_was_written_with_it(self):
        store = store_of(self.kind, math.inf)
        store.write([1, 2], 0.0)
        store.read([1, 2], 3.0)
        assert store.probe([1, 2], 12.0) == 2
        assert store.probe([1, 2], 13.0) == 0
        assert store.evicted == 2


def test_every_kind_in_a_profile_exists():
    assert set(STORES) == set(hardware.EVICTIONS)
    assert {profile.eviction for profile in hardware.STORES.values()} <= set(STORES)
    with pytest.raises(ValueError, match=r"unknown store eviction 'x': known are none, lru, "):
        make_store("x", 1, 1, 1, 0)
