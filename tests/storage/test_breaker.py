"""When a store is asked, and when not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.data.storage.breaker import Breaker


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def broken(clock: Clock, failures: int = 3) -> Breaker:
    breaker = Breaker(failures, first_wait_s=1.0, longest_wait_s=5.0, clock=clock)
    for _ in range(failures):
        assert breaker.admits()
        breaker.failed()
    return breaker


def test_failures_in_a_row_open_it():
    breaker = Breaker(3, clock=Clock())
    for outcome in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed, breaker.failed):
        assert breaker.admits()
        outcome()
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open"
    assert not breaker.admits()


def test_one_call_tries_after_the_wait():
    clock = Clock()
    breaker = broken(clock)
    clock.now_s = 0.99
    assert not breaker.admits()
    clock.now_s = 1.0
    assert breaker.state == "half-open"
    assert breaker.admits()
    assert not breaker.admits()
    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.admits() and breaker.admits()


def test_waits_double_to_a_limit_and_start_anew_after_success():
    clock = Clock()
    breaker = broken(clock)
    waits = []
    for _ in range(5):
        began_s = clock.now_s
        while not breaker.admits():
            clock.now_s += 0.25
        waits.append(clock.now_s - began_s)
        breaker.failed()
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    clock.now_s += 5.0
    assert breaker.admits()
    breaker.succeeded()
    for _ in range(3):
        breaker.failed()
    clock.now_s += 1.0
    assert breaker.admits()


def test_late_failures_do_not_lengthen_the_wait():
    clock = Clock()
    breaker = broken(clock)
    for _ in range(10):
        breaker.failed()
    clock.now_s = 1.0
    assert breaker.admits()


@given(st.lists(st.sampled_from(["ask", "wait", "yes", "no"]), max_size=60), st.integers(1, 4))
def test_a_dead_store_is_asked_again_and_never_by_two_at_once(steps, failures):
    clock = Clock()
    breaker = Breaker(failures, 1.0, 8.0, clock)
    asking = 0
    for step in steps:
        if step == "wait":
            clock.now_s += 1.0
        elif step == "ask":
            was_closed = breaker.state == "closed"
            if breaker.admits():
                assert was_closed or asking == 0 or breaker.state == "half-open"
                asking += 1
        elif asking:
            asking -= 1
            (breaker.succeeded if step == "yes" else breaker.failed)()
    while asking:
        asking -= 1
        breaker.failed()
    clock.now_s += 8.0
    assert breaker.admits()
