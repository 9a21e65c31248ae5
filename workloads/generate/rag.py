"""Retrieval-augmented generation: documents from one corpus in front of a question.

Rules of this file
- A document's KV cache depends on everything in front of it, so the same document behind other documents is other
  content. Two prompts share as far as their documents agree in order, from the first on, and no further.
- Ids of a document are a hash of the documents up to it, so no table of seen combinations is kept. With n different
  combinations the chance that two overlap is about n * n * document_tokens / 2**62 (a million of 600: 1 in 7,000).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..prefix import prefix_ids
from ..request import Request
from .base import Generator, Prompt, TokenIds, length, numbered, zipf

# Hashed ids lie below 2**62; ids that are handed out start above, with room for the longest document.
FIRST_NEW_ID = (1 << 62) + (1 << 32)


@dataclass(frozen=True, kw_only=True)
class Rag(Generator):
    """Each session is one request: a system prompt, the retrieved documents, a question.

    documents           in the corpus; the k-th most popular is retrieved as k ** -zipf_exponent.
    document_tokens     their mean length. per_prompt: how many a prompt has, all different.
    stable_order        True: documents are put in order of the corpus, so equal sets share; False: in order of
                        retrieval, as ranked.
    system_tokens, question_tokens, answer_tokens  mean lengths.
    """

    name: str = "rag"
    count: int = 1000
    rate_per_s: float = 2.0
    documents: int = 500
    zipf_exponent: float = 1.0
    document_tokens: float = 600
    per_prompt: int = 5
    stable_order: bool = False
    system_tokens: float = 500
    question_tokens: float = 60
    answer_tokens: float = 200

    def talks(self, ids: TokenIds, rngs: Iterator[random.Random]) -> Iterator[list[Request]]:
        ids = TokenIds(FIRST_NEW_ID)
        corpus = random.Random(f"{self.seed}/corpus")
        system = ids.run(length(corpus, self.system_tokens, self.sigma))
        lengths = [max(1, length(corpus, self.document_tokens, self.sigma)) for _ in range(max(1, self.documents))]
        popularity = zipf(len(lengths), self.zipf_exponent)
        for rng in rngs:
            chosen = self._retrieve(rng, popularity)
            firsts = prefix_ids(np.array(chosen, dtype=np.int64), 2).tolist()
            prompt = Prompt(
                ids, system, *((first, lengths[document]) for first, document in zip(firsts, chosen, strict=True))
            )
            question = max(1, length(rng, self.question_tokens, self.sigma))
            answer = max(1, length(rng, self.answer_tokens, self.sigma))
            turns: list[Request] = []
            numbered(turns, prompt.ask(question, answer, 0.0, None, 0.0))
            yield turns

    def _retrieve(self, rng: random.Random, popularity: list[float]) -> list[int]:
        """Different documents, the first drawn first."""
        chosen: dict[int, None] = {}
        wanted = min(self.per_prompt, len(popularity))
        while len(chosen) < wanted:
            chosen.setdefault(rng.choices(range(len(popularity)), cum_weights=popularity)[0])
        return sorted(chosen) if self.stable_order else list(chosen)
