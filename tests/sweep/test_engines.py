"""What every engine keeps to, as one suite to inherit; workers that die; Ray."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_sim.sweeps.engines import ENGINES, Cores, Engine, Here, make_engine
from hicache_sim.sweeps.errors import SweepError


def square(number: int) -> str:
    return str(number * number)


def die_at_three(number: int) -> str:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(number)


def lost(why: str) -> str:
    return f"lost: {why}"


class EngineContract:
    def make(self) -> Engine:
        raise AssertionError("a subclass makes it")

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        engine = self.make()
        yield engine
        engine.close()

    def test_every_job_once_with_its_result_and_again_afterwards(self, engine: Engine) -> None:
        assert sorted(engine.run(square, range(7), lost)) == [(n, str(n * n)) for n in range(7)]
        assert list(engine.run(square, [9], lost)) == [(9, "81")]
        assert list(engine.run(square, [], lost)) == []


class TestHere(EngineContract):
    def make(self) -> Engine:
        return Here()


class TestCores(EngineContract):
    def make(self) -> Engine:
        return Cores(2)

    def test_a_job_that_kills_its_worker_is_lost_and_no_other_is(self, engine: Engine) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # loky warns of the worker that died
            found = dict(engine.run(die_at_three, range(6), lost))
        assert "worker died" in found.pop(3)
        assert found == {n: str(n * n) for n in range(6) if n != 3}


def test_one_worker_needs_no_other_process() -> None:
    assert make_engine("local", 1).workers == 1
    assert make_engine("local", 3).workers == 3


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(SweepError, match="local, ray"):
        make_engine("moon")
    assert set(ENGINES) == {"local", "ray"}


_RAY = """
import sys
import hicache_sim
swept = hicache_sim.sweep("bench-multiturn", {"hicache_ratio": [1.5, 2], "set.rounds": [2, 3]}, page_size=64,
    max_total_tokens=20000, cluster="ray", jobs=2, worth=False, out=sys.argv[1])
assert swept.asked["ran"] == {**swept.asked["ran"], "cluster": "ray", "workers": 2}
"""


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'hicache[cluster]'"
)
def test_the_same_sweep_on_a_local_ray_of_two_workers(tmp_path: Path) -> None:
    """In a process of its own: Ray leaves threads and handlers behind. The figures are those of this process."""
    import subprocess

    from hicache_sim import sweep

    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _RAY, str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    here = sweep(
        "bench-multiturn",
        {"hicache_ratio": [1.5, 2], "set.rounds": [2, 3]},
        page_size=64,
        max_total_tokens=20000,
        jobs=1,
        worth=False,
    )
    there = sweep.__globals__["Sweep"].open(tmp_path / "out")
    same = [name for name in here.points if name != "replay_cpu_s"]
    assert here.points[same].equals(there.points[same])
    assert here.best["line"] == there.best["line"]
