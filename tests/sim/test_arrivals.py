"""When requests arrive: by the clock, after an answer, after a round, so many at once; and what is kept of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simpy import Environment

from hicache_ref.drive.arrivals import Arrivals
from hicache_sim.run import SimClock
from workloads.request import Request

from .world import request


class Served:
    """Requests that take a while each, and when each arrived and ended."""

    def __init__(
        self,
        requests: Iterable[Request],
        takes: Callable[[int], float | None] = lambda number: 1.0,
        linked: bool = False,
        max_parallel: int | None = None,
    ) -> None:
        """`takes`: seconds; None: it ends while it arrives, as one does that is rejected."""
        self.env = Environment()
        self.begins: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.sent: dict[int, float] = {}
        self.live = self.most_live = self.read = self.most_kept = 0
        self._takes = takes
        self.arrivals = Arrivals(SimClock(self.env), self._counted(requests), self._arrive, linked, max_parallel)

    def run(self) -> Served:
        self.arrivals.start()
        self.env.run()
        assert self.live == 0
        return self

    def _counted(self, requests: Iterable[Request]) -> Iterable[Request]:
        for each in requests:
            self.read += 1
            yield each

    def _arrive(self, each: Request) -> None:
        assert each.id not in self.begins
        self.begins[each.id], self.sent[each.id] = self.env.now, each.arrival_s
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        self.most_kept = max(self.most_kept, kept(self.arrivals))
        seconds = self._takes(each.id)
        if seconds is None:
            self._end(each)
        else:
            self.env.timeout(seconds).callbacks.append(lambda _: self._end(each))

    def _end(self, each: Request) -> None:
        self.live -= 1
        self.ends[each.id] = self.env.now
        self.arrivals.ended(each.id, each.wave)


def kept(arrivals: Arrivals) -> int:
    """Entries in all that grows, but for the 8 bytes a request."""
    sizes = 0
    for name, value in vars(arrivals).items():
        if isinstance(value, dict):
            sizes += sum(len(each) if isinstance(each, list) else 1 for each in value.values())
        elif hasattr(value, "__len__") and name != "_ended_s":
            sizes += len(value)
    return sizes


def ask(number: int, at_s: float = 0.0, **more) -> Request:
    return request(number, at_s, 1000 * number, 8, 2, **more)


def test_by_the_clock_and_read_one_ahead():
    served = Served(ask(number, number * 2.0) for number in range(50))
    served.arrivals.start()
    for number in range(50):
        served.env.run(until=number * 2.0 + 1.5)
        assert served.begins == {each: each * 2.0 for each in range(number + 1)}
        assert served.read == min(number + 2, 50)
    assert served.most_kept == 0


def test_ties_arrive_in_the_order_of_the_workload():
    served = Served([ask(3, 1.0), ask(1, 1.0), ask(2, 1.0)]).run()
    assert list(served.begins) == [3, 1, 2]


def test_open_loop_waits_for_nobody():
    served = Served([ask(0), ask(1, 0.0, parent=0, think_s=9.0), ask(2, 0.0, wave=4)]).run()
    assert set(served.begins.values()) == {0.0}


def test_a_turn_follows_the_answer():
    served = Served([ask(0), ask(1, 0.5, parent=0, think_s=2.0), ask(2, 0.0, parent=1)], linked=True).run()
    assert served.begins == {0: 0.0, 1: 3.0, 2: 4.0}
    assert served.sent == served.begins


def test_a_turn_is_never_early():
    served = Served([ask(0), ask(1, 7.0, parent=0, think_s=2.0)], linked=True).run()
    assert served.begins[1] == 7.0


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_all_that_follow_one_answer_come(after):
    """Three turns of one parent; the last `after` of them are read when it has ended."""
    first = [ask(at, 0.0, parent=0, think_s=float(at)) for at in range(1, 4 - after)]
    rest = [ask(at, 9.0, parent=0, think_s=float(at)) for at in range(4 - after, 4)]
    served = Served([ask(0), *first, ask(9, 5.0), *rest], linked=True).run()
    assert served.begins == {0: 0.0, 9: 5.0} | {each.id: 1.0 + each.id for each in first} | {
        each.id: 9.0 for each in rest
    }
    assert served.arrivals.waiting == 0


def test_a_round_waits_for_the_one_before():
    """Two sessions of three turns, the second a long time after the first; its first turn takes longest."""
    turns = [
        ask(0),
        ask(1, 0.0, parent=0, wave=1),
        ask(2, 0.0, parent=1, wave=2),
        ask(3, 10.0),
        ask(4, 10.0, parent=3, wave=1),
        ask(5, 10.0, parent=4, wave=2),
    ]
    served = Served(turns, lambda number: 5.0 if number == 3 else 1.0, linked=True).run()
    assert served.begins == {0: 0.0, 3: 10.0, 1: 15.0, 4: 15.0, 2: 16.0, 5: 16.0}


def test_so_many_at_once():
    served = Served((ask(number) for number in range(10)), max_parallel=3).run()
    assert served.most_live == 3
    assert [served.begins[number] for number in range(10)] == [float(number // 3) for number in range(10)]
    assert served.sent == served.begins  # latency counts from when a request is sent


def test_a_round_of_so_many_at_once():
    turns = [
        ask(10 * wave + at, parent=10 * (wave - 1) + at if wave else None, wave=wave)
        for at in range(4)
        for wave in range(2)
    ]
    served = Served(turns, linked=True, max_parallel=2).run()
    assert served.most_live == 2
    assert [served.begins[number] for number in (0, 1, 2, 3)] == [0.0, 0.0, 1.0, 1.0]
    assert sorted(served.begins[number] for number in (10, 11, 12, 13)) == [2.0, 2.0, 3.0, 3.0]


def test_thousands_that_are_turned_away_do_not_nest():
    served = Served(
        (ask(number) for number in range(5000)), lambda number: None if number else 1.0, max_parallel=1
    ).run()
    assert list(served.begins) == list(range(5000))


def test_a_chain_of_thousands_that_are_turned_away_does_not_nest():
    turns = [ask(number, parent=number - 1 if number else None) for number in range(3000)]
    served = Served(turns, lambda number: None, linked=True).run()
    assert len(served.ends) == 3000


def test_what_is_over_is_forgotten():
    """A hundred thousand sessions of two turns, five hundred at a time: only those are kept."""
    turns = (
        ask(number, number // 2 * 0.01, parent=number - 1 if number % 2 else None, think_s=0.5)
        for number in range(100_000)
    )
    served = Served(turns, lambda number: 1.0, linked=True).run()
    assert len(served.ends) == 100_000
    assert served.most_kept < 2000


@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), sessions=st.integers(1, 8), waves=st.booleans(), clocked=st.booleans())
def test_starts_are_the_latest_of_what_they_wait_for(seed, sessions, waves, clocked):
    """Sessions that branch, with rounds or without, against the rule in the text."""
    rng = random.Random(seed)
    turns: list[Request] = []
    start_s = 0.0
    for _ in range(sessions):
        start_s += rng.choice([0.0, 0.5, 4.0])
        first = len(turns)
        for at in range(rng.randint(1, 5)):
            parent = None if at == 0 else rng.randrange(first, len(turns))
            wave = (0 if parent is None else turns[parent].wave + 1) if waves else 0
            earliest_s = (
                start_s if parent is None else turns[parent].arrival_s + (rng.choice([0.0, 2.0]) if clocked else 0.0)
            )
            turns.append(ask(len(turns), earliest_s, parent=parent, think_s=rng.choice([0.0, 0.25, 3.0]), wave=wave))
    takes = [rng.choice([0.25, 1.0, 2.5]) for _ in turns]
    given_s = [each.arrival_s for each in turns]
    stream = sorted(turns, key=lambda each: (each.arrival_s, each.id))
    served = Served(stream, takes.__getitem__, linked=True).run()
    for each in turns:
        waits = [given_s[each.id]]
        if each.parent is not None:
            waits.append(served.ends[each.parent] + each.think_s)
        waits += [served.ends[other.id] for other in turns if other.wave < each.wave]
        assert served.begins[each.id] == pytest.approx(max(waits))
