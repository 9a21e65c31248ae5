"""Profiles: every number has a source, files and overrides change what they name, errors say what there is."""

from __future__ import annotations

import json
import math
import pickle

import pytest

from hicache_sim.hardware import (
    DEFAULT_STORES,
    EVICTIONS,
    HARDWARE,
    PARTIALS,
    STORES,
    ProfileError,
    load_profile,
    load_store,
)

ALL = [*HARDWARE.values(), *STORES.values()]


@pytest.mark.parametrize("profile", ALL, ids=lambda profile: profile.name)
def test_every_number_has_a_source(profile):
    rows = profile.table()
    assert {row.name for row in rows} == set(profile.sources)
    for row in rows:
        assert row.source.strip()
        assert not row.source.startswith("~")
        assert isinstance(row.value, str) or row.value >= 0
    assert profile.description


@pytest.mark.parametrize("profile", HARDWARE.values(), ids=lambda profile: profile.name)
def test_hardware_is_plausible(profile):
    assert profile.fp8_flops_per_s >= profile.bf16_flops_per_s
    assert profile.h2d_duplex_bytes_per_s <= profile.h2d_bytes_per_s
    assert profile.d2h_duplex_bytes_per_s <= profile.d2h_bytes_per_s
    assert profile.h2d_bytes_per_s < profile.dram_bytes_per_s
    for row in profile.table():
        assert not row.name.endswith("_efficiency") or 0 < row.value <= 1
    datasheets = {row.name for row in profile.table() if "datasheet" in row.source and not row.assumption}
    assert profile.name == "dev-vm" or {"bf16_flops_per_s", "hbm_bytes_per_s"} <= datasheets


@pytest.mark.parametrize("profile", STORES.values(), ids=lambda profile: profile.name)
def test_stores_are_plausible(profile):
    assert profile.eviction in EVICTIONS
    assert {profile.partial_get, profile.partial_set} <= set(PARTIALS)
    assert profile.low_watermark <= profile.high_watermark <= 1
    # The p99 of a lognormal with this sigma stands where the profile says.
    assert math.exp(2.3263478740408408 * profile.tail_sigma) == pytest.approx(profile.p99_over_p50)


def test_the_facts_that_matter():
    default, mooncake = load_profile(), load_store("mooncake-4x200-roce")
    assert default.name == "h100-pcie5"
    assert (default.h2d_bytes_per_s, default.direct_h2d_segment_s) == (55.6e9, 6.67e-6)
    assert load_profile("a100-pcie4").h2d_duplex_bytes_per_s == 11e9
    assert (mooncake.read_bytes_per_s, mooncake.lease_s, mooncake.client_ttl_s) == (87e9, 10.0, 10.0)
    assert (mooncake.owner_dead_s, mooncake.master_dead_s) == (1.0, 4.3)
    assert load_store("nixl-posix-nvme").partial_get == "all_or_nothing"
    ours = {"redis", "lmdb"}  # upstream reaches them through its dynamic backend
    assert all(STORES[name].backend == backend for backend, name in DEFAULT_STORES.items() if backend not in ours)


def test_assumptions_are_marked():
    rows = {row.name: row for row in load_profile().table()}
    assert rows["gemm_efficiency"].assumption
    assert not rows["hbm_bytes_per_s"].assumption


def test_overrides_change_the_number_and_its_source():
    changed = load_profile("h20", h2d_bytes_per_s="25e9")
    assert changed.h2d_bytes_per_s == 25e9
    assert changed.sources["h2d_bytes_per_s"] == "overridden by the caller"
    assert load_profile("h20").h2d_bytes_per_s != 25e9
    assert load_store("file-local", eviction="lru", capacity_bytes=1e9).eviction == "lru"


def test_profiles_from_files(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps(
            {
                "base": "h100-pcie5",
                "h2d_bytes_per_s": {"value": 50e9, "source": "measured here"},
                "d2h_bytes_per_s": 51e9,
            }
        )
    )
    profile = load_profile(file, sms=100)
    assert (profile.name, profile.h2d_bytes_per_s, profile.d2h_bytes_per_s, profile.sms) == ("mine", 50e9, 51e9, 100)
    assert profile.sources["h2d_bytes_per_s"] == "measured here"
    assert profile.sources["d2h_bytes_per_s"] == "mine.json"
    assert profile.hbm_bytes == load_profile().hbm_bytes

    file.write_text(json.dumps({"base": "redis-local", "name": "cluster", "read_bytes_per_s": 1e9}))
    assert (load_store(str(file)).name, load_store(str(file)).backend) == ("cluster", "dynamic")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "needs a 'base'"),
        ('{"base": "cray-1"}', "one of h100-pcie5, h200"),
        ('{"base": "h200", "hbm_byte": 1}', r"unknown number 'hbm_byte' \(did you mean hbm_bytes\?\); known: bf16"),
        ('{"base": "h200", "sms": "many"}', "sms must be a number, not 'many'"),
        ('{"base": "h200", "sms": true}', "sms must be above 0, not True"),
        ('{"base": "h200", "h2d_bytes_per_s": 0}', "h2d_bytes_per_s must be above 0"),
        ('{"base": "h200", "kernel_launch_s": -1}', "kernel_launch_s must be at least 0"),
        ('{"base": "h200", "sms": {"source": "here"}}', "sms must be a number, not None"),
    ],
)
def test_files_that_do_not_fit(tmp_path, content, message):
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(ProfileError, match=message) as error:
        load_profile(file)
    assert "\n" not in str(error.value)


def test_names_that_do_not_exist(tmp_path):
    with pytest.raises(ProfileError, match="known: h100-pcie5"):
        load_profile("cray-1")
    with pytest.raises(ProfileError, match="known: mooncake-4x200-roce"):
        load_store("h200")
    with pytest.raises(ProfileError, match="cannot read"):
        load_profile(tmp_path / "none.json")
    with pytest.raises(ProfileError, match="eviction cannot be 'magic'; known: none, lru"):
        load_store("file-local", eviction="magic")
    with pytest.raises(ProfileError, match="p99_over_p50 must be at least 1"):
        load_store("file-local", p99_over_p50=0.5)


def test_profiles_travel_between_processes():
    assert all(pickle.loads(pickle.dumps(profile)) == profile for profile in ALL)
