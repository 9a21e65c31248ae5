"""Multi-turn chat: a user and an assistant take turns under one of a few system prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..request import Request
from .base import Generator, Prompt, TokenIds, length, numbered, pause, repeats, shared_runs, zipf


@dataclass(frozen=True, kw_only=True)
class Chat(Generator):
    """Each turn's prompt is the whole history, answers included, and the user's next message.

    system_prompts  different ones; the k-th most popular is used as k ** -zipf_exponent. system_tokens: mean length.
    turns           mean turns of a session. first_tokens, next_tokens: mean length of the user's first, later messages.
    answer_tokens   mean length of an answer. think_s: mean time from an answer's end to the next message.
    """

    name: str = "chat"
    system_prompts: int = 20
    zipf_exponent: float = 1.0
    system_tokens: float = 1000
    turns: float = 4
    first_tokens: float = 600
    next_tokens: float = 150
    answer_tokens: float = 250
    think_s: float = 60

    def talks(self, ids: TokenIds, rngs: Iterator[random.Random]) -> Iterator[list[Request]]:
        systems = shared_runs(ids, self.seed, self.system_prompts, self.system_tokens, self.sigma)
        popularity = zipf(len(systems), self.zipf_exponent)
        for rng in rngs:
            prompt = Prompt(ids, *rng.choices(systems, cum_weights=popularity))
            turns: list[Request] = []
            at_s, think_s, last = 0.0, 0.0, None
            for number in range(repeats(rng, self.turns)):
                new = max(1, length(rng, self.next_tokens if number else self.first_tokens, self.sigma))
                answer = max(1, length(rng, self.answer_tokens, self.sigma))
                last = numbered(turns, prompt.ask(new, answer, at_s, last, think_s))
                think_s = pause(rng, self.think_s)
                at_s += answer * self.answer_s_per_token + think_s
            yield turns
