"""Planes that ranks agree on, ranks being threads here: the same rounds everywhere, and who waits for whom."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import Pipe
from queue import SimpleQueue
from random import Random
from typing import Any

import pytest

from hicache_ref.control.log import Fingerprint
from hicache_ref.control.types import Cancel, Completion, Op, OpKind, Progress, Report
from hicache_ref.data.plane import Failure
from hicache_ref.plane import Capabilities
from hicache_ref.ranks import planes
from hicache_ref.ranks.council import Council
from hicache_ref.ranks.follower import Wire
from hicache_ref.ranks.planes import FollowingPlane, LeadingPlane
from hicache_ref.run.clock import WallClock
from hicache_ref.run.driver import RunFailed


class ToldPlane:
    """Reports what a test tells it to."""

    capabilities = Capabilities(1, 1, 1, True)
    in_flight = 0

    def __init__(self) -> None:
        self.errors: list[Failure] = []
        self.submitted: list[int] = []
        self._news = threading.Condition()
        self._reports: list[Report] = []

    def tell(self, report: Report) -> None:
        with self._news:
            self._reports.append(report)
            self._news.notify_all()

    def submit(self, op: Op) -> None:
        self.submitted.append(op.id)

    def cancel(self, op_id: int) -> None:
        self.submitted.append(-op_id)

    def poll(self) -> list[Report]:
        with self._news:
            reports, self._reports = self._reports, []
        return reports

    def wait(self, timeout_s: float | None = None) -> bool:
        with self._news:
            return self._news.wait_for(lambda: bool(self._reports), timeout_s)


class Table:
    """Satisfies `planes.Peers`; rounds go into a queue for each follower."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.news = threading.Condition()
        self.council = Council(size, lambda rank: f"rank {rank}")
        self.rounds: dict[int, SimpleQueue] = {rank: SimpleQueue() for rank in range(1, size)}

    def send_all(self, name: str, *what: Any) -> None:
        for queue in self.rounds.values():
            queue.put(what)

    def wait_for(self, what, timeout_s=None) -> bool:
        so = self.news.wait_for(lambda: self.council.failure or what(), timeout_s)
        if self.council.failure:
            raise RunFailed(self.council.failure)
        return bool(so)


class Seated:
    """Satisfies `planes.Wire`."""

    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank = table, rank

    def send(self, name: str, *what: Any) -> None:
        with self._table.news:
            self._table.council.hear(self._rank, name, *what)
            self._table.news.notify_all()

    def round(self, timeout_s: float) -> tuple[float, list[Report]]:
        return self._table.rounds[self._rank].get(timeout=10.0)


class World:
    """`size` ranks around a table, all ready. `prints[rank]`: what it has decided."""

    def __init__(self, size: int) -> None:
        self.table = Table(size)
        self.own = [ToldPlane() for _ in range(size)]
        self.prints = [Fingerprint() for _ in range(size)]
        self.real = WallClock()
        followers = [FollowingPlane(self.own[r], self.prints[r], Seated(self.table, r)) for r in range(1, size)]
        self.agreed = [LeadingPlane(self.own[0], self.prints[0], self.table, self.real), *followers]
        self._open = ExitStack()

    def __enter__(self) -> World:
        for rank in self.table.rounds:
            self.table.council.hear(rank, "mark", 0, self.prints[rank].hexdigest())
        for plane in self.agreed:
            self._open.enter_context(plane).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def op(number: int) -> Op:
    return Op(number, OpKind.FETCH, 4)


def rounds(plane: LeadingPlane | FollowingPlane, count: int, timeout_s: float = 0.0) -> None:
    for _ in range(count):
        plane.wait(timeout_s)


@pytest.mark.parametrize("seed", range(3))
def test_every_rank_sees_the_same_at_the_same_time(seed):
    """Each rank's plane is done in an order and at times of its own."""
    size, count = 3, 20

    def own_plane(rank: int) -> None:
        chance = Random(10 * seed + rank)
        for number in chance.sample(range(count), count):
            time.sleep(0.002 * chance.random())
            world.own[rank].tell(Progress(number, chance.randrange(2)))
            world.own[rank].tell(Completion(number, chance.randrange(1, 5)))

    def loop(rank: int) -> list:
        plane, seen = world.agreed[rank], []
        for number in range(count):
            plane.submit(op(number))
        while plane.in_flight:
            news = plane.wait(0.005)
            seen.append((plane.clock.now_s(), news, plane.poll()))
        return seen

    with World(size) as world, ThreadPoolExecutor(2 * size) as threads:
        loops = [threads.submit(loop, rank) for rank in range(size)]
        list(threads.map(own_plane, range(size)))
        seen = [each.result(20.0) for each in loops]
    assert seen[0] == seen[1] == seen[2]
    ended = [report.op_id for _, _, reports in seen[0] for report in reports if report.ends]
    assert sorted(ended) == list(range(count))
    times = [now_s for now_s, _, _ in seen[0]]
    assert times == sorted(times)


