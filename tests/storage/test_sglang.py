"""Our stores inside SGLang, and a store of others' in both worlds: upstream's own factory, out of its wheel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lmdb")
pytest.importorskip("xxhash")

from hicache_ref.config.layouts import LAYOUTS  # noqa: E402
from hicache_ref.data.pools import HostPool  # noqa: E402
from hicache_ref.data.storage.client import StorageIdentity, StoreFailed  # noqa: E402
from hicache_ref.data.storage.registry import make_client  # noqa: E402

from . import peercache_nodes  # noqa: E402
from .contract import MHA, MLA, REPLICA, WHO, slots  # noqa: E402
from .fakes import fill, names_of, wrong  # noqa: E402
from .servers import free_port  # noqa: E402
from .upstream_stores import UpstreamHost, stores  # noqa: E402

OURS = {
    "backend_name": "hicache",
    "module_path": "hicache_ref.data.storage.sglang",
    "class_name": "HicacheStore",
}


def pool(who: StorageIdentity, layout: str) -> HostPool:
    return HostPool(LAYOUTS[layout], MLA if who.replicated else MHA, 8, torch.bfloat16, pin=False)


@pytest.fixture
def factory() -> Iterator[Any]:
    """Makes stores by upstream's factory, for a host pool of ours. `in_place` holds while they are used."""
    upstream, made = stores(), []
    with upstream.in_place():
        # Loaded again under upstream's own base class.
        for name in ("hicache_ref.data.storage.sglang", "peercache.store"):
            sys.modules.pop(name, None)
        factory = upstream.module("backend_factory").StorageBackendFactory

        def make(who: StorageIdentity, host: HostPool, extra: dict[str, Any]) -> Any:
            seen = UpstreamHost(host)
            store = factory.create_backend("dynamic", upstream.config(who, extra), seen)
            store.register_mem_pool_host(seen)
            store.on_host_pools_registered()
            made.append(store)
            return store, seen

        yield make
        for store in made:
            store.close()


@pytest.mark.parametrize("interface_v1", [1, 0])
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "layer_first"])
@pytest.mark.parametrize("who", [WHO, REPLICA, replace(WHO, pp_rank=1, pp_size=2)], ids=["mha", "mla", "pp"])
def test_sglang_uses_a_store_of_ours(who, layout, interface_v1, factory, tmp_path):
    """Written by either side, found and read by the other: the same names and bytes."""
    extra = {"path": str(tmp_path), "max_size": "100M"}
    host, own = pool(who, layout), pool(who, "page_first")
    store, seen = factory(who, host, OURS | {"store": "lmdb", "interface_v1": interface_v1} | extra)
    client = make_client("lmdb", who, extra, {})
    names = names_of(range(6))
    fill(host, names[:3], slots(1, 2, 3))
    fill(own, names[3:], slots(0, 1, 2))
    assert store.batch_exists(names) == 0
    assert put(store, seen, names[:3], 1, 2, 3, interface_v1=interface_v1) is True
    assert client.put(names[3:], own, slots(0, 1, 2)) == 3
    assert store.batch_exists(names) == client.exists(names) == 6
    assert client.get(names[:3], own, slots(4, 5, 6)) == 3
    assert wrong(own, names[:3], slots(4, 5, 6)) == []
    assert get(store, seen, [*names[3:], *names_of([99])], 4, 5, 6, 7, interface_v1=interface_v1) == 3
    assert wrong(host, names[3:], slots(4, 5, 6)) == []
    assert store.exists(names[0])
    store.clear()
    assert not store.exists(names[0])
    client.close()


def put(store: Any, seen: UpstreamHost, names: list[str], *pages: int, interface_v1: int) -> bool:
    """As the controller does it (`_page_set_zero_copy`, `_generic_page_set`)."""
    tokens = seen.tokens(*pages)
    if interface_v1:
        return all(store.batch_set_v1(names, tokens, None))
    return bool(store.batch_set(names, [seen.get_data_page(token) for token in tokens[:: seen.page_size]]))


