"""Law L10, end to end: what a model says on top of cached pages is, bit by bit, what it says without a cache.

Free pages are NaN throughout, so a page that is read before it has arrived shows as well.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from hicache_ref.config.layouts import OPERATORS
from hicache_ref.config.models import find_model
from hicache_ref.data.storage.client import StorageIdentity
from hicache_ref.data.storage.registry import make_client
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.write import WRITE
from hicache_ref.run.setup import identity, plan
from hicache_ref.testing.unreliable import Habits, UnreliableClient

from .small import PAGE, Afresh, Talk, assert_the_same, config, heard_run

MODELS = {"mha": "llama-3.1-8b", "mla": "deepseek-v3"}
WRITES = [name for name in WRITE if name in ("write_through", "write_through_selective", "write_back")]
PREFETCHES = [name for name in PREFETCH if name in ("best_effort", "wait_complete", "timeout")]


def _matrix() -> list[tuple[str, str, str, str, str]]:
    """Every layout and io backend of both attentions, with every pair of write and prefetch policies in turn."""
    pairs = cycle([(write, prefetch) for write in WRITES for prefetch in PREFETCHES])
    return [(pool, backend, layout, *next(pairs)) for backend, layout, pool in OPERATORS for _ in range(2)]


@pytest.mark.parametrize(("pool", "backend", "layout", "write", "prefetch"), _matrix())
def test_cached_is_computed(pool, backend, layout, write, prefetch, tmp_path):
    """Twice over one store: the second run finds in L3 what the first has left there."""
    flags = {
        "hicache_io_backend": backend,
        "hicache_mem_layout": layout,
        "hicache_write_policy": write,
        "hicache_storage_prefetch_policy": prefetch,
    }
    # The split layout has no place in L3 upstream.
    store = None if layout == "page_first_kv_split" else tmp_path
    made = config(MODELS[pool], store, **flags)
    afresh = Afresh(made)
    for seed in (1, 2) if store is not None else (1,):
        workload = Talk(12, seed)
        result, heard = heard_run(made, workload)
        assert result.plan.resolved.args.hicache_mem_layout == layout
        assert assert_the_same(heard, afresh, workload) >= 12
        assert result.summary["requests"]["done"] == 12


def test_every_level_has_served(tmp_path):
    """The proof is about something: pages came from L1, from L2 and from L3, and were thrown out in between."""
    made = config(store=tmp_path)
    afresh = Afresh(made)
    for seed in (1, 1):
        workload = Talk(30, seed)
        result, heard = heard_run(made, workload)
        assert_the_same(heard, afresh, workload)
    tokens, levels = result.summary["tokens"], result.summary["levels"]
    assert tokens["device_hit"] > 0
    assert tokens["storage_hit"] > 0
    assert tokens["loaded"] > tokens["storage_hit"]
    assert levels["L1"]["evicted_tokens"] > 0
    assert levels["L2"]["evicted_tokens"] > 0


@pytest.mark.parametrize(
    ("model", "kv"),
    [("qwen3-8b", "fp8_e4m3"), ("kimi-k2", "fp4_e2m1"), ("deepseek-v3.2", "fp8_e4m3"), ("llama-3.1-8b", "fp8_e5m2")],
)
def test_every_format(model, kv, tmp_path):
    """Formats of bytes, and NSA's rows, whose page size is its own."""
    page = find_model(model).forced_page_size or PAGE
    l1, l2 = (24, 40) if page == PAGE else (12, 20)
    sizes = {"page_size": page, "max_total_tokens": l1 * page, "hicache_total_tokens": l2 * page}
    flags = {"kv_cache_dtype": kv, "chunked_prefill_size": 6 * page, "hicache_mem_layout": "page_first"}
    made = config(model, tmp_path, **sizes, **flags)
    workload = Talk(6, 3, longest=48 if page == PAGE else 200)
    result, heard = heard_run(made, workload)
    assert assert_the_same(heard, Afresh(made), workload) >= 6
    assert result.summary["requests"]["done"] == 6


@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_fails_spoils_nothing(seed, tmp_path):
    """Calls raise, fall short, promise what is not there, and come late; what is said stays what it is."""
    prefetch, write = PREFETCHES[seed % 3], WRITES[(seed + 1) % 3]
    made = config(
        store=tmp_path,
        hicache_storage_prefetch_policy=prefetch,
        hicache_write_policy=write,
        hicache_mem_layout="page_first",
    )
    afresh = Afresh(made)
    habits = Habits(raises=0.1, short=0.3, lies=0.3, late=0.3, delay_s=0.01)
    seen = 0
    for number in range(2):
        workload = Talk(14, seed)
        client = make_client("file", _identity(made), {"file_storage_path": str(tmp_path)})
        shaky = UnreliableClient(client, habits, seed=10 * seed + number)
        result, heard = heard_run(made, workload, shaky)
        assert_the_same(heard, afresh, workload)
        assert result.summary["requests"]["done"] == 14
        seen += shaky.did["raises"] + shaky.did["short"] + shaky.did["lies"]
    assert seen > 0


def test_torn_files_are_misses(tmp_path):
    """What somebody has cut short in the store is computed again."""
    made = config(store=tmp_path)
    workload = Talk(16, 5)
    heard_run(made, workload)
    files = sorted(Path(tmp_path).rglob("*.bin"))
    assert len(files) > 8
    for at, file in enumerate(files):
        if at % 2:
            file.write_bytes(file.read_bytes()[: at % 7 * 10])
    result, heard = heard_run(made, workload)
    assert_the_same(heard, Afresh(made), workload)
    assert result.summary["requests"]["done"] == 16


def _identity(made) -> StorageIdentity:
    return identity(plan(made))


@pytest.mark.parametrize("page", [1, PAGE])
def test_pairs_as_keys(page, tmp_path):
    """EAGLE's keys: a page is known by the pairs of its tokens, the last of which lies behind it."""
    flags = {"page_size": page, "max_total_tokens": 24 * PAGE, "hicache_total_tokens": 40 * PAGE}
    made = config(store=tmp_path, speculative_algorithm="EAGLE", hicache_mem_layout="page_first", **flags)
    afresh = Afresh(made)
    for seed in (4, 4):
        workload = Talk(14, seed)
        result, heard = heard_run(made, workload)
        assert_the_same(heard, afresh, workload)
    assert result.plan.resolved.bigram_keys
    assert result.summary["tokens"]["device_hit"] > 0
    assert result.summary["tokens"]["storage_hit"] > 0
