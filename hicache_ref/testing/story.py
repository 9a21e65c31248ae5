"""What has happened to a machine of the tests, in words, and its checks after each thing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Told(Protocol):
    """Something that things happen to. broken: the last of them has raised."""

    story: list[str]
    broken: bool

    def check(self) -> None: ...


M = TypeVar("M", bound=Told)
P = ParamSpec("P")
R = TypeVar("R")


def happens(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """Something that can happen: goes into the story, and is followed by the checks."""

    @wraps(method)
    def step(self: M, /, *args: P.args, **named: P.kwargs) -> R:
        given = [repr(value) for value in args] + [f"{name}={value!r}" for name, value in named.items()]
        self.story.append(f"{method.__name__}({', '.join(given)})")
        self.broken = True
        result = method(self, *args, **named)
        if result is not None:
            self.story[-1] += f" -> {result}"
        self.check()
        self.broken = False
        return result

    return step
