"""Stores of one piece a page, on a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.data.storage.client import StorageClient, StorageIdentity
from hicache_ref.data.storage.flat import gather, scatter

from .contract import WHO, StorageContract, slots
from .fakes import PAGE_BYTES, DictClient, FakeHost, content, fill, names_of, read_page


class TestFlatPages(StorageContract):
    strangers = ("model", "longer model", "rank", "stage", "tag")

    @pytest.fixture(autouse=True)
    def _dictionary(self):
        self.pages: dict[str, bytes] = {}

    def opener(self, tmp_path: Path) -> Callable[[StorageIdentity], StorageClient]:
        return lambda identity: DictClient(identity, self.pages)

    def resize(self, tmp_path: Path, identity: StorageIdentity, name: str, size_bytes: int) -> bool:
        key = DictClient(identity, {}).key(name)
        self.pages[key] = self.pages[key][:size_bytes].ljust(size_bytes, b"\0")
        return True

    def test_a_page_of_another_length_is_written_again(self):
        pytest.skip("a dictionary of bytes cannot tell lengths before it reads")


def test_a_store_without_room_refuses():
    client, names, host = DictClient(WHO, {}, room=3), names_of(range(5)), FakeHost(8)
    fill(host, names, np.arange(5))
    assert client.put(names, host, np.arange(5)) == 3
    assert client.put(names[1:], host, np.arange(1, 5)) == 2
    assert client.get(names, host, np.arange(5)) == 3
    assert client.stats()["refused_pages"] == 4


def test_only_what_is_missing_is_written():
    pages: dict[str, bytes] = {}
    client, names, host = DictClient(WHO, pages), names_of(range(4)), FakeHost(8)
    fill(host, names, np.arange(4))
    client.put([names[1], names[3]], host, slots(1, 3))
    assert client.put(names, host, np.arange(4)) == 4
    assert client.stats()["present_pages"] == 2
    assert sorted(pages.values()) == sorted(content(name) for name in names)


@given(pieces=st.sampled_from([1, 2, 3, 4, 6, 8, 12]), page=st.integers(0, 4))
def test_gather_and_scatter_are_inverse(pieces, page):
    host = FakeHost(5, pieces)
    data = content(str(page))
    assert scatter(data, host, page)
    assert gather(host, page) == read_page(host, page) == data
    assert not scatter(data[1:], host, page)
    assert not scatter(data + b"x", host, page)
    assert read_page(host, page) == data
    assert all(read_page(host, other) == bytes(PAGE_BYTES) for other in range(5) if other != page)
