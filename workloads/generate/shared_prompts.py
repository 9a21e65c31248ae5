"""Single questions behind shared system prompts: an API service, a classifier, few-shot prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..request import Request
from .base import Generator, Prompt, TokenIds, length, numbered, shared_runs, zipf


@dataclass(frozen=True, kw_only=True)
class SharedPrompts(Generator):
    """Each session is one request: a system prompt, then a question that nobody repeats.

    system_prompts  different ones; the k-th most popular is used as k ** -zipf_exponent. system_tokens: mean length.
    question_tokens, answer_tokens  mean lengths.
    """

    name: str = "shared-prompts"
    count: int = 1000
    rate_per_s: float = 5.0
    system_prompts: int = 50
    zipf_exponent: float = 1.0
    system_tokens: float = 2000
    question_tokens: float = 100
    answer_tokens: float = 150

    def talks(self, ids: TokenIds, rngs: Iterator[random.Random]) -> Iterator[list[Request]]:
        systems = shared_runs(ids, self.seed, self.system_prompts, self.system_tokens, self.sigma)
        popularity = zipf(len(systems), self.zipf_exponent)
        for rng in rngs:
            prompt = Prompt(ids, *rng.choices(systems, cum_weights=popularity))
            question = max(1, length(rng, self.question_tokens, self.sigma))
            answer = max(1, length(rng, self.answer_tokens, self.sigma))
            turns: list[Request] = []
            numbered(turns, prompt.ask(question, answer, 0.0, None, 0.0))
            yield turns
