"""What SGLang's Mooncake store writes is read here, under the same keys, and the other way round; on a real cluster."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hicache_ref.data.storage.client import StorageIdentity  # noqa: E402
from hicache_ref.data.storage.mooncake import MooncakeClient  # noqa: E402

from .fakes import fill, names_of, wrong  # noqa: E402
from .mooncake_cluster import cluster, extra_config  # noqa: E402
from .upstream_stores import UpstreamHost, host_pool, stores  # noqa: E402

MLA = {"replicated": True}
IDENTITIES = {
    "mha": StorageIdentity("org/model", 1, 4),
    "direct": StorageIdentity("org/model", 1, 4, layout="page_first_direct"),
    "heads": StorageIdentity("org/model", 1, 4, layout="page_head"),
    "mha, stages": StorageIdentity("org/model", 1, 4, 1, 2),
    "tag": StorageIdentity("org/model", 1, 4, tag="mine"),
    "nameless": StorageIdentity("", 0, 1),
    "mla": StorageIdentity("org/latent", 0, 4, **MLA),
    "mla, stages": StorageIdentity("org/latent", 0, 4, 1, 2, **MLA),
    "mla, layers": StorageIdentity("org/latent", 0, 4, layout="layer_first", **MLA),
    "mla, split": StorageIdentity("org/latent", 0, 4, layout="page_first_kv_split", **MLA),
}


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("mooncake")) as found:
        yield found


@pytest.fixture(scope="module")
def theirs(mooncake):
    """Makes upstream's store for an identity, on the connection that is there: a new one takes a second."""

    def make(who: StorageIdentity, host: UpstreamHost):
        upstream = stores()
        module = upstream.module("mooncake_store.mooncake_store")
        extra = extra_config(mooncake.master) | ({"extra_backend_tag": who.tag} if who.tag else {})
        with upstream.in_place(), pytest.MonkeyPatch.context() as patch:
            found = mooncake.connection.store
            patch.setattr(module.MooncakeBaseStore, "_import_mooncake_store", lambda _: lambda: found)
            patch.setattr(type(found), "setup", lambda *_, **__: 0)
            store = module.MooncakeStore(upstream.config(who, extra))
        # The memory is registered by our client, and cannot be twice.
        store.mem_pool_host = host
        return store

    return make


@pytest.mark.parametrize("who", IDENTITIES.values(), ids=list(IDENTITIES))
def test_both_read_what_the_other_has_written(who, mooncake, theirs):
    mooncake.connection.store.remove_all(True)
    host, names = host_pool(who), names_of(range(4))
    duck = UpstreamHost(host)
    client, store = MooncakeClient(who, mooncake.connection, lambda: None), theirs(who, duck)
    fill(host, names, np.arange(4))
    assert client.put(names[:2], host, np.arange(2)) == 2
    assert store.batch_set_v1(names[2:], duck.tokens(2, 3)) == [True, True]
    assert client.exists(names) == store.batch_exists(names) == 4
    host.poison(range(8))
    assert store.batch_get_v1(names[:2], duck.tokens(4, 5)) == [True, True]
    assert client.get(names[2:], host, np.array([6, 7])) == 2
    assert wrong(host, names, np.array([4, 5, 6, 7])) == []
