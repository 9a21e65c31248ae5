"""Streams and events: one suite for the CPU's, and for CUDA's on a device that is made of threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from hicache_ref.data import streams
from hicache_ref.data.streams import Event, Stream, StreamStopped, make_stream

from . import fake_cuda

SOON_S = 10.0


@dataclass
class Job:
    """Does `work`, remembers how it ended."""

    work: Callable[[], None] = lambda: None
    over: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    ends: int = 0

    def run(self) -> None:
        self.work()

    def ended(self, error: BaseException | None) -> None:
        self.ends += 1
        self.error = error
        self.over.set()

    def wait(self) -> Job:
        assert self.over.wait(SOON_S), "the job has not ended"
        return self


class Contract:
    """What every stream keeps. `launch` gives work to the device, from within a job."""

    device: str
    launch: Callable[[Callable[[], Any]], None]

    @pytest.fixture(autouse=True)
    def _streams(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.prepare(monkeypatch)
        self.made: list[Stream] = []
        self.gate = threading.Event()
        yield
        self.gate.set()
        for stream in self.made:
            stream.stop()
            assert stream.join(SOON_S)
        fake_cuda.end_all()

    def prepare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before any stream is made."""

    def stream(self, name: str = "test") -> Stream:
        self.made.append(make_stream(name, self.device))
        return self.made[-1]

    def blocked(self) -> Callable[[], None]:
        """Work that takes until the test opens its gate."""
        return lambda: self.launch(lambda: self.gate.wait(SOON_S))

    def noting(self, seen: list[Any], what: Any) -> Callable[[], None]:
        return lambda: self.launch(lambda: seen.append(what))

    def test_jobs_are_done_in_order_and_end_in_order(self):
        stream, seen, ends = self.stream(), [], []
        jobs = [Job(self.noting(seen, at)) for at in range(50)]
        for at, job in enumerate(jobs):
            job.over = threading.Event()
            job.ended = lambda error, at=at, job=job: (ends.append(at), job.over.set())
            stream.run(job)
        jobs[-1].wait()
        assert seen == ends == list(range(50))

    def test_giving_a_job_does_not_wait_for_it(self):
        stream, seen = self.stream(), []
        slow, after = Job(self.blocked()), Job(self.noting(seen, 1))
        over = stream.run(slow)
        stream.run(after)
        assert not (over.fired or slow.ends or seen)
        self.gate.set()
        after.wait()
        assert over.fired

    def test_streams_do_not_wait_for_each_other(self):
        slow, quick = self.stream("slow"), self.stream("quick")
        waiting = Job(self.blocked())
        slow.run(waiting)
        quick.run(job := Job())
        job.wait()
        assert not waiting.ends

    def test_a_job_has_not_ended_before_the_device_is_done(self):
        stream = self.stream()
        stream.run(job := Job(self.blocked()))
        assert not job.over.wait(0.02)
        self.gate.set()
        job.wait()

    def test_what_a_job_raises_ends_that_job_alone(self):
        stream = self.stream()
        for error in (ValueError("no"), SystemExit(3)):

            def fail(error: BaseException = error) -> None:
                raise error

            stream.run(bad := Job(fail))
            stream.run(good := Job())
            good.wait()
            assert (bad.error, bad.ends, good.error) == (error, 1, None)

    def test_a_job_that_raised_ends_after_what_it_had_launched(self):
        stream = self.stream()

        def fail_later() -> None:
            self.blocked()()
            raise ValueError("after the launch")

        stream.run(job := Job(fail_later))
        assert not job.over.wait(0.02)
        self.gate.set()
        assert isinstance(job.wait().error, ValueError)

    def test_a_waiting_stream_goes_on_after_the_event(self):
        first, second, seen = self.stream("first"), self.stream("second"), []
        event = first.event()

        def mark() -> None:
            self.blocked()()
            self.noting(seen, "before")()
            event.record()
            self.noting(seen, "more")()

        def wait() -> None:
            second.wait(event)
            self.noting(seen, "after")()

        second.run(waiting := Job(wait))  # the waiter is there first: the event is yet to be recorded
        first.run(Job(mark))
        assert not waiting.over.wait(0.02)
        self.gate.set()
        waiting.wait()
        assert seen.index("before") < seen.index("after")
        assert second.waited_s > 0.01

    def test_an_event_fires_in_the_middle_of_a_job(self):
        first, second = self.stream("first"), self.stream("second")
        event = first.event()

        def mark() -> None:
            event.record()
            self.blocked()()

        first.run(marking := Job(mark))
        second.run(waiting := Job(lambda: second.wait(event)))
        waiting.wait()
        assert not marking.ends

    def test_the_event_of_a_job_fires_when_it_is_over(self):
        stream = self.stream()
        over = stream.run(Job(self.blocked()))
        stream.run(later := Job(self.noting(seen := [], 1)))
        assert not over.fired and not seen
        self.gate.set()
        over.synchronize()
        later.wait()
        assert seen

    def test_a_failed_job_holds_nobody_up(self):
        stream, other = self.stream(), self.stream()

        def fail() -> None:
            raise ValueError("no")

        after = stream.run(Job(fail))
        other.run(job := Job(lambda: other.wait(after)))
        assert job.wait().error is None

    def test_a_released_event_lets_everybody_go(self):
        stream = self.stream()
        event = stream.event()
        stream.run(job := Job(lambda: stream.wait(event)))
        assert not job.over.wait(0.01)
        event.release()
        job.wait()

    def test_stopping_gives_up_what_has_not_begun(self):
        stream = self.stream()
        begun = threading.Event()
        stream.run(running := Job(lambda: (begun.set(), self.blocked()(), None)[-1]))
        begun.wait(SOON_S)
        # On CUDA a job has begun when it is launched, and launching runs ahead: here it is held up.
        held = threading.Event()
        stream.run(holding := Job(lambda: held.wait(SOON_S) and None))
        jobs = [Job() for _ in range(5)]
        events = [stream.run(job) for job in jobs]
        stream.stop()
        stream.run(late := Job())
        held.set()
        self.gate.set()
        assert stream.join(SOON_S)
        assert running.error is None and running.ends == 1
        assert holding.wait().ends == 1
        assert all(job.ends == 1 and isinstance(job.error, StreamStopped) for job in [*jobs, late])
        assert all(event.fired for event in events)

    def test_join_says_that_a_job_hangs(self):
        stream = self.stream()
        begun = threading.Event()
        stream.run(Job(lambda: (begun.set(), self.blocked()(), None)[-1]))
        begun.wait(SOON_S)
        stream.stop()
        assert not stream.join(0.02)

    def test_a_stream_holds_a_job_until_it_has_ended_and_not_longer(self):
        class Big:
            pass

        stream, big = self.stream(), Big()
        known = weakref.ref(big)
        job = Job(lambda big=big: self.blocked()())
        stream.run(job)
        over = job.over
        del big, job
        gc.collect()
        assert known() is not None
        self.gate.set()
        assert over.wait(SOON_S)
        stream.run(after := Job())
        after.wait()
        gc.collect()
        assert known() is None

    def test_at_once_is_done_when_it_returns(self):
        stream, seen = self.stream(), []
        stream.run(job := Job(lambda: stream.at_once(lambda: self.launch(lambda: seen.append(1)))))
        job.wait()
        assert seen == [1]


