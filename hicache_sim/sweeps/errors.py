"""The one exception of a sweep's bad input, and how a misspelt name is answered."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class SweepError(ValueError):
    """One line: what is wrong, what to do."""

    def __init__(self, what: str, do: str = "") -> None:
        super().__init__(" ".join(f"{what}; {do}".split()) if do else what)


def look_up(table: Mapping[str, T], kind: str, name: str) -> T:
    """`table[name]`. SweepError: an unknown name, with close matches, or else all there are."""
    if name not in table:
        raise unknown(kind, name, table)
    return table[name]


def unknown(kind: str, name: str, known: Iterable[str]) -> SweepError:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=4)
    do = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    return SweepError(f"unknown {kind} {name!r}", do)
