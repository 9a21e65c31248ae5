"""A page as a store wants it cut, out of a page as the host's layout has cut it.

Rules of this file
- Lists of buffers that hold the same bytes in the same order, cut in different places. Nothing here knows a layout.
- Where both are cut alike no byte moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .client import PageMemory

Pieces = Sequence[memoryview]
CHUNK_BYTES = 128 << 10
"""What is copied at a time: small enough to be in the processor's cache when it is looked at next."""


_NOTHING = memoryview(bytearray())


def components(host: PageMemory, page: int, count: int) -> list[memoryview]:
    """The page in `count` (1 to 3) equal pieces to read from: where it lies, if it is cut so, else a copy of it."""
    pieces = host.page_memory(page)
    each = host.page_bytes // count
    if len(pieces) == count and pieces[0].nbytes == each == pieces[-1].nbytes:
        return pieces
    whole = memoryview(b"".join(pieces))
    return [whole[at : at + each] for at in range(0, count * each, each)]


def pour(sources: Pieces, targets: Pieces, seen: Callable[[memoryview], object]) -> None:
    """Copy all bytes of `sources` into `targets`, which have room for as many. `seen` is shown what has arrived."""
    left = iter(targets)
    target = next(left, _NOTHING)
    for source in sources:
        if source.nbytes == target.nbytes <= CHUNK_BYTES:
            target[:] = source
            seen(target)
            target = next(left, _NOTHING)
            continue
        while source.nbytes:
            while not target.nbytes:
                target = next(left)
            here = target[: min(source.nbytes, CHUNK_BYTES)]
            here[:] = source[: here.nbytes]
            seen(here)
            source, target = source[here.nbytes :], target[here.nbytes :]
        if not target.nbytes:
            target = next(left, _NOTHING)
