"""The one exception that bad input raises, and the look-up that names what is known.

Rules of this file
- Whatever is wrong with a trace, a name or a parameter, the caller sees a `TraceError`, never a traceback of ours.
- Its text is one line, in the order people need it: where, what, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


class TraceError(ValueError):
    """Bad input. `what` is wrong at `where` (file:line); `do` says how to go on."""

    def __init__(self, what: str, where: str = "", do: str = "") -> None:
        text = f"{where}: {what}" if where else what
        text = f"{text}; {do}" if do else text
        super().__init__(" ".join(text.splitlines()))


def known(table: Mapping[str, T], kind: str, name: str) -> T:
    """`table[name]`. TraceError: an unknown name, with the list of the known ones."""
    if name not in table:
        raise TraceError(f"unknown {kind} {name!r}", do=f"known: {', '.join(table)}")
    return table[name]
