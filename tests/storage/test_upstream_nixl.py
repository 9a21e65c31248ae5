"""What SGLang's NIXL store writes is read here, under the same names in the same folders, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nixl_cu12", reason="NIXL is not installed: pip install 'hicache[nixl]'")

from hicache_ref.data.storage.client import StorageIdentity  # noqa: E402
from hicache_ref.data.storage.nixl import Agent, Folders, NixlClient  # noqa: E402
from hicache_ref.data.storage.seal import Digests  # noqa: E402
from hicache_ref.data.storage.watermark import group_of  # noqa: E402

from .fakes import fill, name_of, names_of, wrong  # noqa: E402
from .upstream_stores import UpstreamHost, host_pool, stores  # noqa: E402

IDENTITIES = {
    "mha": StorageIdentity("org/model", 1, 4),
    "direct": StorageIdentity("org/model", 1, 4, layout="page_first_direct"),
    "heads": StorageIdentity("org/model", 1, 4, layout="page_head"),
    "layers": StorageIdentity("org/model", 1, 4, layout="layer_first"),
    "nameless": StorageIdentity("", 0, 1),
    "mla": StorageIdentity("org/latent", 0, 4, replicated=True),
    "mla, layers": StorageIdentity("org/latent", 0, 4, replicated=True, layout="layer_first"),
}


@pytest.fixture(scope="module")
def posix() -> Iterator[Agent]:
    return Agent("POSIX", {}, {})


def make_store(upstream: object, who: StorageIdentity, host: UpstreamHost) -> object:
    """Upstream's store over files in the folders that its variable names."""
    import nixl_cu12._api as api

    nixl = {"nixl_agent": api.nixl_agent, "nixl_agent_config": api.nixl_agent_config, "nixlBind": api.nixlBind}
    upstream._stand_in("nixl._api", **nixl)
    upstream._stand_in(
        "sglang.srt.mem_cache.storage.mmap", alloc_mmap=lambda dims, dtype: torch.zeros(dims, dtype=dtype)
    )
    for name in ("nixl_routing", "nixl_utils", "nixl_cleaner", "nixl_registry"):
        upstream.module(f"nixl.{name}")
    module = upstream.module("nixl.hicache_nixl")
    extra = {"plugin": {"posix": {"active": True}}, "use_direct_io": False, "l3_cleaner_enabled": False}
    with upstream.in_place():
        store = module.HiCacheNixl(upstream.config(who, extra))
    store.register_mem_pool_host(host)
    return store


@pytest.mark.parametrize("who", IDENTITIES.values(), ids=list(IDENTITIES))
def test_both_read_what_the_other_has_written(who, posix, tmp_path, monkeypatch):
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    host, names = host_pool(who), names_of(range(4))
    duck = UpstreamHost(host)
    client = NixlClient(who, posix, Folders(posix, folders, direct=False, sealer=Digests()))
    monkeypatch.setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", ",".join(folders))
    store = make_store(stores(), who, duck)
    fill(host, names, np.arange(4))
    assert client.put(names[:2], host, np.arange(2)) == 2
    assert store.batch_set_v1(names[2:], duck.tokens(2, 3)) == [True, True]
    assert client.exists(names) == store.batch_exists(names) == 4
    host.poison(range(8))
    assert all(store.batch_get_v1(names[:2], duck.tokens(4, 5)))
    assert client.get(names[2:], host, np.array([6, 7])) == 2
    assert wrong(host, names, np.array([4, 5, 6, 7])) == []
    store.close()


@pytest.mark.parametrize("ending", ["_org-m_1_4_k", "_org-m_1_4_v", "_org-m_1_4", "_org-m_k", "_org-m"])
def test_a_pages_files_are_upstreams_group(ending):
    file = name_of(1) + ending
    assert group_of(file) == stores().module("nixl.nixl_cleaner")._parse_group_key(file)
