"""Mooncake: the contract on a real master and a real owner of memory, upstream's keys, settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_ref.config.layouts import LAYOUTS
from hicache_ref.data.storage.client import StorageClient, StorageError, StorageIdentity, StoreFailed
from hicache_ref.data.storage.mooncake import (
    Connection,
    MooncakeClient,
    Settings,
    key_prefix,
    key_suffixes,
    read_settings,
)
from hicache_ref.data.storage.options import Options
from hicache_ref.data.storage.registry import make_client

from .contract import MHA, WHO, StorageContract, slots
from .fakes import PAGE_BYTES, FakeHost, fill, name_of, names_of, wrong
from .mooncake_cluster import Cluster, cluster, extra_config
from .servers import free_port


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("mooncake")) as found:
        yield found


@pytest.fixture
def connection(mooncake: Cluster):
    """To an empty store."""
    mooncake.connection.store.remove_all(True)
    return mooncake.connection


def client_of(connection: Connection, identity: StorageIdentity = WHO, **more: object) -> MooncakeClient:
    return MooncakeClient(identity, connection, lambda: None, **more)


class TestMooncake(StorageContract):
    strangers = ("model", "longer model", "rank", "stage", "tag")

    @pytest.fixture(autouse=True)
    def _connection(self, connection):
        self.connection, self.store = connection, connection.store

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: client_of(self.connection, identity)

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        """The change is the values', so that the keys alone look well."""
        key = key_prefix(identity) + name + key_suffixes(identity)[1]
        data, size = self.store.get(key), max(PAGE_BYTES // 2 + size_bytes - PAGE_BYTES, 1)
        assert self.store.remove(key, True) == self.store.put(key, data[:size].ljust(size, b"\0")) == 0
        return True

    def test_a_page_of_another_length_is_written_again(self):
        pytest.skip("objects of this store are never rewritten, and it tells no lengths before it reads")


class TestVerifiedMooncake(TestMooncake):
    """Objects with seals beside them."""

    many = 1_000

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: client_of(self.connection, identity, verify=True)

    def damage(self, tmp_path: Path, identity: StorageIdentity, name: str) -> bool:
        key = key_prefix(identity) + name + key_suffixes(identity)[-1]
        data = bytearray(self.store.get(key))
        data[7] ^= 1
        assert self.store.remove(key, True) == self.store.put(key, bytes(data)) == 0
        return True

    def test_what_sglang_wrote_is_read_and_what_is_sealed_it_reads(self, connection):
        plain, sealed, host = client_of(connection), client_of(connection, verify=True), FakeHost(8, pieces=2)
        names = names_of(range(4))
        fill(host, names, slots(0, 1, 2, 3))
        assert plain.put(names[:2], host, slots(0, 1)) == sealed.put(names[2:], host, slots(2, 3)) == 2
        for reader in (plain, sealed):
            host.memory[:, 4:] = 0
            assert reader.get(names, host, slots(4, 5, 6, 7)) == 4
            assert wrong(host, names, slots(4, 5, 6, 7)) == []
        sealed.clear()
        assert self.store.remove_all(True) == 0, "seals go with what they seal"


# Objects


def test_heads_are_shared_by_systems_of_different_size(connection):
    """What a rank of two wrote, ranks of four read, each its heads; with page_head, where heads lie in one piece."""
    torch = pytest.importorskip("torch")
    from hicache_ref.data.pools import HostPool

    def rank(rank: int, ranks: int) -> tuple[MooncakeClient, HostPool]:
        identity = StorageIdentity("m", rank, ranks, layout="page_head")
        geometry = replace(MHA, heads=MHA.heads * 2 // ranks)
        host = HostPool(LAYOUTS["page_head"], geometry, 4, torch.bfloat16, pin=False)
        return client_of(connection, identity, tp_lcm_size=4), host

    names = names_of(range(2))
    (writer, whole), readers = rank(1, 2), [rank(2, 4), rank(3, 4)]
    fill(whole, names, slots(0, 1))
    assert writer.put(names, whole, slots(0, 1)) == 2
    for at, (reader, host) in enumerate(readers):
        assert reader.get(names, host, slots(2, 3)) == 2
        for component in range(2):
            heads = whole.view(component)[:, :2, :, at : at + 1].contiguous().view(torch.uint8)
            assert torch.equal(host.view(component)[:, 2:].contiguous().view(torch.uint8), heads)


def test_a_size_that_ranks_do_not_divide_is_an_error(connection):
    with pytest.raises(StorageError, match="not a multiple of TP size 4"):
        client_of(connection, tp_lcm_size=6)


def test_objects_of_a_page_may_be_a_group(connection):
    client, host, names = client_of(connection, grouped=True), FakeHost(4, pieces=2), names_of(range(2))
    fill(host, names, slots(0, 1))
    assert client.put(names, host, slots(0, 1)) == 2
    assert client.get(names, host, slots(2, 3)) == 2
    assert wrong(host, names, slots(2, 3)) == []


def test_memory_that_has_gone_is_forgotten(connection):
    """New memory may lie where old has lain."""
    client, names = client_of(connection), names_of(range(4))
    for _ in range(20):
        host = FakeHost(4)
        fill(host, names, slots(0, 1, 2, 3))
        assert client.put(names, host, slots(0, 1, 2, 3)) == 4
        assert client.get(names, host, slots(3, 2, 1, 0)) == 4
        assert wrong(host, names, slots(3, 2, 1, 0)) == []


# Codes


class Scripted:
    """A store that answers with the same code, however often it is asked, about all objects from the third on."""

    def __init__(self, code: int, known: int = 0) -> None:
        self.code, self.known = code, known

    def register_buffer(self, address: int, size: int) -> int:
        return 0

    unregister_buffer = close = register_buffer

    def _answer(self, keys: list[str], good: list[int]) -> list[int]:
        return [*good[:2], *([self.code] * len(keys))][: len(keys)]

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return self._answer(keys, [1, 1]) if self.known else [0] * len(keys)

    def batch_get_into(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        return self._answer(keys, sizes)

    def batch_put_from(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        return self._answer(keys, [0, 0])


def scripted(code: int, known: int = 0) -> MooncakeClient:
    return MooncakeClient(WHO, Connection(Scripted(code, known), ""), lambda: None)


@pytest.mark.parametrize("code", [-800, -900])
def test_a_store_that_is_unwell_raises_with_what_was_good(code):
    names, host, at = names_of(range(3)), FakeHost(3, pieces=2), slots(0, 1, 2)
    for call in (
        lambda: scripted(code, known=1).exists(names),
        lambda: scripted(code).get(names, host, at),
        lambda: scripted(code).put(names, host, at),
    ):
        with pytest.raises(StoreFailed, match=str(code)) as failure:
            call()
        assert failure.value.pages_ok == 1


def test_no_room_is_a_refusal():
    client = scripted(-200)
    assert client.put(names_of(range(3)), FakeHost(3, pieces=2), slots(0, 1, 2)) == 1
    assert client.stats()["refused_pages"] == 2


@pytest.mark.parametrize("code", [-703, -704, -707])
def test_what_is_not_there_is_a_miss(code):
    client = scripted(code)
    assert client.get(names_of(range(3)), FakeHost(3, pieces=2), slots(0, 1, 2)) == 1
    assert client.stats()["missed_pages"] == 1


def test_a_full_store_takes_what_it_can(mooncake, connection):
    """Larger than all memory that is lent, and all of it held by leases: some pages go in, none waits."""
    count, page_bytes = 96, 4 << 20
    client, host, names = client_of(connection), FakeHost(1, 2, page_bytes), names_of(range(count))
    good = 0
    for name in names:
        good += client.put([name], host, slots(0))
        client.exists(names)
    assert 32 <= good < count
    assert client.stats()["refused_pages"] == count - good


def test_closing_does_not_wait_for_a_call_that_hangs():
    entered, leave, let_go = threading.Event(), threading.Event(), threading.Event()

    class Hanging(Scripted):
        def batch_is_exist(self, keys: list[str]) -> list[int]:
            entered.set()
            leave.wait(20)
            return [1] * len(keys)

    client = MooncakeClient(WHO, Connection(Hanging(0), ""), let_go.set)
    call = threading.Thread(target=client.exists, args=(names_of(range(2)),))
    call.start()
    assert entered.wait(20)
    client.close()
    with pytest.raises(StoreFailed, match="closed"):
        client.exists(names_of(range(2)))
    assert not let_go.is_set()  # freed under a call, it would end the process
    leave.set()
    call.join(20)
    assert let_go.is_set()


# Settings


def settings(extra: dict[str, object], environ: dict[str, str] | None = None, **rank: int) -> Settings:
    options = Options("mooncake", extra, environ or {})
    found = read_settings(StorageIdentity("m", **rank), options)
    options.end()
    return found


def test_settings_come_from_the_extra_config():
    found = settings(
        {"master_server_address": "h:1", "global_segment_size": "8gb", "protocol": "tcp", "check_server": True},
        {"MOONCAKE_MASTER": "other:2", "MOONCAKE_DEVICE": "mlx5_0", "MOONCAKE_LOCAL_HOSTNAME": "node7"},
        tp_size=2,
        pp_size=2,
    )
    assert (found.master, found.protocol, found.device_name, found.local_hostname) == ("h:1", "tcp", "", "node7")
    assert found.global_segment_bytes == 2 << 30
    assert (found.metrics_url, found.waits) == ("http://h:9003", True)


def test_settings_come_from_a_file(tmp_path):
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({"master_server_address": "h:1", "device_name": '{"0": "a", "1": "b"}'}))
    environ = {"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": str(path), "MOONCAKE_MASTER": "other:2"}
    assert (settings({}, environ, tp_rank=1, tp_size=2).device_name, settings({}, environ).master) == ("b", "h:1")
    path.write_text(json.dumps({"master_server_address": "h:1", "colour": "red"}))
    with pytest.raises(StorageError, match="knows no colour"):
        settings({}, environ)


def test_settings_come_from_variables():
    environ = {
        "MOONCAKE_MASTER": "h:1",
        "MOONCAKE_TE_META_DATA_SERVER": "http://h/metadata",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "1048576",
        "MOONCAKE_ENABLE_SSD_OFFLOAD": "1",
        "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/ssd",
        "MOONCAKE_TENANT_ID": "t",
    }
    found = settings({}, environ, tp_rank=1, tp_size=2)
    assert (found.metadata_server, found.global_segment_bytes, found.protocol) == ("http://h/metadata", 1 << 19, "rdma")
    assert found.extras == {"enable_ssd_offload": True, "ssd_offload_path": "/ssd/rank_0_1_0_0", "tenant_id": "t"}


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({}, "no master; set master_server_address"),
        ({"master_server_address": "h:1", "global_segment_size": "4 tons"}, "global_segment_size .* a size"),
        ({"master_server_address": "h:1", "standalone_storage": True}, "allocator"),
        ({"master_server_address": "h:1", "device_name": "{no"}, "neither a device nor JSON"),
    ],
)
def test_settings_that_cannot_be(extra, match):
    with pytest.raises(StorageError, match=match):
        settings(extra)


def test_an_unknown_key_is_an_error():
    with pytest.raises(StorageError, match="knows no colour"):
        make_client("mooncake", WHO, {"master_server_address": "h:1", "colour": "red"}, {})


def test_a_client_from_settings_works(mooncake, connection):
    client, host, names = make_client("mooncake", WHO, extra_config(mooncake.master), {}), FakeHost(4), names_of([1])
    try:
        fill(host, names, slots(0))
        assert client.put(names, host, slots(0)) == 1
        assert client_of(connection).exists([name_of(1)]) == 1
    finally:
        client.close()


def test_without_a_master_there_is_a_line():
    with pytest.raises(StorageError, match="start mooncake_master"):
        make_client("mooncake", WHO, extra_config(f"127.0.0.1:{free_port()}"), {})