def get(store: Any, seen: UpstreamHost, names: list[str], *pages: int, interface_v1: int) -> int:
    """Leading pages that came (`_page_get_zero_copy`, `_generic_page_get`)."""
    tokens = seen.tokens(*pages)
    if interface_v1:
        return [*store.batch_get_v1(names, tokens, None), False].index(False)
    came = store.batch_get(names, [seen.get_dummy_flat_data_page() for _ in names])
    for token, page in zip(tokens[:: seen.page_size], came, strict=True):
        if page is not None:
            seen.set_from_flat_data_page(token, page)
    return [*(page is not None for page in came), False].index(False)


def test_a_store_of_ours_that_fails_raises_nothing(factory, tmp_path, caplog, monkeypatch):
    host = pool(WHO, "page_first")
    store, seen = factory(WHO, host, OURS | {"store": "file", "file_storage_path": str(tmp_path), "interface_v1": 1})
    names = names_of(range(3))
    assert put(store, seen, names, 0, 1, 2, interface_v1=1)

    def fails(*_: object) -> int:
        raise StoreFailed("the disk is gone", 1)

    for call in ("exists", "get", "put"):
        monkeypatch.setattr(store._client, call, fails)
    assert store.batch_exists(names) == 1
    assert store.batch_get_v1(names, seen.tokens(0, 1, 2)) == [True, False, False]
    assert store.batch_set_v1(names, seen.tokens(0, 1, 2)) == [True, False, False]
    assert caplog.messages == ["the disk is gone"] * 3


def test_settings_that_are_none(factory, tmp_path):
    with pytest.raises(ValueError, match="give a store in the extra config, one of file, lmdb"):
        factory(WHO, pool(WHO, "page_first"), OURS)
    with pytest.raises(ValueError, match="knows no pth"):
        factory(WHO, pool(WHO, "page_first"), OURS | {"store": "lmdb", "pth": str(tmp_path)})


def test_context_parallel_ranks_keep_apart(factory, tmp_path):
    """Each has a part of every page, under the same name."""
    upstream, host = stores(), pool(WHO, "page_first")
    extra = OURS | {"store": "lmdb", "path": str(tmp_path), "max_size": "100M", "extra_backend_tag": "t"}
    first, second = (factory(WHO, host, extra)[0] for _ in range(2))
    for rank, store in enumerate((first, second)):
        config = upstream.config(WHO, extra)
        config.attn_cp_rank, config.attn_cp_size = rank, 2
        store.__init__(config, {})
        store.register_mem_pool_host(UpstreamHost(host))
    names, tokens = names_of(range(2)), UpstreamHost(host).tokens(0, 1)
    assert all(first.batch_set_v1(names, tokens))
    assert first.batch_exists(names) == 2
    assert second.batch_exists(names) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("who", [WHO, REPLICA], ids=["mha", "mla"])
def test_a_class_of_others_finds_what_it_wrote_for_sglang(who, factory, tmp_path):
    """PeerCache by upstream's factory, and by our `dynamic`: one cluster, the same names and bytes."""
    pytest.importorskip("peercache")
    host, own = pool(who, "page_first"), pool(who, "page_first")
    settings, names = peercache_nodes.settings(free_port(), "m"), names_of(range(6))
    with peercache_nodes.tidy() as nodes:
        store, seen = factory(who, host, settings)
        client = make_client("dynamic", who, settings, {})
        nodes.extend((client._store, store))
        peercache_nodes.settle(nodes)
        fill(host, names[:3], slots(1, 2, 3))
        fill(own, names[3:], slots(0, 1, 2))
        assert all(store.batch_set_v1(names[:3], seen.tokens(1, 2, 3)))
        assert client.put(names[3:], own, slots(0, 1, 2)) == 3
        assert store.batch_exists(names) == client.exists(names) == 6
        assert client.get(names[:3], own, slots(4, 5, 6)) == 3
        assert wrong(own, names[:3], slots(4, 5, 6)) == []
        assert all(store.batch_get_v1(names[3:], seen.tokens(4, 5, 6)))
        assert wrong(host, names[3:], slots(4, 5, 6)) == []
