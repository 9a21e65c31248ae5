"""AIBrix: the contract on its RocksDB, its own L1, and what SGLang's class writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("aibrix_kvcache", reason="AIBrix is not installed: pip install 'hicache[aibrix]'")

from hicache_ref.config.layouts import KvGeometry  # noqa: E402
from hicache_ref.data.storage.aibrix import MANAGERS, AibrixClient, shape_of  # noqa: E402
from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed  # noqa: E402
from hicache_ref.data.storage.registry import make_client  # noqa: E402

from .contract import MHA, MLA, WHO, StorageContract, slots  # noqa: E402
from .fakes import FakeHost, fill, names_of, wrong  # noqa: E402
from .upstream_stores import UpstreamHost, host_pool, stores  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # the library's own reading


def variables(folder: Path, **more: str) -> dict[str, str]:
    given = {"L1_CACHE_ENABLED": "0", "L2_CACHE_BACKEND": "ROCKSDB", "ROCKSDB_ROOT": str(folder / "rocks")}
    given["L2_CACHE_PER_TOKEN_TIMEOUT_MS"] = "1000"  # pages of tests have few tokens
    return {f"AIBRIX_KV_CACHE_OL_{key}": value for key, value in (given | more).items()}


class TestRocksDb(StorageContract):
    strangers = ("rank", "stage", "tag")
    many = 300

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        page = FakeHost(1).geometry
        return lambda identity: make_client("aibrix", replace(identity, geometry=page), {}, variables(tmp_path))

    def test_clear_forgets(self, open):
        with pytest.raises(StoreFailed, match="remove its database"):
            open().clear()

    def test_clear_leaves_strangers_alone(self):
        pytest.skip("the manager cannot be cleared")


def test_memory_alone_keeps_what_has_room(tmp_path):
    """Its L1: a cache that forgets, and never refuses."""
    found = variables(tmp_path, L1_CACHE_ENABLED="1", L2_CACHE_BACKEND="", L1_CACHE_CAPACITY_GB=str(64 * 768 / 2**30))
    client, host, names = AibrixClient(WHO, found), FakeHost(16), names_of(range(160))
    for first in range(0, 160, 16):
        fill(host, names[first : first + 16], np.arange(16))
        client.put(names[first : first + 16], host, np.arange(16))
    there = [name for name in names if client.exists([name])]
    assert 0 < len(there) < 160
    assert client.get(there[:8], host, np.arange(8)) == 8
    assert wrong(host, there[:8], np.arange(8)) == []
    client.close()


def test_managers_go_with_their_last_client(tmp_path):
    one, other = (AibrixClient(replace(WHO, geometry=MHA), variables(tmp_path)) for _ in range(2))
    assert one.exists(["00"]) == other.exists(["00"]) == 0
    assert len(MANAGERS._made) == 1
    one.close()
    assert len(MANAGERS._made) == 1
    other.close()
    assert MANAGERS._made == {}


def test_pages_are_found_before_one_is_seen_if_the_identity_tells_their_geometry(tmp_path):
    host, names = FakeHost(2), names_of(range(2))
    writer, blind = (AibrixClient(WHO, variables(tmp_path)) for _ in range(2))
    told = AibrixClient(replace(WHO, geometry=host.geometry), variables(tmp_path))
    assert writer.put(names, host, slots(0, 1)) == 2
    assert (told.exists(names), blind.exists(names)) == (2, 0)
    for client in (writer, blind, told):
        client.close()


def test_ranks_and_stages_have_heads_and_layers_of_their_own():
    geometry = KvGeometry("mha", 2, 3, 4, 2, 8, 2, (8,))
    assert shape_of(StorageIdentity("m", 1, 4, 1, 2), geometry) == (4, (2, 3), (3, 4, 5), 16)
    latent = shape_of(StorageIdentity("m", 3, 4, replicated=True), MLA)
    assert latent == (4, (0,), (0, 1, 2), 24)
    assert MLA.page_bytes == 2 * 4 * 3 * 24


def test_a_database_that_cannot_be_is_a_line(tmp_path):
    (tmp_path / "rocks").write_text("not a folder")
    client = AibrixClient(replace(WHO, geometry=MHA), variables(tmp_path))
    with pytest.raises(StoreFailed, match=r"aibrix: no manager: .*see its variables"):
        client.exists(names_of([1]))
    with pytest.raises(StorageError, match="knows no colour"):
        make_client("aibrix", WHO, {"colour": "red"}, {})


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_both_read_what_the_other_has_written(layout, tmp_path):
    """On one manager, as two would not open one database."""
    who = StorageIdentity("org/model", 1, 4, layout=layout)
    host, names = host_pool(who), names_of(range(4))
    duck, client = UpstreamHost(host), AibrixClient(who, variables(tmp_path))
    fill(host, names, np.arange(4))
    assert client.put(names[:2], host, np.arange(2)) == 2
    store = theirs(who, duck, client._manager(host.geometry))
    assert store.batch_set(names[2:], [duck.get_data_page(token) for token in duck.tokens(2, 3)[::4]])
    assert client.exists(names) == store.batch_exists(names) == 4
    host.poison(range(8))
    flat = [duck.get_dummy_flat_data_page() for _ in range(2)]
    for page, data in zip((4, 5), store.batch_get(names[:2], flat), strict=True):
        duck.set_from_flat_data_page(page * 4, data)
    assert client.get(names[2:], host, slots(6, 7)) == 2
    assert wrong(host, names, np.array([4, 5, 6, 7])) == []
    client.close()


def theirs(who: StorageIdentity, host: UpstreamHost, manager: object) -> object:
    """Upstream's class, on our manager once it has made its block for the same pages."""
    module, shape, made = stores().module("aibrix_kvcache.aibrix_kvcache_storage"), host.host.geometry, []
    host.target_layer_num, host.head_num, host.head_dim = shape.layers, shape.heads, shape.dim * shape.itemsize
    host.start_layer, host.end_layer = 0, shape.layers
    with stores().in_place(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BaseKVCacheManager", lambda config: made.append(config.block_spec) or manager)
        store = module.AibrixKVCacheStorage(stores().config(who, {}), host)
    ours = shape_of(who, shape)
    assert list(made[0].tensor_spec.heads) == list(ours.heads)
    assert list(made[0].tensor_spec.layers) == list(ours.layers)
    assert made[0].block_nbytes == host.host.page_bytes
    return store
