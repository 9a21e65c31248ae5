"""Stores of somebody else's: a class by name, called as SGLang calls it; one from PyPI for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hicache_ref.config.layouts import LAYOUTS  # noqa: E402
from hicache_ref.data.pools import HostPool  # noqa: E402
from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed  # noqa: E402
from hicache_ref.data.storage.registry import make_client  # noqa: E402

from . import peercache_nodes  # noqa: E402
from .contract import MHA, MLA, REPLICA, WHO, StorageContract, slots  # noqa: E402
from .fakes import FakeHost, fill, names_of, wrong  # noqa: E402
from .servers import free_port  # noqa: E402
from .third_party import SPACES, DictStore  # noqa: E402

THIRD_PARTY = {"backend_name": "dict", "module_path": "tests.storage.third_party", "class_name": "DictStore"}


def make(who: StorageIdentity = WHO, **extra: object) -> StorageClient:
    tag = {"extra_backend_tag": who.tag} if who.tag else {}
    return make_client("dynamic", who, THIRD_PARTY | tag | extra, {})


class OnDictionary(StorageContract):
    interface_v1 = 0

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: make(identity, space=str(tmp_path), interface_v1=self.interface_v1)


class TestByValue(OnDictionary):
    pass


class TestByAddress(OnDictionary):
    interface_v1 = 1


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "layer_first", "page_head"])
@pytest.mark.parametrize(("who", "geometry"), [(WHO, MHA), (REPLICA, MLA)], ids=["mha", "mla"])
def test_pages_are_where_they_lie_if_they_lie_whole(layout, who, geometry, tmp_path):
    client, host = (
        make(who, space=str(tmp_path), interface_v1=1),
        HostPool(LAYOUTS[layout], geometry, 4, torch.bfloat16, pin=False),
    )
    names = names_of(range(2))
    fill(host, names, slots(1, 2))
    assert client.put(names, host, slots(1, 2)) == 2
    (pool,) = client._store.pools_seen
    inside = host.memory.address <= pool.kv_buffer.data_ptr() < host.memory.address + host.memory.size
    assert inside == LAYOUTS[layout].page_contiguous
    assert client._store.bursts == 1
    flat = b"".join(host.page_memory(1))
    parts = [value for key, value in sorted(SPACES[str(tmp_path)].items()) if key.startswith(names[0])]
    assert b"".join(parts) == flat


def test_two_hosts_take_turns(tmp_path):
    """The class knows the last pool only, so it is told again whenever the other one is meant."""
    client, names = make(space=str(tmp_path), interface_v1=1), names_of(range(4))
    hosts = [FakeHost(8, pieces=2), FakeHost(8, pieces=3)]
    for at, host in enumerate((*hosts, *hosts)):
        fill(host, names[at : at + 1], slots(at))
        assert client.put(names[at : at + 1], host, slots(at)) == 1
    assert client.get(names, hosts[0], slots(4, 5, 6, 7)) == 4
    assert wrong(hosts[0], names, slots(4, 5, 6, 7)) == []
    assert len(client._store.pools_seen) == 5


def test_batches_are_no_larger_than_sglangs(tmp_path):
    client, host, names = make(space=str(tmp_path), interface_v1=1), FakeHost(300), names_of(range(300))
    fill(host, names, np.arange(300))
    assert client.put(names, host, np.arange(300)) == 300
    host.memory[:] = 0
    assert client.get(names, host, np.arange(300)[::-1].copy()) == 300
    assert wrong(host, names, np.arange(300)[::-1]) == []


@pytest.mark.parametrize("interface_v1", [0, 1])
def test_a_page_that_is_not_whole_is_a_miss(interface_v1, tmp_path):
    client, host, names = make(space=str(tmp_path), interface_v1=interface_v1), FakeHost(8), names_of(range(4))
    assert client.put(names, host, slots(0, 1, 2, 3)) == 4
    pages = SPACES[str(tmp_path)]
    key = next(key for key in pages if key.startswith(names[2]))
    pages[key] = pages[key][:-1]
    assert client.get(names, host, slots(4, 5, 6, 7)) == 2
    assert client.stats()["missed_pages"] == 1


@pytest.mark.parametrize("interface_v1", [0, 1])
def test_a_store_without_room_refuses(interface_v1, tmp_path):
    client = make(space=str(tmp_path), interface_v1=interface_v1, room=6)
    host, names = FakeHost(8), names_of(range(8))
    fill(host, names, np.arange(8))
    stored = client.put(names, host, np.arange(8))
    assert 0 < stored < 8
    assert client.stats()["refused_pages"] == 8 - stored
    assert client.get(names, host, np.arange(8)) == stored


def test_what_a_class_raises_is_a_failure(tmp_path, monkeypatch):
    client = make(space=str(tmp_path), interface_v1=1)

    def explode(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(DictStore, "batch_exists", explode)
    with pytest.raises(StoreFailed, match=r"store 'dict': KeyError\('a bug'\)"):
        client.exists(names_of(range(2)))
    monkeypatch.setattr(DictStore, "batch_get_v1", explode)
    with pytest.raises(StoreFailed, match="a bug"):
        client.get(names_of(range(2)), FakeHost(4), slots(0, 1))


def test_a_class_is_closed_once(tmp_path):
    client = make(space=str(tmp_path))
    client.close()
    client.close()
    assert client._store.closed == 1


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"module_path": "no.such.module"}, "cannot import no.such.module: No module named 'no'"),
        ({"class_name": "Nothing"}, "tests.storage.third_party has no class Nothing; correct class_name"),
        ({"broken": 1}, "storage backend 'dict' cannot be set up: no server there"),
        ({"class_name": None}, "give module_path and class_name"),
    ],
)
def test_classes_that_cannot_be_had(extra, says, tmp_path):
    with pytest.raises(StorageError, match=says):
        make(space=str(tmp_path), **extra)


# A store from PyPI: nodes that keep what they write, and a directory among them


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
class TestPeerCache(StorageContract):
    strangers = ("model", "longer model", "rank", "stage", "tag")
    survives_close = False
    many = 2000
    clears_only_its_own = False

    @pytest.fixture(autouse=True)
    def _nodes(self) -> Iterator[None]:
        pytest.importorskip("peercache")
        self.port = free_port()
        with peercache_nodes.tidy() as self.nodes:
            yield

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        def one(identity: StorageIdentity) -> StorageClient:
            settings = peercache_nodes.settings(self.port, f"{identity.tag}-{identity.model_name}")
            client = make_client("dynamic", identity, settings, {})
            self.nodes.append(client._store)
            peercache_nodes.settle(self.nodes)
            return client

        return one
