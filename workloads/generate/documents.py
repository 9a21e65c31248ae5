"""Long documents: several questions about one document, one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..request import Request
from .base import Generator, Prompt, Run, TokenIds, length, numbered, pause, repeats


@dataclass(frozen=True, kw_only=True)
class Documents(Generator):
    """Each session is a document that no other session has, behind one system prompt for all.

    document_tokens  mean length. questions: mean number on one document.
    keep_history     True: a question comes behind the earlier questions and answers; False: right behind the document.
    think_s          mean time from an answer's end to the next question.
    system_tokens    length of the system prompt. question_tokens, answer_tokens: mean lengths.
    """

    name: str = "documents"
    count: int = 100
    rate_per_s: float = 0.2
    document_tokens: float = 40_000
    questions: float = 5
    keep_history: bool = False
    think_s: float = 30
    system_tokens: float = 300
    question_tokens: float = 80
    answer_tokens: float = 300

    def talks(self, ids: TokenIds, rngs: Iterator[random.Random]) -> Iterator[list[Request]]:
        system: Run = ids.run(round(self.system_tokens))
        for rng in rngs:
            document = ids.run(max(1, length(rng, self.document_tokens, self.sigma)))
            prompt = Prompt(ids, system, document)
            turns: list[Request] = []
            at_s, think_s, last = 0.0, 0.0, None
            for _ in range(repeats(rng, self.questions)):
                prompt = prompt if self.keep_history else Prompt(ids, system, document)
                question = max(1, length(rng, self.question_tokens, self.sigma))
                answer = max(1, length(rng, self.answer_tokens, self.sigma))
                last = numbered(turns, prompt.ask(question, answer, at_s, last, think_s))
                think_s = pause(rng, self.think_s)
                at_s += answer * self.answer_s_per_token + think_s
            yield turns
