"""The one request record, and how a prompt names its content.

Rules of this file
- A *token id* here is an identity, not a vocabulary entry: two prompts hold equal ids at a position exactly when
  they agree on everything up to and including it (the id is *prefix-unique*). Public traces publish just that,
  as prefix hashes of blocks; generators make it by construction.
- Inside a run, ids are consecutive. So the id of any token, and of any page, is arithmetic: no list of tokens is made.
- The *atom* of a page is the id of its last token. Prefix-uniqueness makes it name the page and all before it,
  at any page size, whether it divides the trace's block or not.
- A *page id* does so too among pages of one size, and neighbouring pages have neighbouring ids where they can: what is
  kept by page id lies close together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Content(Protocol):
    """What a prompt (or an answer's continuation) consists of, as prefix-unique token ids."""

    def atoms(self, page_tokens: int, pages: int) -> bytes:
        """Atoms of the first `pages` pages: `pages` native int64, 8 bytes each.

        The content must reach that far: `pages * page_tokens` <= `Request.content_tokens`. This is not checked, since
        it is asked for every request.
        """
        ...

    def page_ids(self, page_tokens: int, pages: int) -> bytes:
        """Ids of the first `pages` pages, as `atoms` gives their atoms."""
        ...


@dataclass(slots=True)
class Blocks:
    """Content given as prefix ids of blocks of equal size (Mooncake 512, kv-cache-tester 64, Bailian 16 once chained).

    ids: [blocks] int64, prefix-unique. A partial tail block, where the format has one, is just a last id
    whose leading tokens count; token j of block b has id `b * block_tokens + j`.
    """

    ids: NDArray[np.int64]
    block_tokens: int

    def atoms(self, page_tokens: int, pages: int) -> bytes:
        block = self.block_tokens
        if block % page_tokens == 0:
            # The common case, kept to two array operations: every block is cut into the same sub-pages.
            ends = page_ends(block, page_tokens)
            used = -(-pages // len(ends))
            return (self.ids[:used, None] * block + ends).tobytes()[: 8 * pages]
        last = np.arange(page_tokens - 1, pages * page_tokens, page_tokens, dtype=np.int64)
        return (self.ids[last // block] * block + last % block).tobytes()

    def page_ids(self, page_tokens: int, pages: int) -> bytes:
        if self.block_tokens % page_tokens:
            return self.atoms(page_tokens, pages)
        return Blocks(self.ids, self.block_tokens // page_tokens).atoms(1, pages)


@dataclass(slots=True)
class Runs:
    """Content given as runs of consecutive ids: what generators make.

    first_ids, lengths: [runs] int64; run i holds ids first_ids[i] … first_ids[i] + lengths[i] - 1.
    """

    first_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def atoms(self, page_tokens: int, pages: int) -> bytes:
        last = np.arange(page_tokens - 1, pages * page_tokens, page_tokens, dtype=np.int64)
        ends = np.cumsum(self.lengths)
        run = ends.searchsorted(last, side="right")
        return (last + (self.first_ids - ends + self.lengths)[run]).tobytes()

    def page_ids(self, page_tokens: int, pages: int) -> bytes:
        return self.atoms(page_tokens, pages)


@lru_cache(maxsize=64)
def page_ends(block_tokens: int, page_tokens: int) -> NDArray[np.int64]:
    """Positions of the last tokens of a block's pages: [block_tokens / page_tokens] int64, shared: do not change."""
    return np.arange(page_tokens - 1, block_tokens, page_tokens, dtype=np.int64)


@dataclass(slots=True)
class Request:
    """One request of a workload.

    arrival_s         seconds from the start of the run (open loop); for a closed-loop turn, the earliest start.
    content           ids of the prompt, and of the answer behind it where the workload knows how it continues.
    input_tokens      length of the prompt. output_tokens: tokens to generate, at least 1.
    content_tokens    how many tokens `content` names: input_tokens, or more where it names the answer too, or less
                      where the format leaves the tail of the prompt unnamed (kv-cache-tester). Tokens beyond it
                      are unique to this request.
    session, parent   closed loop: this request starts `think_s` after the one with id `parent` has ended.
    wave              round barrier: this request starts only after every request of a lower wave has ended.
    extra_key         namespace (LoRA adapter, cache salt): equal content under different keys is not shared.
    """

    id: int
    arrival_s: float
    content: Content
    input_tokens: int
    output_tokens: int
    content_tokens: int
    session: int | None = None
    parent: int | None = None
    think_s: float = 0.0
    priority: int = 0
    extra_key: str | None = None
    wave: int = 0
