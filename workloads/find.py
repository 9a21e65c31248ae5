"""One name for any workload: a path, a shipped sample, or a generator. What a command line takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import TraceError
from .formats import open_trace
from .generate import GENERATORS, generator
from .samples import SAMPLES
from .workload import Workload


def open_workload(
    what: str,
    parameters: Mapping[str, Any] | None = None,
    format: str | None = None,
    block_tokens: int | None = None,
    chain: bool | None = None,
) -> Workload:
    """A trace (see `open_trace`) or a generator with its `parameters` (see `generator`). Paths go first.

    TraceError: neither; parameters for a trace; trace options for a generator.
    """
    is_generator = what in GENERATORS and not Path(what).exists()
    if is_generator and (format, block_tokens, chain) != (None, None, None):
        raise TraceError(f"{what} is a generator", do="format, block_tokens and chain are for trace files")
    if is_generator:
        return generator(what, **(parameters or {}))
    if parameters:
        raise TraceError(f"{what} is no generator", do=f"parameters are for: {', '.join(GENERATORS)}")
    if what not in SAMPLES and not Path(what).exists():
        known = ", ".join([*SAMPLES, *GENERATORS])
        raise TraceError(f"no file, sample or generator {what!r}", do=f"give a path, or one of: {known}")
    return open_trace(what, format, block_tokens, chain)
