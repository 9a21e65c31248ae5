"""Policies by name.

A registry maps a name, the one SGLang's flag takes, to something that makes the policy. Unknown names list the known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

P = TypeVar("P")


class Registry(Generic[P]):
    """Name to maker. Used as a decorator: `@EVICTION.register("lru")`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._makers: dict[str, Callable[..., P]] = {}

    def register(self, name: str) -> Callable[[Callable[..., P]], Callable[..., P]]:
        def note(maker: Callable[..., P]) -> Callable[..., P]:
            if name in self._makers:
                raise ValueError(f"{self._what} {name!r} is registered twice")
            self._makers[name] = maker
            return maker

        return note

    def make(self, name: str, **parameters: object) -> P:
        """The policy called `name`. ValueError lists the known names."""
        if name not in self._makers:
            raise ValueError(f"unknown {self._what} {name!r}: known are {', '.join(self._makers)}")
        return self._makers[name](**parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)
