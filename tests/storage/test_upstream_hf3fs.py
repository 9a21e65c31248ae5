"""What SGLang's 3FS store writes is read here, and the other way round, on one file and our metadata server; and our
page table decides as upstream's does."""

from __future__ import annotations

import atexit
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("requests", reason="upstream's metadata client needs requests")

from hicache_ref.data.storage.client import StorageIdentity  # noqa: E402
from hicache_ref.data.storage.hf3fs import Settings, open_client  # noqa: E402
from hicache_ref.data.storage.threefs.table import PageTable, Place  # noqa: E402

from .fakes import fill, names_of, wrong  # noqa: E402
from .servers import free_port, running, says  # noqa: E402
from .upstream_stores import UpstreamHost, host_pool, stores  # noqa: E402

FILE_BYTES = 4 << 20
IDENTITIES = {
    "mha": StorageIdentity("org/model", 1, 4),
    "direct": StorageIdentity("org/model", 1, 4, layout="page_first_direct"),
    "heads": StorageIdentity("org/model", 1, 4, layout="page_head"),
    "layers": StorageIdentity("org/model", 2, 4, layout="layer_first"),
    "mla": StorageIdentity("org/latent", 0, 4, replicated=True),
    "mla, layers": StorageIdentity("org/latent", 0, 4, replicated=True, layout="layer_first"),
}


def servers_module() -> object:
    upstream = stores()
    upstream._stand_in("orjson", dumps=lambda data: json.dumps(data).encode(), loads=json.loads)
    upstream._stand_in("fastapi", FastAPI=object, HTTPException=Exception, Request=object, Response=object)
    upstream._stand_in("fastapi.responses", ORJSONResponse=object)
    for name in ("hf3fs_client", "storage_hf3fs"):
        upstream.module(f"hf3fs.{name}")
    return upstream.module("hf3fs.mini_3fs_metadata_server")


@pytest.fixture
def server(tmp_path):
    log, port = tmp_path / "server.log", free_port()
    command = [sys.executable, "-m", "hicache_ref.data.storage.threefs.server", "--port", str(port)]
    with running(command, log, says(log, "listens on")):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # upstream's plain file, reading
@pytest.mark.parametrize("who", IDENTITIES.values(), ids=list(IDENTITIES))
def test_both_read_what_the_other_has_written(who, server, tmp_path, monkeypatch):
    host, names = host_pool(who), names_of(range(4))
    duck, prefix = UpstreamHost(host), str(tmp_path / "pages")
    client = open_client(who, Settings(prefix, FILE_BYTES, 2, 4, server, 5.0, mock=True, verify=True))
    store = theirs(who, duck, f"{prefix}.{0 if who.replicated else who.tp_rank}.bin", server, monkeypatch)
    fill(host, names, np.arange(4))
    assert client.put(names[:2], host, np.arange(2)) == 2
    assert all(store.batch_set_v1(names[2:], duck.tokens(2, 3)))
    assert client.exists(names) == store.batch_exists(names) == 4
    host.poison(range(8))
    assert all(store.batch_get_v1(names[:2], duck.tokens(4, 5)))
    assert client.get(names[2:], host, np.array([6, 7])) == 2
    assert wrong(host, names, np.array([4, 5, 6, 7])) == []
    store.close()
    client.close()
    store.metadata_client._session.close()


def theirs(who: StorageIdentity, host: UpstreamHost, path: str, server: str, patch: pytest.MonkeyPatch) -> object:
    metadata = servers_module()
    pieces = 2 if who.layout in ("page_first", "page_first_direct") and not who.replicated else 1
    patch.setattr(atexit, "register", lambda *_: None)
    with stores().in_place():
        store = (
            stores()
            .module("hf3fs.storage_hf3fs")
            .HiCacheHF3FS(
                rank=who.tp_rank,
                file_path=path,
                file_size=FILE_BYTES,
                numjobs=2,
                bytes_per_page=host.host.page_bytes // pieces,
                entries=4,
                client_timeout=5,
                dtype=torch.uint8,
                metadata_client=metadata.Hf3fsGlobalMetadataClient(server),
                is_mla_model=who.replicated,
                is_page_first_layout=who.layout == "page_first",
                use_mock_client=True,
            )
        )
    store.register_mem_pool_host(host)
    return store


KEYS = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=4, unique=True)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "fail", "find", "exists", "delete", "clear"]), KEYS), max_size=30)


@settings(max_examples=60, deadline=None)
@given(pages=st.integers(4, 8), steps=STEPS)
def test_the_table_decides_as_upstreams(pages, steps):
    """One writer at a time, as many pages as it asks for: then upstream loses none, and both agree at each step."""
    ours, upstreams = PageTable(pages), servers_module().RankMetadata(pages)
    sides = SimpleNamespace(
        reserve=lambda keys: (ours.reserve(keys), upstreams.reserve_and_allocate_page_indices([(k, "") for k in keys])),
        find=lambda keys: ([p and p.page for p in ours.find(keys)], upstreams.get_page_indices(keys)),
    )
    for call, keys in steps:
        if call in ("put", "fail"):
            mine, their = sides.reserve(keys)
            assert mine == their
            new = [(key, page) for key, (known, page) in zip(keys, mine, strict=True) if not known]
            written, released = (new, []) if call == "put" else ([], [page for _, page in new])
            ours.confirm([(key, Place(page)) for key, page in written], released)
            upstreams.confirm_write(written, released)
        elif call == "find":
            mine, their = sides.find(keys)
            assert mine == their
        elif call == "exists":
            assert ours.exists(keys) == upstreams.exists_keys(keys)
        elif call == "delete":
            ours.delete(keys)
            upstreams.delete_keys(keys)
        else:
            ours.clear()
            upstreams.clear_all()
