"""The trace on which replay speed is measured: 20,000 multi-turn requests in Mooncake's format, byte for byte fixed.

Sessions open at random and take one of a few system prompts, the k-th as often as 1 / k. Each turn's prompt is the
last one, its answer, and new text; so its full blocks begin with the full blocks of the turn before.
`SpeedTrace().write(path)` writes it; SHA256 is the hash of those bytes.

Rules of this file
- The order of the random draws is part of the trace: moving one changes every byte after it.
- Only live sessions are held, so a million requests stream in the memory of a few hundred sessions.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from .request import Blocks, Request
from .schedule import positive
from .workload import ClockedWorkload

BLOCK_TOKENS = 512
TURNS_A_SESSION = 4.0
MOST_TURNS = 30
MOST_NEW_TOKENS = 60_000
ANSWER_S_PER_TOKEN = 0.03
SHA256 = "c763c1d63daec2037fbc133d0ce8d6f422110d0193531edf22bd2c95648498dc"


@dataclass(slots=True)
class _Session:
    """ids of the full blocks so far; tokens of the history, the last answer included."""

    ids: list[int]
    tokens: int
    turns_left: int
    log_new_tokens: float = 7.9


@dataclass(frozen=True, kw_only=True)
class SpeedTrace(ClockedWorkload):
    """count: requests. rate_per_s: requests a second, about. think_s: mean time from an answer to the next turn."""

    name: str = "speed"
    count: int = 20_000
    system_prompts: int = 24
    rate_per_s: float = 5.0
    think_s: float = 60.0
    seed: int = 20260822

    format = "generated"
    verdict = "ceil"
    block_tokens = BLOCK_TOKENS
    linked = False

    def __post_init__(self) -> None:
        for name in ("count", "system_prompts", "rate_per_s", "think_s"):
            positive(name, getattr(self, name))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The trace's rows, in order of time."""
        rng = random.Random(self.seed)
        numbers = count()
        systems = [list(islice(numbers, rng.randint(2, 6))) for _ in range(self.system_prompts)]
        popularity = [1.0 / (rank + 1) for rank in range(self.system_prompts)]
        openings_per_s = self.rate_per_s / TURNS_A_SESSION
        opening_s = rng.expovariate(openings_per_s)
        waiting: list[tuple[float, int, _Session]] = []
        for serial in range(self.count):
            if waiting and waiting[0][0] <= opening_s:
                now_s, _, session = heapq.heappop(waiting)
            else:
                now_s, opening_s = opening_s, opening_s + rng.expovariate(openings_per_s)
                system = rng.choices(systems, popularity)[0]
                turns = min(MOST_TURNS, 1 + int(rng.expovariate(1 / 3.2)))
                session = _Session(system, len(system) * BLOCK_TOKENS, turns)
            row = _turn(rng, numbers, session, now_s)
            yield row
            if session.turns_left:
                gap_s = rng.expovariate(1.0 / self.think_s) + row["output_length"] * ANSWER_S_PER_TOKEN
                heapq.heappush(waiting, (now_s + gap_s, serial, session))

    def recorded(self) -> Iterator[Request]:
        first_ms = None
        for number, row in enumerate(self.rows()):
            first_ms = row["timestamp"] if first_ms is None else first_ms
            yield Request(
                number,
                (row["timestamp"] - first_ms) / 1000,
                Blocks(np.array(row["hash_ids"], dtype=np.int64), BLOCK_TOKENS),
                row["input_length"],
                row["output_length"],
                row["input_length"],
            )

    def write(self, path: str | Path) -> None:
        """The trace as JSONL."""
        with open(path, "w", encoding="ascii", newline="\n") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows())


def _turn(rng: random.Random, numbers: Iterator[int], session: _Session, now_s: float) -> dict[str, Any]:
    """Draw one turn and move its session on."""
    new_tokens = min(MOST_NEW_TOKENS, max(16, int(rng.lognormvariate(session.log_new_tokens, 1.0))))
    prompt_tokens = session.tokens + new_tokens
    answer_tokens = max(4, min(2048, int(rng.lognormvariate(5.4, 0.8))))
    blocks = -(-prompt_tokens // BLOCK_TOKENS)
    ids = session.ids[:blocks]
    ids = ids + list(islice(numbers, blocks - len(ids)))
    # A partial last block is no stable prefix: the next turn fills it and gets another id for it.
    session.ids = ids[: prompt_tokens // BLOCK_TOKENS]
    session.tokens = prompt_tokens + answer_tokens
    session.turns_left -= 1
    session.log_new_tokens = 6.3
    return {
        "timestamp": int(now_s * 1000),
        "input_length": prompt_tokens,
        "output_length": answer_tokens,
        "hash_ids": ids,
    }