def test_time_stands_still_between_rounds():
    with World(2) as world, ThreadPoolExecutor(1) as threads:
        other = threads.submit(rounds, world.agreed[1], 2)
        assert not world.agreed[0].wait(0.0)
        now_s = world.agreed[0].clock.now_s()
        time.sleep(0.03)
        assert world.agreed[0].clock.now_s() == now_s
        # Due 0.02 s after the round, which has passed.
        before_s = time.monotonic()
        assert not world.agreed[0].wait(0.02)
        assert time.monotonic() - before_s < 0.02
        assert world.agreed[0].clock.now_s() >= now_s + 0.03
        other.result(5.0)


def test_what_was_agreed_on_is_polled_before_the_next_round():
    with World(2) as world:
        for each in world.own:
            each.tell(Completion(1, 4))
        world.agreed[0].submit(op(1))
        assert world.agreed[0].wait(5.0)
        assert world.agreed[0].wait(5.0), "nothing was polled: no new round"
        assert world.table.rounds[1].qsize() == 1
        assert world.agreed[0].in_flight == 1
        assert world.agreed[0].poll() == [Completion(1, 4)]
        assert world.agreed[0].in_flight == 0


def test_operations_and_cancels_go_to_the_ranks_own_plane():
    with World(2) as world:
        world.agreed[1].submit(op(7))
        world.agreed[1].cancel(7)
        assert world.own[1].submitted == [7, -7]


def test_a_batch_that_fails_on_one_rank_ends_the_run_at_once():
    """Rank 0 has heard nothing of its own batch yet, and may never."""
    with World(3) as world:
        world.own[2].errors.append(Failure(5, OpKind.COMPUTE, "ValueError: bad luck"))
        world.own[2].tell(Completion(5, 0, True))
        with pytest.raises(RunFailed, match=r"^rank 2: COMPUTE 5 has failed: ValueError: bad luck$"):
            world.agreed[0].wait(5.0)


def test_a_fetch_that_fails_ends_nothing():
    with World(2) as world:
        world.own[1].errors.append(Failure(5, OpKind.FETCH, "the store"))
        world.own[1].tell(Completion(5, 1, True))
        world.own[0].tell(Completion(5, 3))
        assert world.agreed[0].wait(5.0)
        assert world.agreed[0].poll() == [Completion(5, 1, True)]


def test_ranks_that_decide_otherwise_are_found(monkeypatch):
    monkeypatch.setattr(planes, "MARK_ROUNDS", 2)
    with World(2) as world, ThreadPoolExecutor(1) as threads:
        other = threads.submit(rounds, world.agreed[1], 2)
        rounds(world.agreed[0], 2)
        other.result(5.0)
        world.prints[0].add(Cancel(2))
        world.prints[1].add(Cancel(3))
        threads.submit(world.agreed[1].wait)
        with pytest.raises(RunFailed, match="rank 1: has decided otherwise than rank 0 by round 2"):
            rounds(world.agreed[0], 1000, 0.001)
        world.table.send_all("round", 0.0, [])  # lets go of the other


def test_a_rank_that_takes_no_step_is_waited_for_and_then_named(monkeypatch):
    for name, value in (("MARK_ROUNDS", 1), ("MOST_AHEAD", 3), ("SILENCE_S", 0.05)):
        monkeypatch.setattr(planes, name, value)
    with World(2) as world:
        with pytest.raises(RunFailed, match=r"rank 1: has not taken a step for 0.05 s"):
            rounds(world.agreed[0], 10)
        assert world.table.rounds[1].qsize() == 4


def test_a_silent_rank_0_is_not_waited_for_for_ever():
    ours, theirs = Pipe()
    with pytest.raises(RunFailed, match=r"rank 0 has been silent for 0.02 s"):
        Wire(theirs).round(0.02)
    ours.send(("round", 1.5, []))
    assert Wire(theirs).round(1.0) == (1.5, [])
    ours.close()
    theirs.close()
