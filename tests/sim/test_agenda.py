"""Alarms: in order of time, priority and asking, beside whatever else SimPy runs, and by either of the two loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simpy import Environment

from hicache_sim.agenda import Agenda, Call

RUNS: list[Callable[[Environment, Agenda], None]] = [lambda env, agenda: env.run(), lambda env, agenda: agenda.run()]
both_loops = pytest.mark.parametrize("run", RUNS, ids=["SimPy's", "ours"])


@both_loops
def test_in_order(run):
    env = Environment()
    agenda, story = Agenda(env), []
    for delay_s, priority, name in ((2.0, 1, "d"), (1.0, 9, "c"), (1.0, 1, "a"), (1.0, 1, "b")):
        Call(agenda, delay_s, lambda name=name: story.append((agenda.now_s, name)), priority)
    run(env, agenda)
    assert story == [(1.0, "a"), (1.0, "b"), (1.0, "c"), (2.0, "d")]
    assert agenda.now_s == env.now == 2.0


@both_loops
def test_an_alarm_may_set_others(run):
    env = Environment()
    agenda, times = Agenda(env), []

    def again() -> None:
        times.append(agenda.now_s)
        if len(times) < 3:
            Call(agenda, 0.5, again)

    Call(agenda, 0.0, again)
    run(env, agenda)
    assert times == [0.0, 0.5, 1.0]


@both_loops
def test_beside_processes(run):
    env = Environment()
    agenda, story = Agenda(env), []

    def process():
        yield env.timeout(1.0)
        story.append(("process", env.now))
        Call(agenda, 1.0, lambda: story.append(("alarm", agenda.now_s)))
        yield env.timeout(3.0)
        story.append(("process", agenda.now_s))

    env.process(process())
    run(env, agenda)
    assert story == [("process", 1.0), ("alarm", 2.0), ("process", 4.0)]
