"""What the host's memory carries: plain copies of large blocks, by one thread and by two."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from .samples import Spread, rounds, seconds, spread

BLOCK_BYTES = 64 << 20


def dram(budget_s: float) -> dict[int, Spread]:
    """Bytes copied per second, by the number of threads. (A byte copied is one read and one written.)"""
    blocks = [(np.ones(BLOCK_BYTES, np.uint8), np.ones(BLOCK_BYTES, np.uint8)) for _ in range(2)]
    ways = {count: partial(seconds, partial(_copy, blocks[:count])) for count in (1, 2)}
    times = {count: spread(taken) for count, taken in rounds(ways, budget_s).items()}
    sizes = {count: count * BLOCK_BYTES for count in ways}
    return {n: Spread(sizes[n] / t.median, sizes[n] / t.high, sizes[n] / t.low, t.times) for n, t in times.items()}


def _copy(blocks: list[tuple[np.ndarray, np.ndarray]]) -> None:
    others = [threading.Thread(target=np.copyto, args=block) for block in blocks[1:]]
    for other in others:
        other.start()
    np.copyto(*blocks[0])
    for other in others:
        other.join()
