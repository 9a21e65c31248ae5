"""Runs on two and four ranks, each a process: they decide the same whatever holds one of them up (law L9).

Every run compares the ranks' fingerprints itself; it fails where they differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
import torch

from hicache_ref.control.types import OpKind
from hicache_ref.drive.relog import decide_again
from hicache_ref.ranks.processes import Ranks
from hicache_ref.run.api import Options, Result, run
from hicache_ref.run.driver import RunFailed
from hicache_ref.run.setup import plan
from hicache_ref.run.store_watch import OpWatch
from hicache_ref.testing.unreliable import Habits
from workloads import OpenLoop, Schedule, Workload
from workloads.request import Request, Runs

from ..run.small import PAGE, Afresh, Heard, Talk, config
from .slow import Habit, habits

SHAKY = Habits(raises=0.2, short=0.3, lies=0.2, late=0.3, delay_s=0.01)


class Pair:
    """Two ranks that serve one run after the other; new ones after a run that has failed."""

    def __init__(self) -> None:
        self._ranks: Ranks | None = None

    def get(self) -> Ranks:
        if self._ranks is None:
            self._ranks = Ranks(2)
        return self._ranks

    def end(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.end()


@pytest.fixture
def two(pair: Pair) -> Ranks:
    return pair.get()


def ranked_run(ranks: Ranks, model: str, workload: Workload, store: Path, out: Path | None = None, **flags):
    """A run, all laws checked on every rank, with what rank 0's model said."""
    heard = Heard()
    made = config(model, store, tp_size=ranks.size, **flags)
    return run(workload, options=Options(check=True, out=out, listener=heard, ranks=ranks), config=made), heard


def assert_as_on_one_rank(heard: Heard, model: str, workload: Workload) -> None:
    """What is summed over ranks is what one rank computes, but for rounding."""
    afresh = Afresh(config(model))
    expected = {request: afresh.logits(tokens) for request, tokens in afresh.texts(workload).items()}
    assert heard.logits
    for (request, position), logits in heard.logits.items():
        assert torch.allclose(logits, expected[request][position], atol=2e-2), (request, position)


def decided_again(out: Path, workload: Workload) -> bool:
    """Law L6: rank 0's event log, brought to a fresh engine."""
    return decide_again(out, workload.requests()).same


def ranks_of(result: Result) -> list[dict]:
    return result.summary["run"]["ranks"]


@pytest.mark.parametrize(("write", "slow"), [("write_through", 1), ("write_back", 0)])
def test_a_slow_rank_with_a_shaky_store(two, write, slow, tmp_path):
    """Copies, forwards and stores of one rank are held up, and fail, where those of the other do not."""
    workload = Talk(16, 1)
    flags = {"hicache_write_policy": write, "hicache_storage_prefetch_policy": "timeout"}
    of_rank = [Habit(), Habit()]
    of_rank[slow] = Habit(forward_s=0.004, copy_s=0.01, store=SHAKY)
    with habits(*of_rank):
        result, heard = ranked_run(two, "llama-3.1-8b", workload, tmp_path / "store", tmp_path / "out", **flags)
    assert result.summary["requests"]["done"] == 16
    failed = [sum(each["failures"].values()) for each in ranks_of(result)]
    assert failed[slow] > 0 and failed[1 - slow] == 0
    assert decided_again(tmp_path / "out", workload)
    assert_as_on_one_rank(heard, "llama-3.1-8b", workload)


def test_the_latent_is_everywhere_and_one_rank_stores_it(two, tmp_path):
    """MLA: rank 1 has nothing to write, and reads what rank 0 has written."""
    workload = Talk(12, 2)
    first, _ = ranked_run(two, "deepseek-v3", workload, tmp_path, hicache_mem_layout="page_first")
    again, heard = ranked_run(two, "deepseek-v3", workload, tmp_path, hicache_mem_layout="page_first")
    writer, reader = ranks_of(first)
    assert writer["store"]["written_pages"] > 0
    assert reader["store"]["written_pages"] == 0
    assert again.summary["tokens"]["storage_hit"] > 0
    assert ranks_of(again)[1]["store"]["read_pages"] == ranks_of(again)[0]["store"]["read_pages"] > 0
    assert_as_on_one_rank(heard, "deepseek-v3", workload)
    page = first.plan.geometry.page_bytes
    assert first.summary["links"]["store_write"]["bytes"] == writer["store"]["written_pages"] * page
    assert again.summary["links"]["store_read"]["bytes"] == 2 * ranks_of(again)[0]["moved_bytes"]["store_read"]


