"""Words to knobs and values, and bad ones to one line."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.config.server_args import FLAGS
from hicache_sim.sweeps.ask import Ask
from hicache_sim.sweeps.domains import Choices, Domain, Real, Whole, split
from hicache_sim.sweeps.knobs import KNOBS, find_knob

OLD = ["v0.5.7"]


def domain(name: str, text: str, profiles: list[str] = OLD) -> Domain:
    return find_knob(name).domain(text, profiles)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("hicache-ratio", "1.5,2,4", [1.5, 2.0, 4.0]),
        ("--hicache_ratio", "2,2.0", [2.0]),
        ("hicache-io-backend", "all", ["direct", "kernel", "kernel_ascend"]),
        ("hicache-storage-backend", "none,mooncake", [None, "mooncake"]),
        ("seed", "0..4", [0, 1, 2, 3, 4]),
        ("tp", "1,2", [1, 2]),
        ("mem-fraction-static", "0.5..0.9:0.1", [0.5, 0.6, 0.7, 0.8, 0.9]),
        ("page-size", "16..64:16", [16, 32, 48, 64]),
        ("enable-mixed-chunk", "all", [True, False]),
        ("rule.caches-output", "all", [True, False]),
        ("hardware-set.h2d_bytes_per_s", "1e9", [1e9]),
        ("set.clients", "4,8", [4, 8]),
        ("trace", "all", ["conversation", "synthetic", "claude-code"]),
        ("storage-fault", "none,outage:5:10", [None, "outage:5:10"]),
        ("hicache-storage-backend-extra-config", '{"a":1,"b":[2,3]},none', ['{"a":1,"b":[2,3]}', None]),
    ],
)
def test_listed_values(name: str, text: str, values: list[Any]) -> None:
    assert list(domain(name, text).values()) == values


def test_all_has_later_choices_only_where_a_later_profile_is_in_play() -> None:
    flag = find_knob("hicache-storage-backend")
    assert "shm" not in flag.everything(["v0.5.7", "article"])
    assert "shm" in flag.everything(["v0.5.7", "v0.5.23"])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("hicache-rato", "1", "did you mean hicache-ratio"),
        ("hicache-write-policy", "write_thru", "did you mean write_through"),
        ("hicache-ratio", "all", "there is no list"),
        ("hicache-ratio", "two", "takes a number"),
        ("page-size", "4..1", "lower number first"),
        ("page-size", "1,,2", "empty value"),
        ("page-size", "0..8:log", "above 0"),
        ("page-size", "1..8:0", "LOW..HIGH:STEP"),
        ("rule.cache-output", "all", "did you mean caches_output"),
        ("rules.caches-output", "all", "did you mean rule"),
        ("hardware", "h1000", "h100-pcie5"),
        ("profile", "v0.5.8", "v0.5.7"),
        ("seed", "x", "not a number"),
        ("spread", "maybe", "true, false"),
    ],
)
def test_bad_words_end_in_one_line(name: str, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        domain(name, text)
    assert "\n" not in str(error.value)


@given(st.integers(1, 50), st.integers(0, 200), st.booleans(), st.integers(0, 2**32))
def test_what_is_drawn_lies_in_the_range(low: int, more: int, log: bool, seed: int) -> None:
    high = low + more
    assert low <= Whole(low, high, log).draw(random.Random(seed)) <= high
    assert low / 7 <= Real(low / 7, high / 7, log).draw(random.Random(seed)) <= high / 7


def test_a_log_range_is_drawn_by_ratio() -> None:
    rng = random.Random(1)
    drawn = [Real(1, 10_000, log=True).draw(rng) for _ in range(400)]
    assert 120 < sum(value < 100 for value in drawn) < 280


@given(st.lists(st.sampled_from(["a", '{"x":1,"y":[1,2]}', '"a,b"', "1.5"]), min_size=1, max_size=5))
def test_split_takes_apart_what_commas_joined(words: list[str]) -> None:
    assert split(",".join(words)) == words


@pytest.mark.parametrize("knob", sorted({knob.name for knob in KNOBS.values()}))
def test_every_knob_is_found_by_its_name_and_sets_what_it_reads(knob: str) -> None:
    found = find_knob(knob)
    value = _some(found)
    ask = found.put(Ask("chat"), value)
    assert found.get(ask) == value
    assert found.get(found.put(ask, _some(found))) == value


def _some(knob: Any) -> Any:
    """A value that the knob can have."""
    try:
        return knob.everything(OLD)[0]
    except ValueError:
        return {int: 3, float: 0.5, str: "word"}[knob.kind]


def test_every_flag_of_the_table_can_be_varied() -> None:
    assert {flag.name.removeprefix("--") for flag in FLAGS} <= set(KNOBS)


def test_from_python_values_are_read_as_words_are() -> None:
    assert find_knob("hicache_ratio").domain([1.5, 2], OLD) == Choices((1.5, 2.0))
    assert find_knob("enable_mixed_chunk").domain([True, None], OLD) == Choices((True, None))
    with pytest.raises(ValueError, match="did you mean write_back"):
        find_knob("hicache_write_policy").domain(["writeback"], OLD)
