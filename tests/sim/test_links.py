"""Links and streams: fair shares against an exact reference, bytes conserved, heads take nothing, jobs in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simpy import Environment

from hicache_sim.agenda import Agenda, Call
from hicache_sim.links import Fabric, Flow, Job, Link, Path, Stream


@dataclass
class Sent:
    """A flow of the reference. Whole numbers, so that all times are exact fractions."""

    path: list[tuple[int, int]]
    start: int
    head: int
    size: int
    left: Fraction = Fraction(0)
    ended: Fraction | None = None
    rate: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        self.left = Fraction(self.size)

    def moves(self, now: Fraction) -> bool:
        return self.ended is None and now >= self.start + self.head


@dataclass
class Reference:
    """Links 0 and 1 are partners, which no flow crosses both; from one change to the next all rates are constant."""

    alone: list[int]
    shared: list[int]
    flows: list[Sent] = field(default_factory=list)

    def run(self) -> None:
        now = Fraction(0)
        while any(flow.ended is None for flow in self.flows):
            self.end_the_empty(now)
            moving = [flow for flow in self.flows if flow.moves(now)]
            self.fill(moving, self.capacities(moving))
            begins = [Fraction(flow.start + flow.head) for flow in self.flows if flow.start + flow.head > now]
            changes = begins + [now + flow.left / flow.rate for flow in moving]
            if not changes:
                return
            then = min(changes)
            for flow in moving:
                flow.left -= flow.rate * (then - now)
            now = then

    def end_the_empty(self, now: Fraction) -> None:
        for flow in self.flows:
            if flow.moves(now) and flow.left == 0:
                flow.ended = now

    def capacities(self, moving: list[Sent]) -> list[Fraction]:
        """A partner is busy when something moves on it: heads are not."""
        busy = {link for flow in moving for link, _ in flow.path}
        partner = {0: 1, 1: 0}
        halved = [partner.get(link) in busy for link in range(len(self.alone))]
        return [Fraction(b if half else a) for a, b, half in zip(self.alone, self.shared, halved, strict=True)]

    def fill(self, flows: list[Sent], room: list[Fraction]) -> None:
        """Water filling: all rates rise together; who meets a full link stays where he is."""
        for flow in flows:
            flow.rate = Fraction(0)
        rising = list(flows)
        while rising:
            weight = [
                Fraction(sum(w for flow in rising for at, w in flow.path if at == link)) for link in range(len(room))
            ]
            rise = min(room[link] / weight[link] for link in range(len(room)) if weight[link])
            for flow in rising:
                flow.rate += rise
            room = [left - rise * w for left, w in zip(room, weight, strict=True)]
            rising = [flow for flow in rising if all(room[link] > 0 for link, _ in flow.path)]


class Told(Flow):
    """A flow that tells of its end."""

    def __init__(self, legs: Sequence[tuple[Link, float]], done: Callable[[], None]) -> None:
        super().__init__(Path(legs))
        self._done = done

    def over(self) -> None:
        self._done()


def fabric_ends(reference: Reference) -> tuple[list[float], list[Link]]:
    """The same flows on the fabric: when each ended, and the links afterwards."""
    env = Environment()
    fabric = Fabric(Agenda(env))
    links = [Link(str(at), *rates) for at, rates in enumerate(zip(reference.alone, reference.shared, strict=True))]
    links[0].partner, links[1].partner = links[1], links[0]
    ends = [-1.0] * len(reference.flows)

    def send(number: int, flow: Sent):
        yield env.timeout(flow.start)
        path = tuple((links[link], float(weight)) for link, weight in flow.path)

        def done() -> None:
            assert ends[number] < 0
            ends[number] = env.now

        fabric.send(Told(path, done), float(flow.head), float(flow.size))

    for number, flow in enumerate(reference.flows):
        env.process(send(number, flow))
    env.run()
    return ends, links


paths = st.sampled_from([[0], [1], [2], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3], [0, 2, 3], [1, 2, 3]]).flatmap(
    lambda links: st.tuples(*(st.tuples(st.just(link), st.sampled_from([1, 2, 5])) for link in links)).map(list)
)
sent = st.builds(Sent, paths, st.integers(0, 20), st.integers(0, 10), st.integers(0, 40_000))
machines = st.tuples(st.lists(st.integers(200, 4000), min_size=4, max_size=4), st.integers(1, 150), st.integers(1, 150))


@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(machine=machines, flows=st.lists(sent, min_size=1, max_size=7))
def test_shares_are_max_min_fair(machine, flows):
    alone, less, less_too = machine
    shared = [alone[0] - less + 1, alone[1] - less_too + 1, *alone[2:]]
    reference = Reference(alone, shared, flows)
    reference.run()
    ends, links = fabric_ends(reference)
    assert ends == pytest.approx([float(flow.ended) for flow in flows], rel=1e-9, abs=1e-6)
    for at, link in enumerate(links):
        carried = sum(flow.size * weight for flow in flows for number, weight in flow.path if number == at)
        assert link.moved_bytes == pytest.approx(carried, rel=1e-9, abs=0.1)


def run(*sends: tuple[float, tuple[tuple[Link, float], ...], float, float]) -> list[float]:
    """Ends of flows given as (start, path, head, size)."""
    env = Environment()
    fabric = Fabric(Agenda(env))
    ends = [0.0] * len(sends)

    def send(number, start, path, head, size):
        yield env.timeout(start)
        fabric.send(Told(path, lambda: ends.__setitem__(number, env.now)), head, size)

    for number, each in enumerate(sends):
        env.process(send(number, *each))
    env.run()
    return ends


def pcie() -> tuple[Link, Link]:
    up, down = Link("up", 100.0, 60.0), Link("down", 100.0, 60.0)
    up.partner, down.partner = down, up
    return up, down


def test_a_flow_alone_takes_its_head_and_its_bytes_and_one_event():
    env = Environment()
    link, ends = Link("link", 50.0), []
    Fabric(Agenda(env)).send(Told(((link, 1.0),), lambda: ends.append(env.now)), 0.25, 1000.0)
    env.run()
    assert ends == [0.25 + 1000.0 / 50.0]
    assert link.moved_bytes == 1000.0
    assert next(env._eid) == 1


def test_flows_that_do_not_hold_each_other_up_are_an_event_each():
    """A wide link they share does not count: nobody is slower for it."""
    env = Environment()
    wide, one, two, ends = Link("wide", 1000.0), Link("one", 50.0), Link("two", 40.0), []
    agenda = Agenda(env)
    fabric = Fabric(agenda)

    def look() -> None:
        fabric.advance()
        assert (one.moved_bytes, two.moved_bytes, wide.moved_bytes) == (100.0, 160.0, 520.0)

    Call(agenda, 4.5, look)
    for link, size in ((one, 100.0), (two, 400.0)):
        fabric.send(Told(((link, 1.0), (wide, 2.0)), lambda: ends.append(env.now)), 0.5, size)
    env.run()
    assert ends == [2.5, 10.5]
    assert (two.moved_bytes, wide.moved_bytes) == (400.0, 1000.0)
    assert next(env._eid) == 3


def test_a_short_link_is_shared_only_while_it_is_short():
    wide, one, two = Link("wide", 60.0), Link("one", 50.0), Link("two", 40.0)
    ends = run((0.0, ((one, 1.0), (wide, 1.0)), 0.0, 130.0), (1.0, ((two, 1.0), (wide, 1.0)), 1.0, 120.0))
    # Alone at 50 for 2 s, then 30 each for 1 s until the first is over, then 40.
    assert ends == pytest.approx([3.0, 5.25])


def test_the_tightest_link_decides_and_weights_count():
    wide, tight = Link("wide", 1000.0), Link("tight", 100.0)
    assert run((0.0, ((wide, 1.0), (tight, 1.0)), 0.0, 500.0)) == [5.0]
    assert run((0.0, ((wide, 1.0), (tight, 4.0)), 0.0, 500.0)) == [20.0]
    assert run((0.0, ((wide, 40.0), (tight, 1.0)), 0.0, 500.0)) == [20.0]


def test_two_share_and_the_second_has_it_all_when_the_first_is_over():
    link = Link("link", 100.0)
    assert run((0.0, ((link, 1.0),), 0.0, 500.0), (0.0, ((link, 1.0),), 0.0, 1000.0)) == [10.0, 15.0]


def test_nobody_holds_back_who_is_bound_elsewhere():
    """One of two flows on a wide link is bound to 10 by another: the rest of the wide one is the other's."""
    wide, narrow = Link("wide", 100.0), Link("narrow", 10.0)
    ends = run((0.0, ((wide, 1.0), (narrow, 1.0)), 0.0, 100.0), (0.0, ((wide, 1.0),), 0.0, 900.0))
    assert ends == [10.0, 10.0]


