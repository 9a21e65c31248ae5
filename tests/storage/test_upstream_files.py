"""What SGLang's file store writes is read here, what is written here it reads, and both forget the same pages."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hicache_ref.config.layouts import LAYOUTS, OPERATORS, KvGeometry  # noqa: E402
from hicache_ref.data.pools import HostPool  # noqa: E402
from hicache_ref.data.storage.client import StorageIdentity  # noqa: E402
from hicache_ref.data.storage.file import FileClient  # noqa: E402
from hicache_ref.data.storage.registry import make_client  # noqa: E402

from .contract import MHA, MLA  # noqa: E402
from .fakes import PAGE_BYTES, FakeHost, fill, name_of, names_of, read_page, wrong  # noqa: E402
from .upstream import Upstream, UpstreamPool  # noqa: E402

OLD, NEW = "0.5.7", "0.5.23"
FOLDER = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
IDENTITIES = [
    (OLD, StorageIdentity("org/model", 1, 4)),
    (OLD, StorageIdentity("org/model", 0, 4, replicated=True)),
    (NEW, StorageIdentity("org/model", 1, 4)),
    (NEW, StorageIdentity("org/model", 0, 4, replicated=True)),
    (NEW, StorageIdentity("org/model", 3, 4, 1, 2)),
    (NEW, StorageIdentity("", 0, 1, 1, 2, replicated=True)),
]
LAYOUTS_STORED = sorted({(layout, pool) for _, layout, pool in OPERATORS if LAYOUTS[layout].stored})


@cache
def upstream(version: str) -> Upstream:
    return Upstream(version)


def theirs(version: str, who: StorageIdentity, folder: Path, **extra: object) -> object:
    facts = {"tp_rank": who.tp_rank, "tp_size": who.tp_size, "pp_rank": who.pp_rank, "pp_size": who.pp_size}
    config = facts | {"model_name": who.model_name, "is_mla_model": who.replicated, "extra_config": extra}
    folder.mkdir(exist_ok=True)
    return upstream(version).file_store({FOLDER: str(folder)}, **config)


def page(seed: int, size_bytes: int = PAGE_BYTES) -> torch.Tensor:
    return torch.frombuffer(bytearray(np.random.default_rng(seed).bytes(size_bytes)), dtype=torch.uint8)


@pytest.mark.parametrize(("version", "who"), IDENTITIES)
def test_both_read_what_the_other_has_written(version, who, tmp_path):
    store, client, host = theirs(version, who, tmp_path), FileClient(who, tmp_path), FakeHost(4)
    assert store.set(name_of(1), page(1))
    assert client.get([name_of(1)], host, np.array([2])) == 1
    assert read_page(host, 2) == page(1).numpy().tobytes()
    assert client.put([name_of(2)], host, np.array([2])) == 1
    assert store.exists(name_of(2))
    assert torch.equal(store.get(name_of(2), torch.zeros(PAGE_BYTES, dtype=torch.uint8)), page(1))
    assert client.put([name_of(1)], host, np.array([3])) == 1  # there already: theirs stays
    assert torch.equal(store.get(name_of(1), torch.zeros(PAGE_BYTES, dtype=torch.uint8)), page(1))


@pytest.mark.parametrize("version", [OLD, NEW])
def test_sealed_pages_are_pages_to_upstream(version, tmp_path):
    """It reads no further than the page; and what it wrote is good to who verifies."""
    pytest.importorskip("xxhash")
    who = StorageIdentity("org/model", 1, 4)
    store, host, flat = theirs(version, who, tmp_path), FakeHost(4), torch.zeros(PAGE_BYTES, dtype=torch.uint8)
    client = make_client("file", who, {"file_storage_path": str(tmp_path), "verify": True}, {})
    fill(host, [name_of(1)], np.array([0]))
    assert client.put([name_of(1)], host, np.array([0])) == 1
    assert store.get(name_of(1), flat).numpy().tobytes() == read_page(host, 0)
    assert store.set(name_of(1), page(1))  # there already: ours stays
    assert store.set(name_of(2), page(2))
    assert client.get([name_of(1), name_of(2)], host, np.array([2, 3])) == 2
    assert wrong(host, [name_of(1)], np.array([2])) == []
    assert read_page(host, 3) == page(2).numpy().tobytes()


@pytest.mark.parametrize(("layout", "pool"), LAYOUTS_STORED)
def test_a_pages_bytes_are_those_of_upstreams_flat_page(layout, pool, tmp_path):
    """0.5.7's own `get_data_page` and `set_from_flat_data_page`, on the very memory of our pool."""
    geometry = {"mha": MHA, "mla": MLA}[pool]
    host = HostPool(LAYOUTS[layout], geometry, 4, torch.bfloat16, pin=False)
    their_pool, who = view_of(host, geometry, layout, pool), StorageIdentity("m", 0, 2, replicated=pool == "mla")
    store, client, names = theirs(OLD, who, tmp_path), FileClient(who, tmp_path), names_of(range(4))
    fill(host, names, np.arange(4))
    assert client.put(names[:2], host, np.arange(2)) == 2
    for at in (2, 3):
        assert store.set(names[at], their_pool.get_data_page(at * geometry.page_size))
    host.poison(range(4))
    for at in (0, 1):
        flat = torch.zeros(geometry.page_bytes // 2, dtype=torch.bfloat16)
        their_pool.set_from_flat_data_page(at * geometry.page_size, store.get(names[at], flat))
    assert client.get(names[2:], host, np.array([2, 3])) == 2
    assert wrong(host, names, np.arange(4)) == []


def view_of(host: HostPool, g: KvGeometry, layout: str, pool: str) -> UpstreamPool:
    dims = LAYOUTS[layout].host_dims(g, host.pages)
    data = host.memory.data[: host.pages * g.page_bytes].view(torch.bfloat16).view(dims)
    facts = {"kv_buffer": data, "layout": layout, "page_size": g.page_size, "layer_num": g.layers}
    width = {"head_num": g.heads, "head_dim": g.dim, "kv_lora_rank": g.parts[0], "qk_rope_head_dim": g.parts[-1]}
    return UpstreamPool(upstream(OLD), f"{pool.upper()}TokenToKVPoolHost", **facts, **width)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_pages_are_forgotten(seed, tmp_path):
    """One life twice, under the same limit: after each step the same files are left."""
    rng = random.Random(seed)
    who, ratio = StorageIdentity("m"), rng.choice([0.5, 0.8, 1.0])
    extra = {"max_size": str(rng.randint(5, 12) * PAGE_BYTES), "eviction_ratio": ratio}
    store = theirs(NEW, who, tmp_path / "theirs", **extra)
    ours = make_client("file", who, extra | {"file_storage_path": str(tmp_path / "ours"), "io_threads": 1}, {})
    host, flat = FakeHost(1), torch.zeros(PAGE_BYTES, dtype=torch.uint8)
    for _ in range(120):
        name = name_of(rng.randrange(20))
        if rng.random() < 0.6:
            assert bool(ours.put([name], host, np.array([0]))) == store.set(name, flat)
        else:
            assert bool(ours.get([name], host, np.array([0]))) == (store.get(name, flat) is not None)
        left = [{path.name for path in (tmp_path / side).iterdir()} for side in ("ours", "theirs")]
        assert left[0] == left[1]
