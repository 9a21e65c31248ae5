"""The same bytes, cut in different places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.data.storage import pieces
from hicache_ref.data.storage.pieces import components, pour

from .fakes import FakeHost, content, read_page, write_page

CUTS = st.lists(st.integers(0, 300), max_size=6)


def cut(data: bytearray, cuts: list[int]) -> list[memoryview]:
    ends = sorted(min(at, len(data)) for at in cuts)
    return [memoryview(data)[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(size=st.integers(0, 300), here=CUTS, there=CUTS, chunk=st.integers(1, 100))
def test_all_bytes_arrive_and_are_seen_once(size, here, there, chunk):
    source, target, seen = bytearray(content("x", size)), bytearray(size), bytearray()
    chunks, pieces.CHUNK_BYTES = pieces.CHUNK_BYTES, chunk
    try:
        pour(cut(source, here), cut(target, there), seen.extend)
    finally:
        pieces.CHUNK_BYTES = chunks
    assert target == source == seen


@given(count=st.sampled_from([1, 2, 3]), cuts=st.sampled_from([1, 2, 3, 4, 6]))
def test_components_are_the_page_in_equal_parts(count, cuts):
    host = FakeHost(3, cuts)
    write_page(host, 1, content("y"))
    parts = components(host, 1, count)
    assert b"".join(parts) == read_page(host, 1)
    assert {part.nbytes for part in parts} == {host.page_bytes // count}
    host.memory[:] = 7
    assert (bytes(parts[0][:9]) == bytes([7] * 9)) == (count == cuts)  # in place only where they are cut alike