def test_both_directions_at_once_are_slower():
    up, down = pcie()
    assert run((0.0, ((up, 1.0),), 0.0, 600.0)) == [6.0]
    assert run((0.0, ((up, 1.0),), 0.0, 600.0), (0.0, ((down, 1.0),), 0.0, 600.0)) == [10.0, 10.0]
    # 2 s alone, 5 s beside the other, and the rest alone again.
    assert run((0.0, ((up, 1.0),), 0.0, 600.0), (2.0, ((down, 1.0),), 0.0, 300.0)) == pytest.approx([8.0, 7.0])


def test_a_head_takes_no_share_of_its_link_nor_of_the_partners():
    link = Link("link", 100.0)
    assert run((0.0, ((link, 1.0),), 0.0, 500.0), (0.0, ((link, 1.0),), 5.0, 100.0)) == [5.0, 6.0]
    up, down = pcie()
    assert run((0.0, ((up, 1.0),), 0.0, 500.0), (0.0, ((down, 1.0),), 5.0, 100.0)) == pytest.approx([5.0, 6.0])


def test_nothing_to_move_takes_its_head_only():
    link = Link("link", 100.0)
    assert run((1.0, ((link, 1.0),), 0.5, 0.0), (1.0, ((link, 1.0),), 0.0, 0.0)) == [1.5, 1.0]


