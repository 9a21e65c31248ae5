"""Threads that may be left behind."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from hicache_ref.data.storage.threads import Threads, ThreadsEnded

SOON_S = 10.0


def running(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def until_none_runs(name: str) -> None:
    end_s = time.monotonic() + SOON_S
    while running(name):
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_calls_are_made_at_the_same_time():
    both = threading.Barrier(2, timeout=SOON_S)
    threads = Threads(2, "pair")
    assert all(future.result(SOON_S) in (0, 1) for future in threads.submit_all(both.wait, [(), ()]))
    threads.end()


def test_what_a_call_raises_ends_no_thread():
    threads = Threads(1, "one")
    with pytest.raises(SystemExit):
        threads.submit(exit).result(SOON_S)
    assert threads.submit(len, "abc").result(SOON_S) == 3
    threads.end()


def test_the_end_comes_after_what_was_given():
    gate, threads = threading.Event(), Threads(1, "ending")
    first, last = threads.submit(gate.wait, SOON_S), threads.submit(len, "ab")
    threads.end()
    threads.end()
    with pytest.raises(ThreadsEnded):
        threads.submit(len, "")
    gate.set()
    assert first.result(SOON_S) and last.result(SOON_S) == 2
    until_none_runs("ending")


def test_nobody_needs_to_end_what_is_forgotten():
    Threads(3, "forgotten")
    gc.collect()
    until_none_runs("forgotten")
