"""Whole pages to and from files, however little the kernel moves at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.data.storage import vectors

Sizes = st.lists(st.integers(1, 40), min_size=1, max_size=30)
Moves = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@contextmanager
def slow_kernel(limit: int, moves: list[int]) -> Iterator[None]:
    """At most `limit` buffers a call, and at most so many bytes, in turn."""
    real_write, real_read, calls = os.pwritev, os.preadv, [0]

    def cut(buffers: list[memoryview]) -> list[memoryview]:
        assert len(buffers) <= limit
        left, few = moves[calls[0] % len(moves)], []
        calls[0] += 1
        for buffer in buffers:
            few.append(buffer[:left])
            left -= few[-1].nbytes
        return few

    with (
        patch.object(vectors, "IOV_MAX", limit),
        patch.object(os, "pwritev", lambda fd, buffers, at: real_write(fd, cut(buffers), at)),
        patch.object(os, "preadv", lambda fd, buffers, at: real_read(fd, cut(buffers), at)),
    ):
        yield


def views(sizes: list[int]) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


@given(sizes=Sizes, limit=st.integers(1, 8), moves=Moves)
def test_all_is_written(sizes, limit, moves):
    buffers = [memoryview(os.urandom(size)) for size in sizes]
    with tempfile.TemporaryFile() as file:
        with slow_kernel(limit, moves):
            vectors.write_all(file.fileno(), buffers)
        assert file.read() == b"".join(buffers)


@given(sizes=Sizes, limit=st.integers(1, 8), moves=Moves, extra=st.integers(-40, 40))
def test_exactly_the_page_is_read(sizes, limit, moves, extra):
    data = os.urandom(max(sum(sizes) + extra, 0))
    buffers = views(sizes)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        with slow_kernel(limit, moves):
            whole = vectors.read_exactly(file.fileno(), buffers, sum(sizes))
    assert whole or len(data) != sum(sizes)
    # A kernel that stops just before the byte beyond hides that there is one; it does so at the end of files only.
    assert not whole or len(data) >= sum(sizes)
    if whole:
        assert b"".join(buffers) == data[: sum(sizes)]


@given(sizes=Sizes, limit=st.integers(1, 8), extra=st.integers(-40, 40))
def test_a_kernel_that_moves_all_it_can_tells_every_length(sizes, limit, extra):
    with tempfile.TemporaryFile() as file:
        file.write(bytes(max(sum(sizes) + extra, 0)))
        file.flush()
        with slow_kernel(limit, [1 << 20]):
            assert vectors.read_exactly(file.fileno(), views(sizes), sum(sizes)) == (extra == 0)


def test_more_pieces_than_the_kernel_takes():
    buffers = [memoryview(os.urandom(3)) for _ in range(2 * vectors.IOV_MAX + 5)]
    back = views([3] * len(buffers))
    with tempfile.TemporaryFile() as file:
        vectors.write_all(file.fileno(), buffers)
        assert vectors.read_exactly(file.fileno(), back, 3 * len(back))
    assert back == buffers