def test_late_in_a_long_run_small_flows_still_end():
    """After a year a clock reading is exact to some nanoseconds: flows shorter than that end all the same."""
    year_s = 3.2e7
    link = Link("link", 50e9)
    ends = run(*((year_s, ((link, 1.0),), 1e-12 * at, 64.0 * at) for at in range(5)))
    assert ends == pytest.approx([year_s] * 5, abs=1e-6)


def test_an_end_may_start_the_next():
    env = Environment()
    fabric, link, ends = Fabric(Agenda(env)), Link("link", 100.0), []

    def again() -> None:
        ends.append(env.now)
        if len(ends) < 4:
            fabric.send(flow, 0.0, 100.0)

    flow = Told(((link, 1.0),), again)
    fabric.send(flow, 0.0, 100.0)
    fabric.send(Flow(Path(((link, 1.0),))), 0.0, 200.0)
    env.run()
    assert ends == pytest.approx([2.0, 4.0, 5.0, 6.0])


def test_a_stream_does_one_thing_after_the_other():
    env = Environment()
    stream, story = Stream(Agenda(env)), []

    class Pause(Job):
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds

        def start(self) -> None:
            story.append((env.now, f"{self.name} begins"))
            Call(Agenda(env), self.seconds, self.end)

        def end(self) -> None:
            story.append((env.now, f"{self.name} ends"))
            stream.next()

    for name, seconds in (("a", 2.0), ("b", 1.0), ("c", 0.0)):
        stream.give(Pause(name, seconds))
    Call(Agenda(env), 10.0, lambda: stream.give(Pause("d", 1.0)))
    env.run()
    assert story == [
        (0.0, "a begins"),
        (2.0, "a ends"),
        (2.0, "b begins"),
        (3.0, "b ends"),
        (3.0, "c begins"),
        (3.0, "c ends"),
        (10.0, "d begins"),
        (11.0, "d ends"),
    ]
    assert stream.busy_s == 4.0
