"""The table of flags agrees with itself, with the annotations, and with what the two wheels declare."""

from __future__ import annotations

import json
import pickle
from importlib.resources import files
from typing import Any, get_args, get_type_hints

import pytest

from hicache_ref.config.server_args import (
    DIFFERENCES,
    FLAG_OF,
    FLAGS,
    OURS,
    UPSTREAM,
    ConfigError,
    ServerArgs,
    defaults_for,
    is_known_to,
    parse_value,
)
from hicache_ref.control.rules import PROFILES

UPSTREAM_FLAGS = json.loads(files("hicache_ref.config").joinpath("sglang_flags.json").read_text(encoding="utf-8"))


def test_every_flag_has_a_type_and_a_help_text() -> None:
    hints = get_type_hints(ServerArgs)
    for flag in FLAGS:
        assert get_args(hints[flag.field]) == (flag.kind, type(None))
        assert flag.help
        assert flag.default is None or isinstance(flag.default, flag.kind)
        assert flag.default is None or not flag.choices or flag.default in flag.choices


def test_no_name_stands_for_two_flags() -> None:
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))


def test_nothing_is_given_by_itself() -> None:
    assert set(vars(ServerArgs()).values()) == {None}


@pytest.mark.parametrize("version", ["v0.5.7", "v0.5.23"])
def test_upstream_has_the_flags_that_we_say_it_has(version: str) -> None:
    arities = {name: row[0] for row in UPSTREAM_FLAGS[version] for name in row[1:]}
    for flag in FLAGS:
        known = {name for name in flag.names if name in arities}
        assert bool(known) == (flag.only in (None, version)), flag.name
        assert {arities[name] for name in known} <= {"0" if flag.kind is bool else "1"}


def test_the_flag_file_says_what_it_covers() -> None:
    assert UPSTREAM_FLAGS["covers"] == ["sglang 0.5.7", "sglang 0.5.23"]
    for version in ("v0.5.7", "v0.5.23"):
        names = [name for row in UPSTREAM_FLAGS[version] for name in row[1:]]
        assert len(names) == len(set(names)) > 300
        assert {row[0] for row in UPSTREAM_FLAGS[version]} == {"0", "1", "?", "*", "+"}


def test_profiles_are_those_of_the_control_plane() -> None:
    assert set(PROFILES) == set(DIFFERENCES) == set(UPSTREAM)


@pytest.mark.parametrize(
    ("field", "old", "article", "new"),
    [
        ("hicache_write_policy", "write_through", "write_through_selective", "write_through"),
        ("hicache_io_backend", "kernel", "kernel", "kernel"),
        ("hicache_mem_layout", "layer_first", "layer_first", "page_first"),
        ("hicache_storage_prefetch_policy", "best_effort", "best_effort", "timeout"),
        ("hicache_ratio", 2.0, 2.0, None),
        ("hicache_size", 0, 0, 0),
        ("radix_eviction_policy", "lru", "lru", "lru"),
        ("enable_hierarchical_cache", False, False, False),
        ("hicache_storage_backend", None, None, None),
        ("schedule_policy", "fcfs", "fcfs", "fcfs"),
        ("schedule_conservativeness", 1.0, 1.0, 1.0),
        ("max_prefill_tokens", 16384, 16384, 16384),
        ("page_size", None, None, None),
        ("attn_dp_size", None, None, 1),
        ("hicache_storage_prefetch_retry_max_attempts", None, None, 8),
    ],
)
def test_defaults_of_the_profiles(field: str, old: Any, article: Any, new: Any) -> None:
    """Article §6, and the fields of 0.5.23. None: not given, or asked of the machine."""
    assert [defaults_for(p).get(field) for p in ("v0.5.7", "article", "v0.5.23")] == [old, article, new]


def test_defaults_hold_no_flag_of_another_version() -> None:
    for profile in PROFILES:
        assert all(is_known_to(FLAG_OF[name], profile) for name in defaults_for(profile))
    assert is_known_to(FLAG_OF["hicache_total_tokens"], "v0.5.7")
    assert FLAG_OF["hicache_total_tokens"].only == OURS


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("max_total_tokens", "25.6k", 25600),
        ("max_total_tokens", "64Ki", 65536),
        ("max_total_tokens", "1M", 10**6),
        ("chunked_prefill_size", "-1", -1),
        ("hicache_ratio", "2", 2.0),
        ("model_path", "7", "7"),
    ],
)
def test_values(field: str, text: str, value: object) -> None:
    parsed = parse_value(FLAG_OF[field], text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_errors_cross_processes() -> None:
    error = ConfigError("what", "why", "do", "where")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "what: why; do [where]"


@pytest.mark.parametrize(("field", "text"), [("page_size", "64k"), ("hicache_size", "1.5"), ("hicache_ratio", "two")])
def test_values_of_the_wrong_type(field: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"the flag takes a (whole )?number"):
        parse_value(FLAG_OF[field], text)
