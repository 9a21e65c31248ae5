"""What the generators share: sessions from a seed, prompts that grow, lengths, popularity.

Rules of this file
- Session k draws from a random stream of its own, named by seed and k. So a session does not depend on the others, on
  the schedule, or on how far the stream is read; the same seed gives the same bytes on every Python.
- Token ids are handed out once, in order. Two prompts hold the same id only where one was built from the other's run,
  at the same place, behind the same tokens: that is what makes ids prefix-unique.
- An answer is part of the content, so the next turn's prompt really contains it.
- Lengths are log-normal around a mean that the user gives; `sigma` 0 makes them all equal. Defaults are round numbers
  of a plausible service, fitted to no trace.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import accumulate

import numpy as np

from ..errors import TraceError
from ..fit import TOKENS
from ..request import Request, Runs
from ..schedule import ClosedLoop, Poisson, Session, positive
from ..workload import SessionWorkload

Run = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Generator(SessionWorkload):
    """Parameters of every generator.

    count               sessions to make. rate_per_s: sessions that start in a second, at random (Poisson).
    answer_s_per_token  how long an answer is taken to last where no schedule measures it (open loop).
    sigma               spread of all lengths: standard deviation of their logarithm.
    """

    name: str
    count: int = 200
    rate_per_s: float = 1.0
    answer_s_per_token: float = 0.02
    sigma: float = 0.8
    seed: int = 1

    format = "generated"
    verdict = TOKENS
    block_tokens = 64
    schedule = ClosedLoop()

    def __post_init__(self) -> None:
        check_parameters(self)

    @abstractmethod
    def talks(self, ids: TokenIds, rngs: Iterator[random.Random]) -> Iterator[list[Request]]:
        """The turns of one session for each random stream, in the form that `Session.turns` has."""

    def sessions(self) -> Iterator[Session]:
        rngs = (random.Random(f"{self.seed}/{number}") for number in range(self.count))
        talks = self.talks(TokenIds(), rngs)
        for start_s, turns in zip(Poisson(self.rate_per_s, self.seed).starts(), talks, strict=False):
            yield Session(start_s, turns)


def check_parameters(generator: Generator) -> None:
    """TraceError: a negative number, or nothing to make."""
    for field in fields(generator):
        value = getattr(generator, field.name)
        if field.name not in ("name", "seed") and not 0 <= value < math.inf:
            raise TraceError(f"{field.name} is {value}", generator.name, "give a number that is not negative")
    positive("rate_per_s", generator.rate_per_s)
    positive("count", generator.count)


class TokenIds:
    """Hands out token ids, each once."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def run(self, tokens: int) -> Run:
        """`tokens` new ids: the first, and how many."""
        first = self._next
        self._next += tokens
        return first, tokens


class Prompt:
    """A prompt that grows from shared and new runs."""

    def __init__(self, ids: TokenIds, *shared: Run) -> None:
        self._ids = ids
        self._runs = [run for run in shared if run[1]]
        self.tokens = sum(length for _, length in shared)

    def grow(self, tokens: int) -> None:
        """Add tokens that no other prompt has."""
        first, length = self._ids.run(tokens)
        if self._runs and sum(self._runs[-1]) == first:
            first, length = self._runs[-1][0], self._runs[-1][1] + tokens
            self._runs.pop()
        self._runs.append((first, length))
        self.tokens += tokens

    def ask(self, new_tokens: int, answer_tokens: int, at_s: float, parent: Request | None, think_s: float) -> Request:
        """A turn: the prompt with `new_tokens` more, answered. Its id is left to `numbered`."""
        self.grow(new_tokens)
        input_tokens = self.tokens
        self.grow(answer_tokens)
        runs = np.array(self._runs, dtype=np.int64)
        return Request(
            -1,
            at_s,
            Runs(runs[:, 0], runs[:, 1]),
            input_tokens,
            answer_tokens,
            self.tokens,
            parent=None if parent is None else parent.id,
            think_s=think_s,
        )


def numbered(turns: list[Request], turn: Request) -> Request:
    """Append a turn to its session."""
    turn.id = len(turns)
    turns.append(turn)
    return turn


def length(rng: random.Random, mean: float, sigma: float) -> int:
    """A log-normal length with that mean, at least 1, at most 20 means; 0 where the mean is 0."""
    if not mean:
        return 0
    drawn = rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma) if sigma else mean
    return max(1, min(round(drawn), round(20 * mean)))


def repeats(rng: random.Random, mean: float) -> int:
    """How often: 1 or more, with that mean, each next one as likely as the last (geometric)."""
    times = 1
    while rng.random() * mean >= 1 and times < 20 * mean:
        times += 1
    return times


def pause(rng: random.Random, mean_s: float) -> float:
    """An exponential time with that mean; 0 where the mean is 0."""
    return rng.expovariate(1 / mean_s) if mean_s else 0.0


def shared_runs(ids: TokenIds, seed: int, count: int, mean: float, sigma: float) -> list[Run]:
    """Texts that many prompts start with."""
    rng = random.Random(f"{seed}/shared")
    return [ids.run(length(rng, mean, sigma)) for _ in range(max(1, count))]


def zipf(count: int, exponent: float) -> list[float]:
    """Cumulated popularity of `count` things, the k-th (from 1) as k ** -exponent; for `random.choices`."""
    return list(accumulate((rank + 1) ** -exponent for rank in range(max(1, count))))
