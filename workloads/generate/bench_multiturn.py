"""SGLang's own HiCache benchmark, benchmark/hicache/bench_multiturn.py, as a workload.

Every client sends rounds; a round's prompt is the client's whole history, answers included, and new text. One sender
takes a ready client at every tick of a Poisson clock, at random or the longest-waiting first, while fewer than
`max_parallel` requests are under way. With a round barrier, clients wait for each other after every round.

Rules of this file
- Ticks and the order of clients are drawn beforehand. A client that is drawn while its last answer is still running
  waits for it, where the script would have drawn another; and a tick that finds `max_parallel` requests under way is
  late, where the script draws its gap anew. Neither matters while answers are quicker than a client's turn comes.
- `max_parallel` and `Request.wave` are rules for the driver.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import TraceError
from ..fit import TOKENS
from ..request import Request, Runs
from ..schedule import ClosedLoop, positive
from ..workload import ClockedWorkload


@dataclass(frozen=True, kw_only=True)
class BenchMultiturn(ClockedWorkload):
    """Defaults are the script's; the name of its flag is behind each where it differs.

    clients (num-clients), rounds (num-rounds). max_parallel: requests under way at once.
    new_tokens (request-length): of each round. answer_tokens (output-length).
    rate_per_s (request-rate): ticks in a second; the script's automatic run goes through 16 … 1.
    random_order (ready-queue-policy random, else fifo). round_barrier (enable-round-barrier).
    """

    name: str = "bench-multiturn"
    clients: int = 256
    max_parallel: int = 128
    new_tokens: int = 512
    answer_tokens: int = 64
    rounds: int = 5
    rate_per_s: float = 1.0
    random_order: bool = True
    round_barrier: bool = False
    seed: int = 1

    format = "generated"
    verdict = TOKENS
    block_tokens = 64
    schedule = ClosedLoop()

    def __post_init__(self) -> None:
        for name in ("clients", "max_parallel", "new_tokens", "answer_tokens", "rounds", "rate_per_s"):
            positive(name, getattr(self, name))
        if self.clients * self.rounds * (self.new_tokens + self.answer_tokens) >= 1 << 62:
            raise TraceError("more tokens than there are ids", self.name, "ask for fewer clients or rounds")

    def recorded(self) -> Iterator[Request]:
        rng = random.Random(self.seed)
        grown = self.new_tokens + self.answer_tokens
        last: dict[int, int] = {}
        tick_s = 0.0
        for number, (client, done) in enumerate(self._order(rng)):
            tokens = (done + 1) * grown
            yield Request(
                number,
                tick_s,
                Runs(np.array([client * self.rounds * grown]), np.array([tokens])),
                tokens - self.answer_tokens,
                self.answer_tokens,
                tokens,
                session=client,
                parent=last.get(client),
                wave=done if self.round_barrier else 0,
            )
            last[client] = number
            tick_s += rng.expovariate(self.rate_per_s)

    def _order(self, rng: random.Random) -> Iterator[tuple[int, int]]:
        """Clients as the sender takes them, each with its rounds before."""
        ready = [(client, 0) for client in range(self.clients)]
        later: list[tuple[int, int]] = []
        waiting = later if self.round_barrier else ready
        while ready:
            client, done = ready.pop(rng.randrange(len(ready)) if self.random_order else 0)
            yield client, done
            if done + 1 < self.rounds:
                waiting.append((client, done + 1))
            if not ready:
                ready, later = later, []
                waiting = later if self.round_barrier else ready
