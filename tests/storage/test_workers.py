"""The threads around a store, on clients that raise, hang, answer nonsense or are slow."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hicache_ref.control.types import Completion, Op, OpKind, Progress, Released, Report
from hicache_ref.data.storage.breaker import Breaker
from hicache_ref.data.storage.client import StorageIdentity, StoreFailed
from hicache_ref.data.storage.file import FileClient
from hicache_ref.data.workers import StorageWorkers

from .fakes import FakeHost, ScriptedClient, fill, name_of, names_of, wrong

SOON_S = 10.0
"""Longer than anything here takes, on any machine."""
MOVES = (OpKind.FETCH, OpKind.STORE)


class Bench:
    """Workers under test, and everything they have reported."""

    def __init__(self, client: object, host: FakeHost, **options: object) -> None:
        self.client, self.host = client, host
        self.reports: list[Report] = []
        self.arrived = threading.Condition()
        options.setdefault("breaker", Breaker(failures=10_000))
        self.workers = StorageWorkers(client, host, self._note, **options)
        self.ops = 0

    def _note(self, report: Report) -> None:
        with self.arrived:
            self.reports.append(report)
            self.arrived.notify_all()

    def give(self, kind: OpKind, pages: int = 1, first: int = 0) -> int:
        """An operation on the pages from number `first` on, in as many slots."""
        self.ops += 1
        at, names = np.arange(pages, dtype=np.int64) % self.host.pages, names_of(range(first, first + pages))
        src, dst = (at if kind is OpKind.STORE else None), (at if kind is OpKind.FETCH else None)
        self.workers.submit(Op(self.ops, kind, pages, src, dst, names if kind is not OpKind.CLEAR else ()))
        return self.ops

    def of(self, op_id: int) -> list[Report]:
        return [report for report in self.reports if report.op_id == op_id]

    def wait(self, holds: Callable[[], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(holds, SOON_S), self.reports

    def end(self, op_id: int) -> Completion:
        """The completion of an operation, once there is one."""
        self.wait(lambda: any(report.ends for report in self.of(op_id)))
        return next(report for report in self.of(op_id) if isinstance(report, Completion))

    def check(self) -> None:
        """Every operation has one completion, progress before it only, one release after it if it lingers."""
        for op_id in range(1, self.ops + 1):
            kinds = [type(report) for report in self.of(op_id)]
            assert kinds.count(Completion) == 1, self.of(op_id)
            end = kinds.index(Completion)
            assert all(kind is Progress for kind in kinds[:end])
            assert kinds[end + 1 :] in ([], [Released])
            assert self.of(op_id)[end].lingers or not kinds[end + 1 :]
            good = [report.pages_ok for report in self.of(op_id)[: end + 1]]
            assert good == sorted(good)


class Gate:
    """A script that hangs in calls of one kind until opened."""

    def __init__(self, *calls: str) -> None:
        self.calls = calls
        self.entered, self.opened = threading.Semaphore(0), threading.Event()

    def __call__(self, call: str, names: Sequence[str]) -> int | None:
        if call in self.calls:
            self.entered.release()
            assert self.opened.wait(SOON_S)
        return None

    def wait_until_entered(self) -> None:
        assert self.entered.acquire(timeout=SOON_S)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(script: object = lambda call, names: None, pages: int = 512, **options: object) -> Bench:
        client = ScriptedClient(script) if callable(script) else script
        made.append(Bench(client, FakeHost(pages), **options))
        return made[-1]

    yield make
    for one in made:
        one.workers.close(SOON_S)
        one.check()


# All is well


def test_pages_go_to_a_real_store_and_come_back(bench, tmp_path):
    one = bench(FileClient(StorageIdentity("m"), tmp_path))
    names, at = names_of(range(300)), np.arange(300)
    fill(one.host, names, at)
    assert one.end(one.give(OpKind.STORE, 300)) == Completion(1, 300)
    one.host.memory[:] = 0
    assert one.end(one.give(OpKind.PROBE, 310)) == Completion(2, 300)
    fetch = one.give(OpKind.FETCH, 300)
    assert one.end(fetch) == Completion(3, 300)
    assert one.of(fetch) == [Progress(3, 128), Progress(3, 256), Completion(3, 300)]
    assert wrong(one.host, names, at) == []
    assert one.end(one.give(OpKind.CLEAR, 0)) == Completion(4, 0)
    assert one.end(one.give(OpKind.PROBE, 10)) == Completion(5, 0)
    stats = one.workers.stats()
    fetched = stats["kinds"]["fetch"]
    assert (fetched["ops"], fetched["calls"], fetched["pages"]) == (1, 3, 300)
    assert fetched["bytes"] == 300 * one.host.page_bytes
    assert fetched["seconds"] > 0
    assert (stats["breaker"]["state"], stats["stuck"], stats["client"]["read_pages"]) == ("closed", 0, 300)


@pytest.mark.parametrize("kind", [OpKind.PROBE, *MOVES])
def test_batches_end_at_the_first_that_is_short(bench, kind):
    answers = iter([128, 100])
    one = bench(lambda call, names: next(answers))
    end = one.end(one.give(kind, 400))
    assert end == Completion(1, 228, failed=kind is not OpKind.PROBE)
    assert [pages for _, pages in one.client.calls] == [128, 128]


def test_kinds_do_not_wait_for_each_other(bench):
    gate = Gate("put")
    one = bench(gate)
    store = one.give(OpKind.STORE)
    gate.wait_until_entered()
    assert one.end(one.give(OpKind.FETCH, 3)).pages_ok == 3
    assert one.end(one.give(OpKind.PROBE, 3)).pages_ok == 3
    assert one.of(store) == []
    gate.opened.set()
    assert one.end(store).pages_ok == 1


def test_replicas_leave_storing_to_rank_0(bench):
    client = ScriptedClient(identity=StorageIdentity("m", 1, 2, replicated=True))
    one = bench(client)
    assert one.end(one.give(OpKind.STORE, 300)) == Completion(1, 300)
    assert one.end(one.give(OpKind.CLEAR, 0)) == Completion(2, 0)
    assert client.calls == []
    assert one.end(one.give(OpKind.FETCH, 3)) == Completion(3, 3)
    client.identity = replace(client.identity, tp_rank=0)
    assert one.end(one.give(OpKind.STORE, 300)) == Completion(4, 300)
    assert [call for call, _ in client.calls] == ["get", "put", "put", "put"]


# Clients that fail


def raising(error: BaseException) -> Callable[[str, Sequence[str]], int]:
    def script(call: str, names: Sequence[str]) -> int:
        raise error

    return script


@pytest.mark.parametrize(
    "error", [OSError(5, "io"), TimeoutError(), ValueError("no"), SystemExit(1), KeyboardInterrupt()]
)
@pytest.mark.parametrize("kind", [OpKind.PROBE, *MOVES, OpKind.CLEAR])
def test_whatever_a_client_raises_is_a_completion(bench, kind, error):
    one = bench(raising(error))
    pages = 0 if kind is OpKind.CLEAR else 200
    assert [one.end(one.give(kind, pages)) for _ in range(3)] == [Completion(at, 0, failed=True) for at in (1, 2, 3)]
    assert one.workers.stats()["kinds"][kind.name.lower()]["failures"] == {type(error).__name__: 3}
    one.client.script = lambda call, names: None
    assert one.end(one.give(kind, pages)) == Completion(4, pages)


def test_pages_good_before_a_failure_count(bench):
    def script(call: str, names: Sequence[str]) -> int:
        if len(one.client.calls) == 2:
            raise StoreFailed("half way", pages_ok=20)
        return len(names)

    one = bench(script)
    assert one.end(one.give(OpKind.FETCH, 200)) == Completion(1, 148, failed=True)


def test_a_failure_after_the_last_page_is_none(bench):
    def script(call: str, names: Sequence[str]) -> int:
        raise StoreFailed("too late to matter", pages_ok=len(names))

    one = bench(script)
    assert one.end(one.give(OpKind.STORE, 100)) == Completion(1, 100)
    assert one.workers.stats()["kinds"]["store"]["failures"] == {"StoreFailed": 1}


@pytest.mark.parametrize(("answer", "good"), [(-3, 0), (10**6, 128), (True, 1), (2.0, 2), ("x", 0), ([], 0)])
def test_nonsense_is_taken_for_what_it_can_mean(bench, answer, good):
    client = ScriptedClient(lambda call, names: None)
    client.put = lambda names, host, slots: answer
    one = bench(client)
    assert one.end(one.give(OpKind.STORE, 128)) == Completion(1, good, failed=good < 128)


def test_a_dead_store_is_left_alone_and_asked_again(bench):
    now_s = [0.0]
    one = bench(raising(OSError(5, "io")), breaker=Breaker(2, first_wait_s=1.0, clock=lambda: now_s[0]))
    ends = [one.end(one.give(kind, 200)) for kind in (OpKind.PROBE, OpKind.FETCH, OpKind.STORE, OpKind.PROBE)]
    assert all(end.failed and end.pages_ok == 0 for end in ends)
    assert len(one.client.calls) == 2
    assert one.workers.stats()["breaker"] == {"state": "open", "opened": 1, "tried": 0, "closed": 0}
    now_s[0] = 1.0
    one.client.script = lambda call, names: None
    assert one.end(one.give(OpKind.FETCH, 200)) == Completion(5, 200)
    assert one.workers.stats()["breaker"]["state"] == "closed"


def test_a_trial_that_is_answered_with_nonsense_is_not_the_last(bench):
    now_s = [0.0]
    one = bench(raising(OSError(5, "io")), breaker=Breaker(1, first_wait_s=1.0, clock=lambda: now_s[0]))
    one.end(one.give(OpKind.PROBE))
    one.client.script = lambda call, names: "x"
    now_s[0] = 1.0
    assert one.end(one.give(OpKind.PROBE)).failed
    one.client.script = lambda call, names: None
    now_s[0] = 3.0
    assert one.end(one.give(OpKind.PROBE)) == Completion(3, 1)


# Clients that hang


@pytest.mark.parametrize("kind", MOVES)
def test_a_hanging_call_lingers_until_it_returns(bench, kind):
    gate = Gate("get", "put")
    one = bench(gate, call_timeout_s=0.05)
    stuck = one.give(kind, 5)
    assert one.end(stuck) == Completion(1, 0, failed=True, lingers=True)
    assert one.workers.stats()["stuck"] == 1
    one.client.script = lambda call, names: None
    assert one.end(one.give(kind, 5)) == Completion(2, 5)
    assert one.of(stuck) == [Completion(1, 0, failed=True, lingers=True)]
    gate.opened.set()
    one.wait(lambda: Released(stuck) in one.reports)
    assert one.workers.stats()["stuck"] == 0


def test_batches_before_the_hanging_one_are_good(bench):
    gate = Gate("get")
    one = bench(lambda call, names: gate(call, names) if len(one.client.calls) == 2 else None, call_timeout_s=0.05)
    assert one.end(one.give(OpKind.FETCH, 300)) == Completion(1, 128, failed=True, lingers=True)
    gate.opened.set()


@pytest.mark.parametrize("kind", [OpKind.PROBE, OpKind.CLEAR])
def test_what_touches_no_pages_does_not_linger(bench, kind):
    gate = Gate("exists", "clear")
    one = bench(gate, call_timeout_s=0.05)
    assert one.end(one.give(kind, 0 if kind is OpKind.CLEAR else 3)) == Completion(1, 0, failed=True)
    gate.opened.set()


def test_a_store_that_hangs_takes_few_threads(bench):
    gate = Gate("get", "put")
    before = threading.active_count()
    one = bench(gate, call_timeout_s=0.03, max_stuck=2)
    ends = [one.end(one.give(MOVES[at % 2], 2)) for at in range(8)]
    assert [end.lingers for end in ends].count(True) == 2
    assert all(end.failed for end in ends)
    assert threading.active_count() - before <= 3 + 2 + 2
    failures = one.workers.stats()["kinds"]
    assert failures["fetch"]["failures"] == {"timeout": 1, "stuck": 3}
    gate.opened.set()
    one.wait(lambda: sum(isinstance(report, Released) for report in one.reports) == 2)
    assert [one.end(one.give(kind, 2)).pages_ok for kind in MOVES] == [2, 2]


def test_timeouts_open_the_breaker(bench):
    gate = Gate("put")
    one = bench(gate, call_timeout_s=0.03, breaker=Breaker(2, first_wait_s=1000.0))
    ends = [one.end(one.give(OpKind.STORE)) for _ in range(3)]
    assert [end.lingers for end in ends] == [True, True, False]
    gate.opened.set()


# Queues, cancel


def test_a_full_queue_fails_at_once(bench):
    gate = Gate("put")
    one = bench(gate, queue_ops=3)
    first = one.give(OpKind.STORE)
    gate.wait_until_entered()
    waiting = [one.give(OpKind.STORE) for _ in range(3)]
    refused = one.give(OpKind.STORE, 7)
    assert one.of(refused) == [Completion(refused, 0, failed=True)]
    assert one.workers.stats()["waiting"] == {"probe": 0, "fetch": 0, "store": 3}
    gate.opened.set()
    assert [one.end(op_id) for op_id in (first, *waiting)] == [Completion(at, 1) for at in (1, 2, 3, 4)]


def test_cancel_of_what_waits_ends_it_at_once(bench):
    gate = Gate("get")
    one = bench(gate, queue_ops=1)
    running = one.give(OpKind.FETCH, 2)
    gate.wait_until_entered()
    for _ in range(5):  # nor does it keep its place
        waiting = one.give(OpKind.FETCH, 2)
        one.workers.cancel(waiting)
        assert one.of(waiting) == [Completion(waiting, 0)]
    gate.opened.set()
    assert one.end(running).pages_ok == 2


def test_cancel_of_what_runs_ends_it_after_its_batch(bench):
    gate = Gate("get")
    one = bench(gate)
    fetch = one.give(OpKind.FETCH, 500)
    gate.wait_until_entered()
    one.workers.cancel(fetch)
    one.workers.cancel(fetch)
    assert one.of(fetch) == []
    gate.opened.set()
    assert one.end(fetch) == Completion(1, 128)
    assert one.client.calls == [("get", 128)]
    one.workers.cancel(fetch)
    one.workers.cancel(4711)


# Close


def test_close_lets_a_running_store_finish_and_ends_the_rest(bench):
    gate = Gate("put", "get")
    one = bench(gate)
    store, fetch = one.give(OpKind.STORE, 300), one.give(OpKind.FETCH, 300)
    gate.wait_until_entered()
    gate.wait_until_entered()
    waiting = [one.give(kind, 5) for kind in MOVES]
    closing = threading.Thread(target=one.workers.close, args=(SOON_S,))
    closing.start()
    assert [one.end(op_id) for op_id in waiting] == [Completion(op_id, 0, failed=True) for op_id in waiting]
    gate.opened.set()
    closing.join(SOON_S)
    assert one.end(store) == Completion(1, 300)
    assert one.end(fetch).pages_ok == 128
    assert one.client.closed == 1
    late = one.give(OpKind.PROBE, 3)
    assert one.of(late) == [Completion(late, 0, failed=True)]
    one.workers.close(SOON_S)
    assert one.client.closed == 1


def test_close_leaves_hanging_calls_behind(bench):
    gate = Gate("put", "exists")
    one = bench(gate)
    store, probe = one.give(OpKind.STORE, 3), one.give(OpKind.PROBE, 3)
    gate.wait_until_entered()
    gate.wait_until_entered()
    began_s = time.monotonic()
    one.workers.close(0.1)
    assert time.monotonic() - began_s < 5.0
    assert one.end(store) == Completion(1, 0, failed=True, lingers=True)
    assert one.end(probe) == Completion(2, 0, failed=True)
    assert one.client.closed == 0  # its call is still under way
    gate.opened.set()
    one.wait(lambda: Released(store) in one.reports)


def test_close_of_a_client_that_hangs_is_bounded(bench):
    gate = Gate("close")
    one = bench(gate)
    began_s = time.monotonic()
    one.workers.close(0.1)
    assert time.monotonic() - began_s < 5.0
    gate.opened.set()


def test_a_client_that_fails_to_close_is_no_matter(bench, caplog):
    one = bench(raising(OSError(5, "io")))
    one.workers.close(SOON_S)
    assert "closing the client" in caplog.text


def test_what_was_acknowledged_is_there_after_close(bench, tmp_path):
    one = bench(FileClient(StorageIdentity("m"), tmp_path), pages=64)
    names = names_of(range(64 * 20))
    for at in range(20):
        fill(one.host, names[64 * at : 64 * at + 64], np.arange(64))
        one.give(OpKind.STORE, 64, first=64 * at)
        if at % 3 == 0:
            one.end(at + 1)
    one.workers.close(SOON_S)
    after = FileClient(StorageIdentity("m"), tmp_path)
    for at in range(20):
        good = one.end(at + 1).pages_ok
        assert after.exists(names[64 * at : 64 * at + 64]) >= good


# Anything


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_troubles(bench, seed):
    """Random operations and cancels on a client that raises, hangs, falls short and is slow; then close at any time."""
    rng = random.Random(seed)
    hang = threading.Event()

    def script(call: str, names: Sequence[str]) -> int | None:
        match rng.randrange(12):
            case 0:
                raise OSError(5, "io")
            case 1:
                raise StoreFailed("half", pages_ok=len(names) // 2)
            case 2:
                return len(names) // 2
            case 3 if call != "close":
                hang.wait(SOON_S)
            case 4 | 5:
                time.sleep(rng.choice([0.0, 0.001, 0.004]))
        return None

    one = bench(script, call_timeout_s=0.02, max_stuck=3, queue_ops=20, breaker=Breaker(3, first_wait_s=0.01))
    kinds = [OpKind.PROBE, *MOVES, OpKind.CLEAR]
    for _ in range(150):
        kind = rng.choice(kinds)
        op_id = one.give(kind, 0 if kind is OpKind.CLEAR else rng.choice([1, 127, 128, 129, 400]))
        if rng.random() < 0.3:
            one.workers.cancel(rng.randint(1, op_id))
        if rng.random() < 0.1:
            time.sleep(0.002)
    if seed % 2:
        for op_id in range(1, one.ops + 1):
            one.end(op_id)
    one.workers.close(0.5)
    hang.set()
    lingering = {report.op_id for report in one.reports if isinstance(report, Completion) and report.lingers}
    one.wait(lambda: lingering <= {report.op_id for report in one.reports if isinstance(report, Released)})


def test_names_of_batches_are_the_operations(bench):
    asked: list[str] = []
    one = bench(lambda call, names: asked.extend(names))
    one.end(one.give(OpKind.STORE, 300, first=7))
    assert asked == [name_of(number) for number in range(7, 307)]
