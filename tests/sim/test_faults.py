"""Faults of a store: each kind, its window, several at once, and chance that a seed decides."""

from __future__ import annotations

import math

import pytest

from hicache_sim.faults import FAULTS, FaultError, FaultyStore, Verdict, parse_fault
from hicache_sim.hardware import load_store
from hicache_sim.stores import make_store

PROFILE = load_store("mooncake-4x200-roce")
NAMES = list(range(100))
CALLS = ("probe", "read", "write")


def store_with(*faults: str, kind: str = "none", seed: int = 0, held: int = 100) -> FaultyStore:
    """A store that holds the first pages, and has these faults ahead."""
    store = make_store(kind, 1000, 1.0, 0.9, 5.0)
    store.write(NAMES[:held], 0.0)
    return FaultyStore(store, [parse_fault(text, PROFILE, seed) for text in faults])


def test_without_faults_it_is_the_store():
    faulty = store_with(held=50)
    assert faulty.probe(NAMES, 1.0) == faulty.read(NAMES, 1.0) == Verdict(50)
    assert faulty.write(NAMES, 1.0) == Verdict(100)
    assert faulty.failed_calls == 0


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_its_window(kind):
    """It begins at its start, and at its end it is over; but an owner's loss is as long as the store believes in it."""
    value = "0.5" if kind == "lose" else "1" if kind == "partial" else "2"
    end_s = 100.0 + PROFILE.client_ttl_s if kind == "owner-lost" else 130.0
    well, calls = (Verdict(100), Verdict(100), Verdict(100)), CALLS

    def at(time_s: float) -> tuple[Verdict, ...]:
        faulty = store_with(f"{kind}:100:30:{value}")
        return tuple(getattr(faulty, call)(NAMES, time_s) for call in calls)

    assert at(math.nextafter(100.0, 0.0)) == well
    assert at(100.0) != well
    assert at(math.nextafter(end_s, 0.0)) != well
    if kind not in ("lose", "owner-lost"):  # what these have taken does not come back
        assert at(end_s) == well


def test_slow_stretches_everything():
    faulty = store_with("slow:0:10:5", held=60)
    assert [getattr(faulty, call)(NAMES, 1.0) for call in CALLS] == [
        Verdict(60, 5.0),
        Verdict(60, 5.0),
        Verdict(100, 5.0),
    ]


def test_an_outage_fails_every_call_after_the_time_it_takes_to_notice():
    faulty = store_with("outage:0:10", held=60)
    for call in CALLS:
        assert getattr(faulty, call)(NAMES, 1.0) == Verdict(0, 1.0, PROFILE.master_dead_s)
    assert faulty.failed_calls == 3
    assert len(faulty.store.held) == 60
    assert faulty.read(NAMES, 10.0) == Verdict(60)


def test_a_lost_owner_is_still_believed_in_and_then_all_is_gone():
    faulty = store_with("owner-lost:100:1")
    assert faulty.probe(NAMES, 101.0) == Verdict(100)
    assert faulty.read(NAMES, 101.0) == Verdict(0, 1.0, PROFILE.owner_dead_s)
    assert faulty.write([500], 101.0).fails_after_s == PROFILE.owner_dead_s
    after_s = 100.0 + PROFILE.client_ttl_s
    assert faulty.probe(NAMES, after_s) == Verdict(0)
    assert faulty.write(NAMES, after_s) == Verdict(100)
    assert faulty.read(NAMES, after_s) == Verdict(100)


def test_pages_unused_for_longest_are_lost_once():
    faulty = store_with("lose:50:100:0.3", kind="lru")
    faulty.read(NAMES[:20], 10.0)
    assert faulty.probe(NAMES[20:], 60.0) == Verdict(0)
    assert faulty.probe(NAMES[:20], 60.0) == Verdict(20)
    assert faulty.probe(NAMES[50:], 60.0) == Verdict(50)
    assert len(faulty.store.held) == 70
    faulty.write([700], 70.0)
    assert len(faulty.store.held) == 71


def test_writes_are_refused_and_the_rest_works():
    faulty = store_with("refuse:0:10", held=60)
    assert faulty.write(NAMES, 1.0) == Verdict(0)
    assert faulty.read(NAMES, 1.0) == Verdict(60)
    assert len(faulty.store.held) == 60


