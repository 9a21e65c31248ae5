"""A hundred random lives, and the fuzzer itself: repeatable, and able to find."""

import subprocess
import sys

import pytest

from hicache_ref.control.cache import HiCache
from hicache_ref.testing import FuzzFailure, fuzz


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_lives_end_well(first):
    for seed in range(first, first + 10):
        fuzz(seed)


def test_a_seed_is_a_life():
    """L7: the same seed, the same operations, and the same story."""
    first, second = fuzz(3), fuzz(3)
    assert first.story == second.story
    assert first.session.ops == second.session.ops
    assert fuzz(4).story != first.story


def test_a_failure_tells_its_seed_and_what_happened_last(monkeypatch):
    monkeypatch.setattr(HiCache, "unlock", lambda cache, node: cache.tree.lock(node))
    with pytest.raises(FuzzFailure, match=r"(?s)LawBroken.*\nseed 1, Setup\(.*last operations:\n.*\n  \w+\("):
        fuzz(1)


def test_command_line():
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-m", "hicache_ref.testing.fuzz", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("--first", "7", "--seeds", "3", "--steps", "20")
    assert (done.returncode, done.stdout[:22]) == (0, "3 seeds, no failure, 0"), done.stderr
