"""The running batch in closed form, against a reference that counts one step at a time."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_ref.control.active import Active
from hicache_ref.control.running import Running

CLIP = 12


@dataclass
class Naive:
    """One request, step by step."""

    id: int
    output: int
    longest: int
    produced: int
    kv: int

    def step(self) -> None:
        self.produced += 1
        self.kv += 1


class Reference:
    """Every answer is a walk over all requests and all steps."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.members: dict[int, Naive] = {}

    def context(self) -> int:
        return sum(each.kv for each in self.members.values())

    def estimated(self) -> int:
        return sum(min(each.longest - each.produced, CLIP) for each in self.members.values())

    def steps_to_end(self) -> int:
        return min(each.output - each.produced for each in self.members.values())

    def needs(self, first: int, last: int) -> dict[int, int]:
        """Pages each request needs before steps first … last - 1."""
        found: dict[int, int] = {}
        for each in self.members.values():
            needed = sum((each.kv + step) % self.page == 0 for step in range(first, last))
            if needed:
                found[each.id] = needed
        return found

    def steps_for(self, pages: int, most: int) -> int:
        return max(steps for steps in range(most + 1) if sum(self.needs(0, steps).values()) <= pages)


def request(number: int, output: int, longest: int, produced: int, kv: int) -> Active:
    active = Active(number, b"", 1, output, 0.0, max_new_tokens=longest)
    active.produced, active.kv_tokens = produced, kv
    return active


def agree(running: Running, naive: Reference, probes: tuple[int, int, int]) -> None:
    """Both give the same answers to every question."""
    first, span, pages = probes
    assert len(running) == len(naive.members)
    assert [each.id for each in running] == list(naive.members)
    assert running.context_tokens == naive.context()
    assert running.estimated_tokens() == naive.estimated()
    for each in running:
        known = naive.members[each.id]
        assert (running.produced(each), running.kv_tokens(each)) == (known.produced, known.kv)
    assert running.pages_for(span) == sum(naive.needs(0, span).values())
    assert {each.id: times for each, times in running.needing(first, first + span)} == naive.needs(first, first + span)
    assert running.steps_for(pages, span) == naive.steps_for(pages, span)
    if naive.members:
        assert running.steps_to_end() == naive.steps_to_end()


moves = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 30), st.integers(0, 6), st.integers(1, 40)),
    st.tuples(st.just("advance"), st.integers(0, 30), st.just(0), st.just(0)),
    st.tuples(st.just("retract"), st.integers(0, 9), st.just(0), st.just(0)),
    st.tuples(st.just("return"), st.integers(0, 9), st.just(0), st.just(0)),
    st.tuples(st.just("sync"), st.integers(0, 9), st.just(0), st.just(0)),
)
probes = st.tuples(st.integers(0, 20), st.integers(0, 40), st.integers(0, 40))


@settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(page=st.sampled_from([1, 2, 3, 8]), story=st.lists(st.tuples(moves, probes), max_size=25))
def test_sums_are_those_of_single_steps(page, story):
    """Requests join, leave, come back; the estimate is clipped; several may end at once, and none ends twice."""
    running, naive = Running(page, CLIP), Reference(page)
    known: dict[int, Active] = {}
    away: list[tuple[Active, Naive]] = []
    for (move, much, extra, kv), looks in story:
        match move:
            case "join":
                number = len(known)
                known[number] = request(number, much, much + extra, 0, kv)
                naive.members[number] = Naive(number, much, much + extra, 0, kv)
                running.join(known[number])
            case "advance" if naive.members:
                steps = min(much, naive.steps_to_end())
                running.advance(steps)
                for each in naive.members.values():
                    for _ in range(steps):
                        each.step()
                over = running.ended()
                ended = [each.id for each in naive.members.values() if each.produced >= each.output]
                assert sorted(each.id for each in over) == sorted(ended)
                for each in over:
                    running.leave(each)
                    assert each.produced == naive.members.pop(each.id).produced
            case "retract" if naive.members:
                number = list(naive.members)[much % len(naive.members)]
                running.leave(known[number])
                away.append((known[number], naive.members.pop(number)))
            case "return" if away:
                active, gone = away.pop(much % len(away))
                assert (active.produced, active.kv_tokens) == (gone.produced, gone.kv)
                # A prefill in between has given it a token, which may have been its last but one.
                if gone.output - gone.produced > 1:
                    active.produced += 1
                    gone.produced += 1
                naive.members[gone.id] = gone
                running.join(active)
            case "sync" if naive.members:
                number = list(naive.members)[much % len(naive.members)]
                running.sync(known[number])
                assert known[number].produced == naive.members[number].produced
        agree(running, naive, looks)


def test_a_request_that_comes_back_ends_once():
    """It was sent back one step before its new end would be its old one, so both ends are remembered."""
    running = Running(1, CLIP)
    returning, other = request(1, 10, 10, 1, 5), request(2, 20, 20, 1, 5)
    running.join(returning)
    running.join(other)
    running.advance(1)
    running.leave(returning)
    running.advance(1)
    returning.produced += 1
    running.join(returning)
    running.advance(running.steps_to_end())
    assert running.ended() == [returning]
