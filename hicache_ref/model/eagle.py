"""EAGLE: a draft head of one layer guesses tokens, the decoder checks them all at once.

Rules of this file
- The draft's row at position i is made of the pair (token i, token i + 1): the decoder's hidden state of the one and
  the embedding of the other. That is why EAGLE's cache keys are bigrams (`control.keys.TokenPages(pairs=True)`): a
  page is the same only if the token after it is.
- The draft's rows lie in the slots of the decoder's, in a pool of one layer of its own or in a further layer of the
  same pool, where they travel with the page. Rows of refused guesses are overwritten by the next round.
- Greedy on both sides. What comes out is what the decoder alone would have said; a bad draft costs time only.

Source: EAGLE, arXiv 2401.15077; the order of forwards as in SGLang's eagle_worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config.layouts import KvGeometry
from ..data.pools import DevicePool
from .attention import make_attention
from .batching import Batching, Whole
from .cache import Codec, KvCache
from .decoder import Layer, Model, build_layer
from .layers import Norm
from .rows import Fence, Row, no_fence
from .runner import Runner, Tokens, greedy
from .stack import Stack, placed
from .weights import Loader, Seeded


class Draft(NamedTuple):
    """A draft head for `model`: `join` [hidden, 2 hidden] of (embedding, hidden state), one layer, a norm."""

    model: Model
    join: Tensor
    layer: Layer
    norm: Norm


def random_draft(model: Model, seed: int) -> Draft:
    """Random weights: a head that guesses badly, which costs time and no token."""
    load = Loader(Seeded(seed), model.part, model.dtype, model.device)
    hidden = model.spec.shape.hidden
    join = load.get("fc.weight", hidden, 2 * hidden)
    layer = build_layer(model.spec, load, 0, model.layers[0].all_reduce)
    return Draft(model, join, layer, Norm(load.get("norm.weight", hidden), model.spec.eps))


def early_exit_draft(model: Model) -> Draft:
    """The decoder's own first layer and its head: it guesses what the decoder would say after one layer."""
    eye = torch.eye(model.spec.shape.hidden, dtype=model.dtype, device=model.device)
    return Draft(model, torch.cat([eye, torch.zeros_like(eye)], 1), model.layers[0], model.norm)


def draft_geometry(geometry: KvGeometry) -> KvGeometry:
    """The pool of a draft head beside a decoder's pool of `geometry`."""
    return replace(geometry, layers=1)


def with_draft_layer(geometry: KvGeometry) -> KvGeometry:
    """One pool for both: the draft's layer is the last, and travels with the page."""
    return replace(geometry, layers=geometry.layers + 1)


class DraftRunner:
    """A draft head over a pool. layer: which layer of the pool is the draft's."""

    def __init__(
        self,
        draft: Draft,
        pool: DevicePool,
        codec: Codec,
        attention: str = "torch_native",
        batching: Batching | None = None,
        layer: int = 0,
    ) -> None:
        self.draft = draft
        cache = KvCache(pool, codec, draft.model.heads, draft.model.dtype, first_layer=layer)
        backend = make_attention(attention, cache)
        self.stack = Stack([draft.layer], draft.model.rotary, cache, backend, batching or Whole())

    def forward(self, rows: Sequence[Row], hidden: Tensor, before_layer: Fence = no_fence) -> Tokens:
        """The guess after each row.

        rows: at position i the token of position i + 1; hidden [N, hidden]: the states at the positions themselves.
        Returns hidden [rows, hidden] and logits [rows, vocab].
        """
        model = self.draft.model
        with torch.inference_mode():
            units = self.stack.units(rows)
            of_units = torch.split(hidden, [len(unit.tokens) for unit in units])
            pairs = [
                placed(unit, torch.cat([F.embedding(unit.tokens, model.embedding), states], -1))
                for unit, states in zip(units, of_units, strict=True)
            ]
            inputs = [F.linear(pair, self.draft.join) for pair in pairs]
            states = self.stack.run(units, inputs, before_layer, no_fence)
            ends = [self.draft.norm(x)[at] for unit, x in zip(units, states, strict=True) for _, at in unit.last]
            last = torch.stack(ends)
            return Tokens(last, model.logits(last))


@dataclass
class Generated:
    """One sequence: its new tokens, and how the rounds went."""

    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    guessed: int = 0
    accepted: int = 0

    @property
    def accept_length(self) -> float:
        """Tokens a round gives, the decoder's own included: 1.0 if no guess was ever right."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0


class Eagle:
    """A decoder and its draft head. steps: guesses of a round."""

    def __init__(self, target: Runner, draft: DraftRunner, steps: int = 3) -> None:
        self.target, self.draft, self.steps = target, draft, steps

    def generate(self, rows: Sequence[Row], count: int, before_layer: Fence = no_fence) -> list[Generated]:
        """`count` tokens after each row. Pages must cover `count` + `steps` tokens more than the row ends at."""
        out = [Generated() for _ in rows]
        answers = self.target.forward_all(rows, before_layer)
        ends = torch.tensor([len(row.tokens) for row in rows]).cumsum(0) - 1
        firsts = greedy(answers.logits[ends])
        at = []
        shifted = []
        for row, found, first in zip(rows, out, firsts, strict=True):
            found.tokens.append(first)
            at.append(row.start + len(row.tokens))
            shifted.append(Row([*(int(token) for token in row.tokens[1:]), first], row.start, row.pages))
        guess = self.draft.forward(shifted, answers.hidden, before_layer)
        while any(len(found.tokens) < count for found in out):
            guess = self._round(rows, at, out, guess)
        return [replace(found, tokens=found.tokens[:count]) for found in out]

    def _round(self, rows: Sequence[Row], at: list[int], out: list[Generated], guess: Tokens) -> Tokens:
        """Guess, verify, keep what is right. at: positions of each sequence's last known token; moved on."""
        guesses = self._guess(rows, at, guess)
        asked = [
            Row([found.tokens[-1], *tokens], here, row.pages)
            for row, here, found, tokens in zip(rows, at, out, guesses, strict=True)
        ]
        answers = self.target.forward_all(asked)
        said = answers.logits.argmax(-1).view(len(rows), -1).tolist()
        states = answers.hidden.view(len(rows), -1, answers.hidden.shape[-1])
        kept, hidden = [], []
        for number, (row, tokens) in enumerate(zip(rows, guesses, strict=True)):
            right = _leading_equal(tokens, said[number])
            new = said[number][: right + 1]
            kept.append(Row(new, at[number], row.pages))
            hidden.append(states[number, : right + 1])
            at[number] += right + 1
            out[number].tokens += new
            out[number].rounds += 1
            out[number].guessed += len(tokens)
            out[number].accepted += right
        return self.draft.forward(kept, torch.cat(hidden))

    def _guess(self, rows: Sequence[Row], at: list[int], guess: Tokens) -> list[list[int]]:
        """`steps` tokens a sequence, each from the draft's own state before it."""
        guesses = [[token] for token in greedy(guess.logits)]
        for step in range(self.steps - 1):
            again = [
                Row([tokens[-1]], here + step, row.pages) for row, here, tokens in zip(rows, at, guesses, strict=True)
            ]
            guess = self.draft.forward(again, guess.hidden)
            for tokens, token in zip(guesses, greedy(guess.logits), strict=True):
                tokens.append(token)
        return guesses


def _leading_equal(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
