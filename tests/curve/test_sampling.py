"""Samples: the same wherever they are taken, near the truth, and honest about how near."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hicache_sim.curve.bounds import hits_left, offline_best
from hicache_sim.curve.lru import LruCurve, error
from hicache_sim.curve.references import References, gather
from hicache_sim.curve.replays import Setting, prompts, replayed
from workloads import open_workload

SIZES = np.geomspace(3_000, 100_000, 7).astype(int)


@pytest.fixture(scope="module")
def whole() -> References:
    return gather(open_workload("conversation").requests(None), 512)


def test_taken_while_reading_or_afterwards_it_is_the_same(whole: References) -> None:
    early = gather(open_workload("conversation").requests(None), 512, 0.1, seed=3)
    late = whole.sample(0.1, seed=3)
    assert (early.atoms == late.atoms).all()
    assert (early.starts == late.starts).all()
    assert (early.total, early.longest) == (late.total, late.longest) == (whole.total, whole.longest)


def test_a_sampled_curve_is_near_and_says_how_near(whole: References) -> None:
    truth = LruCurve.of(whole).rates(SIZES)
    strays = []
    for seed in range(16):
        sample = whole.sample(0.1, seed)
        strays.append((LruCurve.of(sample).rates(SIZES) - truth) / error(sample, SIZES))
        assert abs(LruCurve.of(sample).rates(SIZES) - truth).max() < 0.04
    # Standard errors, from eight parts only, so with Student's tails.
    assert (np.abs(strays) < 2).mean() > 0.85
    assert np.sqrt(np.mean(np.square(strays))) < 1.6


def test_the_whole_has_no_error(whole: References) -> None:
    assert not error(whole, SIZES).any()


def test_a_sample_is_still_a_tree(whole: References) -> None:
    """Every page comes after the same page wherever it stands, or a replay would not be one of prompts."""
    sample = whole.sample(0.2)
    before: dict[int, int] = {}
    for first, past in zip(sample.starts[:-1].tolist(), sample.starts[1:].tolist(), strict=True):
        path = [0, *sample.atoms[first:past].tolist()]
        for parent, page in itertools.pairwise(path):
            assert before.setdefault(page, parent) == parent


def test_sampled_replay_and_bound_are_near(whole: References) -> None:
    size = 8_000
    sample = whole.sample(0.2, seed=1)
    for eviction in ("lru", "s3fifo"):
        exact = replayed(whole, Setting(eviction, size)).hits
        assert replayed(sample, Setting(eviction, size)).hits == pytest.approx(exact, abs=0.03 * whole.total)
    best = offline_best(whole, [size])[0]
    assert hits_left(sample, offline_best(sample, [size])[0]) == pytest.approx(best, abs=0.02 * whole.total)


def test_prompts_come_back_as_they_were(whole: References) -> None:
    again = gather(prompts(whole), 512)
    assert (again.atoms == whole.atoms).all()
    assert (again.starts == whole.starts).all()


@pytest.mark.parametrize(
    ("page", "rate", "words"), [(512, 0.0, "sampling rate"), (512, 1.5, "sampling rate"), (0, 1.0, "page size")]
)
def test_bad_input(page: int, rate: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        gather([], page, rate)
