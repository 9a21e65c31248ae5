"""Content from real token ids, as SGLang's logs and dumps hold them.

Rules of this file
- Every token is chained into an id of all tokens up to it. The result is content with blocks of one token, exact at
  any page size; a server's own page hashes are a hash of the same prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import TraceError
from .prefix import prefix_ids
from .request import Blocks, Request


@dataclass(frozen=True)
class TokenRow:
    """A logged request. arrival_s from the start of the run; answer: its token ids, as far as they are known.

    output_tokens  tokens to generate; None: as many as the answer has. extra_key: see Request.
    """

    arrival_s: float
    prompt: Sequence[int]
    answer: Sequence[int] = ()
    output_tokens: int | None = None
    extra_key: str | None = None


def from_tokens(rows: Iterable[TokenRow]) -> Iterator[Request]:
    """Requests with the content of real tokens. TraceError: an empty prompt, times that go back."""
    last_s = -np.inf
    for number, row in enumerate(rows):
        where = f"token row {number}"
        if not len(row.prompt):
            raise TraceError("an empty prompt", where, "drop the row")
        if row.arrival_s < last_s:
            raise TraceError(
                f"{row.arrival_s} s comes after {last_s} s: times go back", where, "sort the rows by arrival"
            )
        last_s = row.arrival_s
        yield Request(
            number,
            row.arrival_s,
            token_content([*row.prompt, *row.answer]),
            len(row.prompt),
            len(row.answer) or 1 if row.output_tokens is None else row.output_tokens,
            len(row.prompt) + len(row.answer),
            extra_key=row.extra_key,
        )


def token_content(tokens: Sequence[int]) -> Blocks:
    """Content of [tokens] vocabulary ids."""
    return Blocks(prefix_ids(np.array(tokens, dtype=np.int64), 1), 1)
