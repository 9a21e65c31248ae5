"""Compute: closed forms against sums of steps, inverses, the roofline's sense of direction, fits."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.config.models import find_model
from hicache_sim.compute import CLOCK_SLACK_S, ComputeError, ComputeModel, Fitted, Piece, Roofline, _longer
from hicache_sim.hardware import load_profile

INF = float("inf")
MODELS = {
    "dense": Roofline(find_model("Llama-3.1-8B"), load_profile()),
    "crossing": Roofline(find_model("Qwen3-32B"), load_profile("h20"), tp_size=2),
    "mla": Roofline(find_model("DeepSeek-V3"), load_profile("h200"), tp_size=8),
    "sparse": Roofline(find_model("DeepSeek-V3.2"), load_profile("h20"), tp_size=8),
    "fitted": Fitted(36, {"a": 2e-3, "b": 2e-5, "c": 1e-9}, {"a": 5e-3, "b": 1e-5, "c": 2e-8}),
    "flat": Fitted(36, {"a": 2e-3, "b": 2e-5, "c": 0.0}, {"a": 5e-3, "b": 0.0, "c": 0.0}),
}
batches = st.integers(1, 400)
contexts = st.integers(0, 2_000_000)
names = st.sampled_from(sorted(MODELS))


def _loop(model, batch, context, steps):
    return sum(model.decode_step_s(batch, context + step * batch) for step in range(steps))


@given(names, batches, contexts, st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_many_steps_are_the_sum_of_steps(name, batch, context, steps):
    model: ComputeModel = MODELS[name]
    assert model.decode_s(batch, context, steps) == pytest.approx(_loop(model, batch, context, steps), rel=1e-12)


@given(names, batches, contexts, st.integers(0, 100_000))
@settings(max_examples=200, deadline=None)
def test_steps_and_seconds_invert_each_other(name, batch, context, steps):
    model = MODELS[name]
    seconds = model.decode_s(batch, context, steps)
    assert model.decode_steps(batch, context, seconds) == steps
    now = 1e5  # a difference of two readings of a long run's clock
    assert model.decode_steps(batch, context, (now + seconds) - now) == steps


@given(names, batches, contexts, st.floats(-1.0, 500.0))
@settings(max_examples=200, deadline=None)
def test_steps_are_the_most_that_fit(name, batch, context, seconds):
    model = MODELS[name]
    steps = model.decode_steps(batch, context, seconds)
    assert steps == 0 or model.decode_s(batch, context, steps) <= seconds + CLOCK_SLACK_S
    assert model.decode_s(batch, context, steps + 1) > seconds + CLOCK_SLACK_S


@given(names, batches, contexts, st.integers(0, 500), st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_a_stretch_of_steps_can_be_cut_anywhere(name, batch, context, first, second):
    model = MODELS[name]
    whole = model.decode_s(batch, context, first + second)
    cut = model.decode_s(batch, context, first) + model.decode_s(batch, context + first * batch, second)
    assert cut == pytest.approx(whole, rel=1e-12)


def test_some_batches_do_cross_the_roofline():
    assert len(MODELS["crossing"]._of(64)) == 2
    assert len(MODELS["sparse"]._of(300)) >= 2
    assert len(MODELS["dense"]._of(64)) == 1


@given(names, batches)
@settings(max_examples=100, deadline=None)
def test_pieces_join_without_a_step(name, batch):
    pieces = MODELS[name]._of(batch)
    for left, right in itertools.pairwise(pieces):
        assert left.at(left.below) == pytest.approx(right.at(left.below), rel=1e-9)
    assert pieces[-1].below == INF


lines = st.builds(Piece, st.just(INF), st.floats(0, 10), st.floats(0, 1e-3))


@given(lines, lines, st.floats(0, 1e6), st.floats(1, 1e6))
def test_the_envelope_of_two_lines(a, b, start, width):
    pieces = _longer(start, start + width, a, b)
    for share in (0.0, 0.3, 0.5, 0.9, 0.999):
        context = start + share * width
        piece = next((each for each in pieces if context < each.below), pieces[-1])
        assert piece.at(context) == pytest.approx(max(a.at(context), b.at(context)), rel=1e-9, abs=1e-12)


# --- the roofline -------------------------------------------------------------------------------------------------


def test_a_prefill_by_hand():
    """Llama-3.1-8B on an H100: 1000 tokens on a prefix of 4000 are bound by arithmetic."""
    model, hardware = find_model("Llama-3.1-8B"), load_profile()
    layers = 2 * (model.parameters - 2 * 128256 * 4096) * 1000
    head = 2 * 128256 * 4096
    pairs = 1000 * 4000 + 1000 * 1001 // 2
    attention = 32 * 4 * 32 * 128 * pairs
    expected = (layers + head) / (989.4e12 * 0.70) + attention / (989.4e12 * 0.55) + hardware.prefill_overhead_s
    assert Roofline(model, hardware).prefill_s([(4000, 1000)]) == pytest.approx(expected)


def test_a_decode_step_by_hand():
    """A small batch is bound by reading the weights and the cache."""
    model, hardware = find_model("Llama-3.1-8B"), load_profile()
    expected = (2 * model.parameters + 131072 * 5000) / (3.35e12 * 0.8) + hardware.decode_overhead_s
    assert Roofline(model, hardware).decode_step_s(4, 5000) == pytest.approx(expected)


def test_batches_of_requests():
    model = MODELS["dense"]
    assert model.prefill_s([]) == 0.0
    assert model.prefill_s([(100, 0)]) == 0.0
    together, apart = model.prefill_s([(0, 900), (50, 100)]), model.prefill_s([(0, 900)]) + model.prefill_s([(50, 100)])
    assert together < apart  # one overhead, weights read once
    assert model.prefill_s(iter([(0, 900)])) == model.prefill_s([(0, 900)])


@pytest.mark.parametrize("name", ["dense", "crossing", "mla", "sparse"])
def test_more_work_takes_longer_and_a_cached_prefix_saves(name):
    model = MODELS[name]
    grow_new = [model.prefill_s([(1000, new)]) for new in (1, 100, 2000, 8000)]
    grow_prefix = [model.prefill_s([(prefix, 500)]) for prefix in (0, 1000, 20_000, 100_000)]
    grow_context = [model.decode_step_s(32, context) for context in (0, 10_000, 100_000, 1_000_000)]
    grow_batch = [model.decode_step_s(batch, 100_000) for batch in (1, 8, 64, 256)]
    for times in (grow_new, grow_prefix, grow_context, grow_batch):
        assert times == sorted(times)
    assert model.prefill_s([(7000, 1000)]) < 0.5 * model.prefill_s([(0, 8000)])


def test_ranks_divide_the_work_but_talk():
    model, hardware = find_model("Llama-3.1-70B"), load_profile()
    one, four, eight = (Roofline(model, hardware, tp) for tp in (1, 4, 8))
    assert one.prefill_s([(0, 8000)]) > four.prefill_s([(0, 8000)]) > eight.prefill_s([(0, 8000)])
    assert 4 < one.prefill_s([(0, 8000)]) / eight.prefill_s([(0, 8000)]) < 8
    assert one.all_reduce_s(1000) == 0.0
    slow = Roofline(model, load_profile("h100-pcie5", gpu_link_bytes_per_s=20e9), 8)
    assert slow.prefill_s([(0, 8000)]) > 2 * eight.prefill_s([(0, 8000)])


def test_small_batches_of_a_mixture_read_few_experts():
    model = MODELS["mla"]
    assert model.touched_weight_bytes(1) < 0.15 * model.touched_weight_bytes(10_000)
    assert model.touched_weight_bytes(10_000) == pytest.approx(find_model("DeepSeek-V3").weight_bytes(8))


def test_fp8_weights_run_at_the_fp8_rate():
    plain, packed = (Roofline(find_model(name), load_profile()) for name in ("Qwen3-32B", "Qwen3-32B-FP8"))
    assert packed.prefill_s([(0, 8000)]) < 0.65 * plain.prefill_s([(0, 8000)])
    assert packed.decode_step_s(1, 0) < 0.6 * plain.decode_step_s(1, 0)


def test_a_layers_share():
    assert MODELS["dense"].layer_s(3.2) == pytest.approx(0.1)
    assert MODELS["fitted"].layer_s(3.6) == pytest.approx(0.1)


# --- fits ---------------------------------------------------------------------------------------------------------


def test_a_fit_says_what_its_coefficients_say():
    fit = Fitted.from_calibration(
        {"layers": 32, "prefill": {"a": 1e-3, "b": 1e-5, "c": 1e-9}, "decode": {"a": 4e-3, "b": 1e-5, "c": 1e-8}}
    )
    pairs = 100 * 50 + 100 * 101 // 2
    assert fit.prefill_s([(50, 100)]) == pytest.approx(1e-3 + 1e-5 * 100 + 1e-9 * pairs)
    assert fit.prefill_s([]) == 0.0
    assert fit.decode_step_s(10, 5000) == pytest.approx(4e-3 + 1e-4 + 5e-5)


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ({"prefill": {}, "decode": {}}, "no 'layers'"),
        ({"layers": 2, "prefill": {"a": 1}, "decode": {}}, "prefill needs numbers a, b and c"),
        ({"layers": 2, "prefill": {"a": 1, "b": 0, "c": 0}, "decode": {"a": 0, "b": 0, "c": 1}}, "both zero"),
        ({"layers": 2, "prefill": {"a": 1, "b": -1, "c": 0}, "decode": {}}, "must not be negative"),
        ({"layers": 2, "prefill": {"a": "x", "b": 1, "c": 0}, "decode": {}}, "needs numbers"),
    ],
)
def test_calibrations_that_cannot_be_used(calibration, message):
    with pytest.raises(ComputeError, match=message) as error:
        Fitted.from_calibration(calibration)
    assert "\n" not in str(error.value)


def test_answers_take_microseconds():
    model = MODELS["sparse"]
    start = time.perf_counter()
    for step in range(5000):
        model.decode_steps(64, 1000 * step, 2.0)
        model.decode_s(64, 1000 * step, 100)
    assert time.perf_counter() - start < 1.0  # 100 us each; measured 3 and 1