def test_partial_reads_end_at_the_first_bad_page():
    always, never = store_with("partial:0:10:1"), store_with("partial:0:10:0")
    assert always.read(NAMES, 1.0) == Verdict(0)
    assert never.read(NAMES, 1.0) == Verdict(100)
    assert always.probe(NAMES, 1.0) == Verdict(100)
    # One page in 20 is bad: the first of them is on average the 20th, so 19 come before it.
    faulty = store_with("partial:0:1e6:0.05")
    reads = [faulty.read(NAMES, float(at)).pages for at in range(2000)]
    assert sum(reads) / len(reads) == pytest.approx(19 * (1 - 0.95**100), rel=0.1)


def test_chance_is_the_seeds():
    def reads(seed: int, *faults: str) -> list[int]:
        faulty = store_with(*faults, seed=seed)
        return [faulty.read(NAMES, float(at)).pages for at in range(50)]

    assert reads(1, "partial:0:100:0.1") == reads(1, "partial:0:100:0.1")
    assert reads(1, "partial:0:100:0.1") != reads(2, "partial:0:100:0.1")
    # Another fault beside it draws from a generator of its own.
    assert reads(1, "partial:0:100:0.1", "slow:0:100:3") == reads(1, "partial:0:100:0.1")


def test_several_at_once():
    """Times multiply, the fewest pages count, and what fails fails; given in any order."""
    slow = store_with("slow:0:100:2", "slow:5:10:3", "refuse:5:10")
    assert slow.write([900], 1.0) == Verdict(1, 2.0)
    assert slow.write([901], 6.0) == Verdict(0, 6.0)
    assert slow.read(NAMES, 6.0) == Verdict(100, 6.0)
    assert slow.read(NAMES, 15.0) == Verdict(100, 2.0)
    for order in (("slow:0:100:2", "outage:5:10"), ("outage:5:10", "slow:0:100:2")):
        both = store_with(*order)
        assert both.read(NAMES, 6.0) == Verdict(0, 1.0, PROFILE.master_dead_s)


def test_windows_that_nobody_looks_into_happen_all_the_same():
    faulty = store_with("lose:10:1:0.5", "owner-lost:20:1", "slow:1:2:9")
    assert faulty.probe(NAMES, 15.0) == Verdict(0)
    assert len(faulty.store.held) == 50
    assert faulty.probe(NAMES[50:], 20.0 + PROFILE.client_ttl_s) == Verdict(0)
    assert not faulty.store.held


@pytest.mark.parametrize("kind", ["lru", "lru_page_table", "watermark_lease", "ttl"])
@pytest.mark.parametrize("fault", ["outage:0:10", "owner-lost:0:10", "partial:0:10:1", "refuse:0:10"])
def test_a_call_that_fails_is_no_use_of_a_page(kind, fault):
    """No recency, no lease, nothing written."""
    faulty = store_with(fault, kind=kind)
    failed = 0
    for call in CALLS:
        before = list(faulty.store.by_use().items())
        if getattr(faulty, call)([*NAMES, 900], 1.0).pages == 0:
            failed += 1
            assert list(faulty.store.by_use().items()) == before
    assert failed == {"outage": 3, "owner-lost": 2}.get(fault.split(":")[0], 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flood:1:2", "unknown kind 'flood': known are slow, outage, owner-lost, lose, refuse, partial"),
        ("slow", "write KIND:START_S:DURATION_S"),
        ("slow:1", "write KIND:START_S:DURATION_S"),
        ("slow:1:2:3:4", "write KIND:START_S:DURATION_S"),
        ("slow:one:2", "write KIND:START_S:DURATION_S"),
        ("slow:-1:2", "no number may be below 0"),
        ("slow:1:-2", "no number may be below 0"),
        ("slow:1:2:-3", "no number may be below 0"),
        ("slow:nan:2", "no number may be below 0"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(text, words):
    with pytest.raises(FaultError, match=words) as caught:
        parse_fault(text, PROFILE, 0)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"--storage-fault {text}")


def test_for_ever_is_a_duration():
    faulty = store_with("outage:5:inf")
    assert faulty.probe(NAMES, 1e12).fails_after_s is not None
