"""The formats that can be read, and how a file is recognised.

Rules of this file
- A file is recognised by the fields of its first rows, never by its name. The first format that claims it gets it,
  so the more particular ones come first.
- Options that a format has no use for are refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import bailian, mooncake, mooncake_delta, weka
from .errors import TraceError, known
from .samples import SAMPLES, sample
from .source import Source
from .workload import Workload


@dataclass(frozen=True)
class Format:
    """claims(source): is the file of this format? open(source, block_tokens, chain) gives the workload."""

    name: str
    about: str
    block_tokens: int
    claims: Callable[[Source], bool]
    open: Callable[[Source, int | None, bool | None], Workload]


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("weka", "kv-cache-tester: one session a document", weka.BLOCK_TOKENS, weka.claims, weka.open_weka),
        Format(
            "bailian",
            "Alibaba Bailian: hashes of single blocks",
            bailian.BLOCK_TOKENS,
            bailian.claims,
            bailian.open_bailian,
        ),
        Format(
            "mooncake-delta",
            "Dynamo, aiperf: turns hold only their new tokens",
            mooncake_delta.BLOCK_TOKENS,
            mooncake_delta.claims,
            mooncake_delta.open_delta,
        ),
        Format(
            "mooncake",
            "Mooncake, Dynamo: whole prompts",
            mooncake.BLOCK_TOKENS,
            mooncake.claims,
            mooncake.open_mooncake,
        ),
    )
}


def open_trace(
    path: str | Path, format: str | None = None, block_tokens: int | None = None, chain: bool | None = None
) -> Workload:
    """The trace at `path`, or the shipped sample of that name.

    format        a name in FORMATS; None: recognised by content.
    block_tokens  what one block id stands for; None: the format's usual size.
    chain         True: ids are hashes of single blocks and are chained into prefix ids; False: they are prefix ids;
                  None: what the format says.

    TraceError: see the format's reader; a file that no format claims.
    """
    source = Source(sample(str(path)) if str(path) in SAMPLES and not Path(path).exists() else Path(path))
    if block_tokens is not None and not 0 < block_tokens <= 1 << 20:
        raise TraceError(f"block_tokens is {block_tokens}", do="give the number of tokens that one id stands for")
    chosen = recognise(source) if format is None else known(FORMATS, "trace format", format)
    return chosen.open(source, block_tokens, chain)


def recognise(source: Source) -> Format:
    """The format of a file. TraceError: no rows, or fields that fit none."""
    for format in FORMATS.values():
        if format.claims(source):
            return format
    raise TraceError(
        f"fields {', '.join(list(source.head(1)[0])[:8])} fit no known format",
        str(source.path),
        f"name one of: {', '.join(FORMATS)} (format=, --format)",
    )
