"""Schedules: speed, spreading of ties, laws of arrival, merging of sessions."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import (
    ARRIVALS,
    SCHEDULES,
    Blocks,
    ClosedLoop,
    OpenLoop,
    Poisson,
    Request,
    Session,
    SessionWorkload,
    Spaced,
    Together,
    TraceError,
    open_trace,
)
from workloads.schedule import interleave, spread_ties

NOTHING = Blocks(np.zeros(0, dtype=np.int64), 1)


def at(arrival_s, number=0, parent=None, think_s=0.0):
    return Request(number, arrival_s, NOTHING, 1, 1, 0, parent=parent, think_s=think_s)


def times(requests):
    return [request.arrival_s for request in requests]


def test_speed_divides_recorded_times(trace_file, mooncake_row):
    trace = open_trace(trace_file([mooncake_row(stamp) for stamp in (0, 3000, 9000)]))
    assert times(trace.requests(OpenLoop(speed=3))) == [0.0, 1.0, 3.0]


def test_ties_are_spread_over_the_gap_to_the_next_instant(trace_file, mooncake_row):
    stamps = [0, 0, 0, 3000, 9000, 9000]
    trace = open_trace(trace_file([mooncake_row(stamp) for stamp in stamps]))
    assert times(trace.requests(OpenLoop(spread=True))) == [0.0, 1.0, 2.0, 3.0, 9.0, 12.0]
    assert times(trace.requests(OpenLoop(speed=3, spread=True))) == pytest.approx([0, 1 / 3, 2 / 3, 1, 3, 4])
    assert times(trace.requests()) == [0, 0, 0, 3, 9, 9]


def test_one_instant_alone_cannot_be_spread():
    assert times(spread_ties([at(5.0), at(5.0)])) == [5.0, 5.0]
    assert times(spread_ties([])) == []


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_spreading_keeps_order_and_moves_nobody_past_the_next_instant(stamps):
    stamps.sort()
    requests = [at(float(stamp), number) for number, stamp in enumerate(stamps)]
    spread = list(spread_ties(requests))
    assert [request.id for request in spread] == list(range(len(stamps)))
    assert all(one.arrival_s <= two.arrival_s for one, two in pairwise(spread))
    assert all(stamp <= request.arrival_s for stamp, request in zip(stamps, spread, strict=True))
    for stamp, request in zip(stamps, spread, strict=True):
        later = [other for other in stamps if other > stamp]
        assert not later or request.arrival_s < later[0]


def test_arrival_laws_never_go_back_and_keep_their_seed():
    for law in (Together(), Poisson(2.0), Spaced(0.1)):
        starts = list(islice(law.starts(), 500))
        assert starts == sorted(starts) == list(islice(law.starts(), 500))
    assert list(islice(Together().starts(), 3)) == [0.0] * 3
    assert list(islice(Spaced(0.5).starts(), 3)) == [0.0, 0.5, 1.0]
    drawn = list(islice(Poisson(2.0, seed=3).starts(), 20_000))
    assert drawn[-1] == pytest.approx(10_000, rel=0.03)
    assert drawn != list(islice(Poisson(2.0, seed=4).starts(), 20_000))


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
def test_bad_numbers(bad):
    for make in (Poisson, Spaced, lambda x: OpenLoop(speed=x), lambda x: ClosedLoop(speed=x)):
        with pytest.raises(TraceError, match="give a number above 0"):
            make(bad)


def test_schedules_and_laws_are_found_by_name():
    assert set(SCHEDULES) == {"open", "closed"}
    assert set(ARRIVALS) == {"together", "poisson", "spaced"}


class Talks(SessionWorkload):
    """Two sessions; in the second, a turn that was sent early follows a slow answer."""

    name, format, verdict, block_tokens = "talks", "generated", "tokens", 64

    def sessions(self):
        yield Session(0.0, [at(0.0, 0), at(10.0, 1, parent=0, think_s=2.0), at(30.0, 2, parent=1, think_s=4.0)])
        yield Session(1.0, [at(0.0, 0), at(20.0, 1, parent=0, think_s=9.0), at(21.0, 2, parent=0, think_s=0.5)])


def shape(requests):
    return [(r.id, r.session, r.arrival_s, r.parent, r.think_s) for r in requests]


def test_open_loop_merges_sessions_by_the_clock():
    assert shape(Talks().requests(OpenLoop())) == [
        (0, 0, 0.0, None, 0.0),
        (1, 1, 1.0, None, 0.0),
        (2, 0, 10.0, None, 0.0),
        (3, 1, 21.0, None, 0.0),
        (4, 1, 22.0, None, 0.0),
        (5, 0, 30.0, None, 0.0),
    ]
    assert times(Talks().requests(OpenLoop(speed=2))) == [0.0, 0.5, 5.0, 10.5, 11.0, 15.0]
    assert times(Talks().requests(OpenLoop(speed=2, arrivals=Together()))) == [0.0, 0.0, 5.0, 10.0, 10.5, 15.0]


def test_closed_loop_starts_at_the_earliest_by_think_times():
    assert shape(Talks().requests(ClosedLoop())) == [
        (0, 0, 0.0, None, 0.0),
        (1, 1, 1.0, None, 0.0),
        (2, 1, 1.5, 1, 0.5),
        (3, 0, 2.0, 0, 2.0),
        (4, 0, 6.0, 3, 4.0),
        (5, 1, 10.0, 1, 9.0),
    ]
    fast = shape(Talks().requests(ClosedLoop(speed=2, arrivals=Spaced(1.0))))
    assert [(arrival, think) for _, _, arrival, _, think in fast] == [
        (0.0, 0.0),
        (1.0, 1.0),
        (1.0, 0.0),
        (1.25, 0.25),
        (3.0, 2.0),
        (5.5, 4.5),
    ]


def test_sessions_are_taken_when_they_are_due():
    taken = []

    def sessions():
        for number in range(10):
            taken.append(number)
            yield Session(float(number), [at(0.0, 0), at(0.5, 1)])

    stream = interleave(sessions())
    for _ in range(3):
        next(stream)
    assert taken == [0, 1, 2]


def test_sessions_that_go_back_are_refused():
    with pytest.raises(TraceError, match=r"session 1 starts at 1.0 s, before the one ahead of it"):
        list(interleave([Session(2.0, [at(2.0)]), Session(1.0, [at(1.0)])]))


def test_empty_sessions_and_no_sessions():
    assert list(interleave([])) == []
    assert len(list(interleave([Session(0.0, []), Session(0.0, [at(0.0)])]))) == 1