class TestCpu(Contract):
    device = "cpu"

    @staticmethod
    def launch(work: Callable[[], Any]) -> None:
        work()


class TestCuda(Contract):
    """`CudaStream` as it is, on a fake device that keeps CUDA's rules."""

    device = "cuda"

    @staticmethod
    def launch(work: Callable[[], Any]) -> None:
        fake_cuda.launch(work)

    def prepare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streams, "_CUDA", fake_cuda.FakeCuda)

    def test_launching_runs_ahead(self):
        stream, launched = self.stream(), threading.Event()
        stream.run(first := Job(self.blocked()))
        stream.run(Job(launched.set))
        assert launched.wait(SOON_S)
        assert not first.ends

    def test_the_fake_lets_a_wait_for_what_is_not_recorded_pass(self):
        """Else the suite would prove nothing of what `CudaEvent` adds."""
        stream = fake_cuda.FakeStream()
        stream.wait_event(fake_cuda.FakeEvent())
        stream.synchronize()

    def test_pacing_waits_for_the_device(self):
        stream, seen = self.stream(), []

        def work() -> None:
            self.blocked()()
            event = stream.event()
            event.record()
            stream.pace(event)
            seen.append("launched on")

        stream.run(job := Job(work))
        assert not job.over.wait(0.02) and not seen
        self.gate.set()
        job.wait()
        assert seen


def test_an_unknown_device_is_told_those_that_are_known():
    with pytest.raises(ValueError, match="no streams for device 'meta'; known: cpu, cuda"):
        make_stream("x", torch.device("meta"))


def test_an_event_alone_fires_when_it_is_recorded():
    event = Event()
    assert not event.fired
    event.record()
    event.synchronize()
    assert event.fired
