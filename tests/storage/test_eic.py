"""EIC's client, on a module of the same shape: the contract, keys and bytes of upstream's class, settings, failures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml")

from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed
from hicache_ref.data.storage.registry import make_client

from . import fake_eic
from .contract import REPLICA, WHO, StorageContract, slots
from .fakes import FakeHost, fill, names_of, wrong

ENDPOINT = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eic", fake_eic)  # type: ignore[arg-type]
    for memory in (fake_eic.SERVERS, fake_eic.DOWN, fake_eic.ROOM):
        memory.clear()


def make(tmp_path: Path, who: StorageIdentity = WHO, **settings: object) -> StorageClient:
    given = {"remote_url": f"eic://{ENDPOINT}", "eic_instance_id": "7", "eic_log_dir": str(tmp_path / "log")}
    return make_client("eic", who, given | settings, {})


class TestEic(StorageContract):
    layout = "layer_first"
    strangers = ("model", "longer model", "rank", "ranks", "tag")

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: make(tmp_path, replace(identity, layout=self.layout))


class TestEicZeroCopy(TestEic):
    layout = "page_first"


@pytest.mark.parametrize("who", [WHO, REPLICA], ids=["mha", "mla"])
def test_pages_in_one_piece_are_sent_from_where_they_lie(who, tmp_path):
    pieces = 1 if who.replicated else 2
    client, host = make(tmp_path, who), FakeHost(8, pieces)
    names = names_of(range(3))
    fill(host, names, slots(0, 1, 2))
    assert client.put(names, host, slots(0, 1, 2)) == 3
    assert client._connection.registered == host.regions()
    assert client.get(names, host, slots(5, 6, 7)) == 3
    assert wrong(host, names, slots(5, 6, 7)) == []
    assert client._connection.registered == host.regions()


@pytest.mark.parametrize("direct", [True, False])
def test_scattered_pages_go_through_a_block(direct, tmp_path):
    client = make(tmp_path, enable_kvset_direct=direct, enable_kvget_direct=direct)
    host, names = FakeHost(8, 3), names_of(range(3))
    assert client.put(names, host, slots(0, 1, 2)) == 3
    assert [size for _, size in client._connection.registered] == [3 * host.page_bytes] * direct


def test_a_server_without_room_refuses(tmp_path):
    fake_eic.ROOM[ENDPOINT] = 5
    client, host, names = make(tmp_path), FakeHost(8, 2), names_of(range(4))
    assert client.put(names, host, slots(0, 1, 2, 3)) == 2
    assert client.stats()["refused_pages"] == 2
    assert client.exists(names) == client.get(names, host, slots(0, 1, 2, 3)) == 2


def test_a_server_that_is_down(tmp_path):
    client, host, names = make(tmp_path), FakeHost(8, 2), names_of(range(2))
    fake_eic.DOWN.add(ENDPOINT)
    for call in (
        lambda: client.exists(names),
        lambda: client.get(names, host, slots(0, 1)),
        lambda: client.put(names, host, slots(0, 1)),
    ):
        with pytest.raises(StoreFailed, match=r"EIC: .* answers .*UNAVAILABLE"):
            call()
    with pytest.raises(StorageError, match=f"no connection to {ENDPOINT}: its client answers -1"):
        make(tmp_path)
    fake_eic.DOWN.clear()
    assert client.put(names, host, slots(0, 1)) == 2


def test_settings_come_from_the_yaml_file(tmp_path):
    file = tmp_path / "eic.yaml"
    file.write_text(
        f"remote_url: eic://{ENDPOINT}\neic_instance_id: 7\neic_namespace: ours\neic_trans_type: 1\n"
        f"eic_log_dir: {tmp_path / 'log'}\neic_thread_num: 4\n"
    )
    client = make_client("eic", WHO, {"eic_trans_type": 2}, {"REMOTE_EIC_YAML": str(file)})
    assert client._connection.option.transport_type is fake_eic.TransportType.SHM
    assert client.put(names_of([1]), FakeHost(2, 2), slots(0)) == 1
    assert {namespace for namespace, _ in fake_eic.SERVERS[ENDPOINT]} == {"ours"}
    file.write_text("remote_urll: x\n")
    with pytest.raises(StorageError, match="knows no remote_urll"):
        make_client("eic", WHO, {}, {"REMOTE_EIC_YAML": str(file)})
    file.write_text("- x\n")
    with pytest.raises(StorageError, match="must be a YAML mapping"):
        make_client("eic", WHO, {}, {"REMOTE_EIC_YAML": str(file)})


def test_without_settings_or_module(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match="remote_url must be eic://"):
        make_client("eic", WHO, {}, {"REMOTE_EIC_YAML": str(tmp_path / "none")})
    monkeypatch.setitem(sys.modules, "eic", None)
    with pytest.raises(StorageError, match="needs the module eic, which no package index has"):
        make(tmp_path)


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
@pytest.mark.parametrize("who", [WHO, REPLICA], ids=["mha", "mla"])
def test_upstreams_class_and_ours_read_each_other(who, layout, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from .upstream_stores import UpstreamHost, host_pool, stores

    who = replace(who, layout=layout)
    host, own = host_pool(who), host_pool(who)
    names = names_of(range(6))
    fill(host, names[:3], slots(1, 2, 3))
    fill(own, names[3:], slots(0, 1, 2))
    file = tmp_path / "eic.yaml"
    file.write_text(
        f"remote_url: eic://{ENDPOINT}\neic_instance_id: '7'\neic_log_dir: {tmp_path / 'log'}\n"
        "enable_kvset_direct: false\nenable_kvget_direct: false\n"
    )
    monkeypatch.setenv("REMOTE_EIC_YAML", str(file))
    upstream = stores()
    with upstream.in_place():
        seen: Any = UpstreamHost(host)
        store = upstream.module("eic.eic_storage").EICStorage(upstream.config(who, {}), seen)
        store.register_mem_pool_host(seen)
        assert all(store.batch_set_v1(names[:3], seen.tokens(1, 2, 3)))
        client = make_client("eic", who, {})
        assert client.put(names[3:], own, slots(0, 1, 2)) == 3
        assert store.batch_exists(names) == client.exists(names) == 6
        assert client.get(names[:3], own, slots(4, 5, 6)) == 3
        assert wrong(own, names[:3], slots(4, 5, 6)) == []
        assert all(store.batch_get_v1(names[3:], seen.tokens(4, 5, 6)))
        assert wrong(host, names[3:], slots(4, 5, 6)) == []
