"""Resolving what was resolved changes nothing, for any flags at all; and whatever is refused is refused in one line."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.config.resolve import ConfigError, DeviceFacts, Resolved, resolve
from hicache_ref.config.server_args import FLAGS, Flag, ServerArgs
from hicache_ref.control.rules import PROFILES
from tests.config.facts import GIB, MHA, MLA, NSA

SMALL = {
    int: st.sampled_from([1, 2, 4, 8, 16, 64, 4096, 100_000]),
    float: st.sampled_from([0.5, 0.9, 1.0, 1.2, 3.0]),
    bool: st.booleans(),
}


def values(flag: Flag) -> st.SearchStrategy[Any]:
    if flag.choices:
        return st.sampled_from(flag.all_choices)
    if flag.kind is str:
        return st.sampled_from(["", "{}", '{"prefetch_threshold": 8}'])
    return SMALL[flag.kind]


FLAG_SETS = st.fixed_dictionaries(
    {"enable_hierarchical_cache": st.booleans(), "max_total_tokens": st.sampled_from([64, 4096, 100_001, None])},
    optional={f.field: values(f) for f in FLAGS if f.field not in ("enable_hierarchical_cache", "max_total_tokens")},
)
DEVICES = st.builds(
    DeviceFacts,
    gpu_mem_bytes=st.sampled_from([None, 24 * GIB, 80 * GIB, 180 * GIB]),
    host_available_bytes=st.sampled_from([None, 10 * GIB + 10**8, 100 * GIB]),
    is_npu=st.booleans(),
    is_sm100=st.booleans(),
    has_flashinfer=st.booleans(),
)


def attempt(args: ServerArgs, profile: str, model: Any, device: DeviceFacts) -> Resolved | str:
    try:
        return resolve(args, profile, model=model, device=device)
    except ConfigError as error:
        return str(error)


@settings(max_examples=400, deadline=None)
@given(
    flags=FLAG_SETS,
    kept=st.sets(st.sampled_from([f.field for f in FLAGS]), max_size=8),
    profile=st.sampled_from(sorted(PROFILES)),
    model=st.sampled_from([MHA, MLA, NSA]),
    device=DEVICES,
)
def test_resolve_twice(flags: dict[str, Any], kept: set[str], profile: str, model: Any, device: DeviceFacts) -> None:
    always = {"enable_hierarchical_cache", "max_total_tokens"}
    args = ServerArgs(**{name: value for name, value in flags.items() if name in kept | always})
    once = attempt(args, profile, model, device)
    if isinstance(once, str):
        assert "\n" not in once
        return
    twice = resolve(once.args, profile, model=model, device=device)
    assert twice.args == once.args
    assert [c for c in twice.changes if c.kind == "rewrite"] == []
    assert (twice.l1_pages, twice.l2_pages, twice.storage) == (once.l1_pages, once.l2_pages, once.storage)
    assert (twice.chunk_tokens, twice.max_running_requests) == (once.chunk_tokens, once.max_running_requests)
