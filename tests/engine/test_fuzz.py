"""A hundred random lives of engines, and the fuzzer itself: repeatable, varied, and able to find."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from hicache_ref.control.running import Running
from hicache_ref.control.scheduler import Scheduler
from hicache_ref.testing import FuzzFailure
from hicache_ref.testing.engine_fuzz import engine_fuzz

from .lives import life


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_lives_end_well(first):
    for seed in range(first, first + 20):
        life(seed)


def test_the_rare_things_happen():
    """Requests are sent back, chunked, rejected, aborted wherever they are; steps wait for copies."""
    seen: Counter[str] = Counter()
    for seed in range(100, 160):
        seen += engine_fuzz(seed).seen
    places = ["waiting", "prefill", "chunked", "decode", "over"]
    wanted = ["retracted", "chunked", "rejected", "stalls", "ended at its first token"]
    missing = [what for what in [*wanted, *(f"aborted while {place}" for place in places)] if not seen[what]]
    assert not missing


def test_a_seed_is_a_life():
    """L7: the same seed, the same operations, reports and story."""
    for seed in (3, 77):
        first, second = life(seed), engine_fuzz(seed)
        assert first.ops == second.ops
        assert first.reports() == second.reports()
        assert first.story == second.story
    assert life(4).story != first.story


def _forgets_slots(scheduler, done, planned):
    """A decode batch that was stopped early keeps what it had taken for the steps it did not take."""


def _ends_twice(running):
    return [request for request in running for _ in range(2) if running.produced(request) >= request.output_tokens]


def _never_clears(scheduler, batch, now_s, prefilled=Scheduler.prefilled):
    full = scheduler.full
    prefilled(scheduler, batch, now_s)
    scheduler.full = full


@pytest.mark.parametrize(
    ("owner", "name", "broken", "words"),
    [
        (Scheduler, "_shrink", _forgets_slots, "pages for"),
        (Running, "ended", _ends_twice, "KeyError"),
        (Scheduler, "prefilled", _never_clears, "L5: a request was given up while 0 held memory"),
    ],
)
def test_bugs_are_found(monkeypatch, owner, name, broken, words):
    """The last two are bugs that were there."""
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(FuzzFailure, match=rf"(?s){words}.*\nseed \d+, EngineSetup\(.*last operations:\n"):
        list(map(engine_fuzz, range(100)))


def test_command_line():
    command = [sys.executable, "-W", "error", "-m", "hicache_ref.testing.engine_fuzz"]
    done = subprocess.run(
        [*command, "--first", "7", "--seeds", "3", "--steps", "20"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout[:22]) == (0, "3 seeds, no failure, 0"), done.stderr