def test_figures_are_of_all_ranks(two, tmp_path):
    """Heads are split: a page is the shares of both, each with a name of its own in the store."""
    result, _ = ranked_run(two, "llama-3.1-8b", Talk(8, 3), tmp_path)
    share = result.plan.geometry.page_bytes
    backed_up = result.summary["writes"]["backed_up_tokens"] // PAGE
    assert result.summary["levels"]["L2"]["written_bytes"] == backed_up * 2 * share > 0
    written = [each["store"]["written_pages"] for each in ranks_of(result)]
    assert result.summary["links"]["store_write"]["bytes"] == sum(written) * share > 0
    assert len(list(tmp_path.rglob("*.bin"))) == sum(written)


class Spaced(Workload):
    """Long answers, and requests that come in the middle of them."""

    name, format, verdict, block_tokens, linked, max_parallel = "spaced", "generated", "tokens", PAGE, False, None
    schedule = OpenLoop()

    def requests(self, schedule: Schedule | None = None) -> Iterator[Request]:
        rng = Random(4)
        for number in range(8):
            content = Runs(np.array([1000, 10_000 + 100 * number]), np.array([12, 5]))
            yield Request(number, 0.1 * number, content, 17, rng.randrange(16, 24), 17)


def test_a_decode_stops_after_the_same_step_everywhere(two, tmp_path):
    """It is cancelled at different moments on ranks of which one lags; were they a step apart, sums would not meet."""
    cancelled, cancel = [], OpWatch.cancel

    def note(watch, op_id):
        cancelled.append(op_id)
        cancel(watch, op_id)

    out = tmp_path / "out"
    with habits(Habit(), Habit(forward_s=0.02, cancel_s=0.05)), patch.object(OpWatch, "cancel", note):
        result, heard = ranked_run(two, "llama-3.1-8b", Spaced(), tmp_path / "store", out)
    assert result.summary["requests"]["done"] == 8
    assert cancelled
    assert decided_again(out, Spaced())
    assert_as_on_one_rank(heard, "llama-3.1-8b", Spaced())
    assert result.summary["run"]["operations"][OpKind.COMPUTE.name.lower()] > 8


def test_what_cannot_be_sent_says_so(two, tmp_path):
    class Here(Talk):
        """Known to this function only."""

    with pytest.raises(ValueError, match="sent to other processes"):
        ranked_run(two, "llama-3.1-8b", Here(), tmp_path)
    with pytest.raises(ValueError, match=r"Options\.client is the store of one rank, and there are 2"):
        run(Talk(), options=Options(client=object()), config=config(tp_size=2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}, r"DP attention in 2 groups: .*; .*--tp-size 2 "),
        ({"pp_size": 2}, r"--pp-size 2: "),
        ({"tp_size": 3}, r"do not split over 3 ranks"),
    ],
)
def test_what_a_run_does_not_serve(flags, line):
    with pytest.raises(ValueError, match=line):
        plan(config(**flags))


def test_four_ranks_and_the_end_of_one(tmp_path):
    """More ranks than KV heads. Then one is killed: the run fails at once with its name, and nobody is left."""
    workload = Talk(6, 5)
    with Ranks(4) as ranks:
        with habits(Habit(), Habit(copy_s=0.02), Habit(forward_s=0.005), Habit(store=SHAKY)):
            result, heard = ranked_run(ranks, "llama-3.1-8b", workload, tmp_path / "store")
        assert result.summary["requests"]["done"] == 6
        assert len({each["operations_sha256"] for each in ranks_of(result)}) == 1
        assert_as_on_one_rank(heard, "llama-3.1-8b", workload)
        pids, killed_s = ranks.pids, []

        def kill(count: int, at_s: float) -> None:
            if count == 3:
                killed_s.append(time.monotonic())
                os.kill(pids[1], 9)

        made = config(tp_size=4)
        with pytest.raises(RunFailed, match=rf"^rank 2 \(pid {pids[1]}\) died: killed by SIGKILL$"):
            run(workload, options=Options(progress=kill, ranks=ranks), config=made)
        assert time.monotonic() - killed_s[0] < 10.0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        with pytest.raises(RunFailed, match=r"rank 2 .* died"):
            run(workload, options=Options(ranks=ranks), config=made)


def test_a_rank_that_cannot_compute_ends_the_run(pair, tmp_path):
    ranks = pair.get()
    with habits(Habit(), Habit(fails_at=5)), pytest.raises(RunFailed) as failed:
        ranked_run(ranks, "llama-3.1-8b", Talk(6, 6), tmp_path)
    pair.end()
    line = str(failed.value)
    assert line.startswith(f"rank 1 (pid {ranks.pids[0]}): COMPUTE ")
    assert line.endswith(" has failed: ValueError: no luck today")
