"""Does the number of block ids fit the length of the prompt? The check that catches a wrong block size on row one.

Rules of this file
- `gap` of a row = blocks * block_tokens - input_tokens. A file that names the partial tail has 0 <= gap < block
  (ceil); one that leaves it unnamed has -block < gap <= 0 (floor); anything else is not this block size.
- Files are judged by their rows, not by their documentation: Mooncake's is said to be floor and is ceil.
"""

from __future__ import annotations

from collections.abc import Iterable

from .errors import TraceError

EXACT, CEIL, FLOOR, MIXED, TOKENS = "exact", "ceil", "floor", "mixed", "tokens"
MEANING = {
    EXACT: "every prompt is a whole number of blocks",
    CEIL: "the partial last block of a prompt has an id",
    FLOOR: "the partial last block of a prompt has no id",
    MIXED: "some prompts name their partial last block, some do not",
    TOKENS: "every token has an id, so any page size is exact",
}
USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


def verdict(gaps: Iterable[int]) -> str:
    """One of the words above for a file's rows (see MEANING)."""
    signs = {(gap > 0) - (gap < 0) for gap in gaps} - {0}
    if not signs:
        return EXACT
    return MIXED if len(signs) == 2 else CEIL if signs == {1} else FLOOR


def misfit(blocks: int, input_tokens: int, block_tokens: int, where: str) -> TraceError:
    """The error for a row that is neither ceil nor floor."""
    fitting = [size for size in USUAL_BLOCKS if -size < blocks * size - input_tokens < size]
    hint = f"{' or '.join(map(str, fitting))} would fit this row" if fitting else "no usual size fits this row"
    return TraceError(
        f"{blocks} block ids for {input_tokens} tokens is neither ceil nor floor of {block_tokens}-token blocks: "
        "wrong block size?",
        where,
        f"{hint}: give block_tokens (--block-tokens)",
    )
