"""A calibration as a machine: its model, its prices, its stores, and what it refuses."""

from __future__ import annotations

import json

import pytest
from simpy import Environment

from hicache_ref.config.server_args import ConfigError, ServerArgs
from hicache_sim.api import Options, replay
from hicache_sim.build import RunConfig, make_plane, plan
from hicache_sim.calibration import find_calibration
from hicache_sim.hardware import ProfileError

from .files import content, write


def config(path: str, **flags) -> RunConfig:
    return RunConfig(ServerArgs(**{"page_size": 16, **flags}), hardware=path)


def test_the_plan_is_of_the_model_and_the_device_that_were_measured(tmp_path):
    made = plan(config(write(tmp_path / "m.json"), hicache_storage_backend="file"))
    assert made.model.name == "Llama-3.1-8B scaled" and made.model.parameters < 200_000
    assert made.resolved.l1_tokens == (1 << 20) // 512
    assert made.hardware.h2d_bytes_per_s == 2e9 and made.hardware.name == "m"
    assert made.store is not None and made.store.read_bytes_per_s == 3e9 and made.store.compute_share == 0.5
    sources = {number.name: number for number in made.hardware.table()}
    assert sources["h2d_bytes_per_s"].source == "measured: somehow"


def test_prices_are_those_of_the_file(tmp_path):
    made = plan(config(write(tmp_path / "m.json")))
    plane = make_plane(made, Environment(), None)
    layers, page_bytes = made.model.layers, plane.capabilities.page_bytes
    load, backup = plane.loader.price(10), plane.writer.price(10)
    assert load.overhead_s == pytest.approx(1e-4 * layers + 1e-6 * load.segments)
    assert load.link_bytes / 2e9 == pytest.approx(10 * page_bytes * 1e-9)
    assert backup.link_bytes == 10 * page_bytes  # bytes that cost nothing take what the link takes


def test_an_operator_that_was_not_measured_is_priced_as_the_base_does(tmp_path):
    made = plan(config(write(tmp_path / "m.json"), hicache_io_backend="direct"))
    assert make_plane(made, Environment(), None).loader.price(1).launches == 0


def test_compute_is_the_fit_and_what_runs_beside_it_takes_its_share(tmp_path):
    path = write(tmp_path / "m.json")
    one = replay("chat", None, Options(limit=1), config(path, max_total_tokens=8000))
    prompt, answer = (int(one.requests[name][0]) for name in ("input_tokens", "output_tokens"))
    prefill_s = 1e-3 + 1e-5 * prompt + 1e-8 * prompt * (prompt + 1) / 2 + 1e-7 * prompt + 1e-4
    pause_s = one.requests.arrival_s[0] + 1e-4  # since the start: nothing was computed before
    asleep_s = 2e-3 * pause_s / (pause_s + 0.05)
    assert one.requests.ttft_s[0] == pytest.approx(1e-4 + 3e-4 + asleep_s + prefill_s, rel=1e-6)
    first_s = 1e-3 + 1e-4 + 1e-7 * prompt
    assert one.requests.e2e_s[0] - one.requests.ttft_s[0] >= 5e-4 + (answer - 1) * first_s
    assert one.summary["stalls"]["device_slowed_by_copies_s"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model_path": "qwen3-8b"}, "the model that was measured is llama-3.1-8b"),
        ({"tp_size": 2}, "it was measured with 1"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "it was measured with auto"),
    ],
)
def test_what_was_not_measured_is_refused(tmp_path, flags, message):
    with pytest.raises(ConfigError, match=message):
        plan(config(write(tmp_path / "m.json"), **flags))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ((5e6, None, "cpu"), "--model-scale 5e\\+06.*measured with 100000"),
        ((None, "bfloat16", "cpu"), "--dtype bfloat16.*measured with float32"),
        ((None, None, "cuda:0"), "--device cuda:0.*measured on cpu"),
    ],
)
def test_runs_of_another_model_cannot_be_compared(tmp_path, run, message):
    found = find_calibration(write(tmp_path / "m.json"))
    assert found is not None
    found.check_run(100_000.0, "float32", "cpu")
    with pytest.raises(ConfigError, match=message):
        found.check_run(*run)


def test_other_files_are_no_calibrations(tmp_path):
    (tmp_path / "profile.json").write_text('{"base": "h200"}')
    (tmp_path / "broken.json").write_text("{")
    for name in ("profile.json", "broken.json", "missing.json"):
        assert find_calibration(str(tmp_path / name)) is None
    assert find_calibration("h200") is None


@pytest.mark.parametrize(
    ("changes", "message"), [({"format": "hicache calibration 9"}, "its format is"), ({"format": None}, "its format")]
)
def test_a_calibration_of_another_version(tmp_path, changes, message):
    with pytest.raises(ProfileError, match=message):
        find_calibration(write(tmp_path / "m.json", **changes))


def test_a_calibration_that_lacks_a_part(tmp_path):
    lacking = {name: part for name, part in content().items() if name != "compute"}
    path = tmp_path / "m.json"
    path.write_text(json.dumps(lacking))
    with pytest.raises(ProfileError, match="it lacks compute"):
        find_calibration(str(path))
