"""From the engine's batches to the model's rows: which tokens are new, and on which device pages they stand.

Rules of this file
- Pages are read from leases when a batch is submitted; later the tree may look different.
- Tokens are forced: those of the trace, whatever the logits say. What is computed is real, what is said is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..control.active import Active
from ..control.batches import Decode, Prefill
from ..control.types import Op, Slots
from ..model.rows import Row
from .texts import Texts, Tokens

if TYPE_CHECKING:
    from torch import Tensor


class Listener(Protocol):
    """Told of logits: [vocab] for the token after position `position` of a request. On the compute thread."""

    def __call__(self, request_id: int, position: int, logits: Tensor, /) -> None: ...


class Span:
    """One request's part of a batch: `new` tokens from `start` on, a step."""

    __slots__ = ("new", "pages", "request_id", "start", "tokens")

    def __init__(self, request: Active, tokens: Tokens, start: int, new: int) -> None:
        assert request.lease is not None
        self.request_id = request.id
        self.tokens = tokens
        self.start = start
        self.new = new
        self.pages: Slots = request.lease.device_pages()


class Rows:
    """Satisfies `data.compute.BatchRows`. Decode steps go one token on, a prefill has one step."""

    def __init__(self, spans: Sequence[Span], page_tokens: int, listener: Listener | None) -> None:
        self._spans = spans
        self._page = page_tokens
        self._listener = listener

    def rows(self, step: int) -> list[Row]:
        return [self._row(span, step) for span in self._spans]

    def _row(self, span: Span, step: int) -> Row:
        start = span.start + step
        end = start + span.new
        return Row(span.tokens[start:end], start, span.pages[: -(-end // self._page)])

    def computed(self, step: int, logits: Tensor) -> None:
        if self._listener is not None:
            for span, row in zip(self._spans, logits, strict=True):
                self._listener(span.request_id, span.start + step + span.new - 1, row)


def rows_of(texts: Texts, page_tokens: int, listener: Listener | None = None) -> Callable[[Op], Rows]:
    """What the plane asks for each COMPUTE."""

    def make(op: Op) -> Rows:
        batch: Prefill | Decode = op.batch
        spans = [Span(request, texts.of(request.id), start, new) for request, start, new in batch.parts()]
        return Rows(spans, page_tokens, listener)

    return make
