"""What a knob may be set to: a few values, or a range.

Written as `1.5,2,4`, `all`, `0..4` (whole numbers), `0.5..0.9:0.1` (in steps), `1.5..8` or `1..1000:log` (a range to
search in), `none` (not given).

Rules of this file
- A domain can be counted out for a grid, drawn from, or suggested from by Optuna. What cannot be counted out says so.
- Numbers drawn from a range have four digits: they are to be pasted, and a fifth decides nothing.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SweepError

MOST_VALUES = 10_000
"""Of one knob in a grid."""


class Domain(ABC):
    @abstractmethod
    def values(self) -> Sequence[Any]:
        """All of them, in the order given. SweepError: too many to count."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Any:
        """One by chance, evenly (on a log scale: by ratio)."""

    @abstractmethod
    def suggest(self, trial: Any, name: str) -> Any:
        """One that an Optuna trial asks for."""


@dataclass(frozen=True)
class Choices(Domain):
    """Values by name."""

    choices: tuple[Any, ...]

    def values(self) -> Sequence[Any]:
        return self.choices

    def draw(self, rng: random.Random) -> Any:
        return rng.choice(self.choices)

    def suggest(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.choices)


@dataclass(frozen=True)
class Whole(Domain):
    """Whole numbers, both ends included."""

    low: int
    high: int
    log: bool = False

    def values(self) -> Sequence[Any]:
        if self.high - self.low >= MOST_VALUES:
            raise SweepError(
                f"{self.low}..{self.high}: too many values for a grid", "take a step, or --search random or optuna"
            )
        return range(self.low, self.high + 1)

    def draw(self, rng: random.Random) -> Any:
        if not self.log:
            return rng.randint(self.low, self.high)
        drawn = round(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return min(max(drawn, self.low), self.high)

    def suggest(self, trial: Any, name: str) -> Any:
        return trial.suggest_int(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Real(Domain):
    """Numbers between two ends."""

    low: float
    high: float
    log: bool = False

    def values(self) -> Sequence[Any]:
        raise SweepError(
            f"{self.low:g}..{self.high:g}: a range has no grid",
            f"list values, give a step ({self.low:g}..{self.high:g}:STEP), or take --search random or optuna",
        )

    def draw(self, rng: random.Random) -> Any:
        if not self.log:
            return self._rounded(rng.uniform(self.low, self.high))
        return self._rounded(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))

    def suggest(self, trial: Any, name: str) -> Any:
        return self._rounded(trial.suggest_float(name, self.low, self.high, log=self.log))

    def _rounded(self, value: float) -> float:
        return min(max(float(f"{value:.4g}"), self.low), self.high)


def read_domain(text: str, read: Callable[[str], Any], kind: type, everything: Callable[[], Sequence[Any]]) -> Domain:
    """The domain that `text` stands for. `read`: one value. `kind`: int and float may have ranges. `everything`: what
    `all` means. SweepError or the reader's own: what cannot be read."""
    if text == "all":
        return Choices(tuple(everything()))
    low, dots, rest = text.partition("..")
    if dots and kind in _RANGES and "," not in text:
        high, _, how = rest.partition(":")
        return _RANGES[kind](text, read(low), read(high), how)
    words = split(text)
    if not words or "" in words:
        raise SweepError(f"{text!r}: an empty value", "list values, separated by commas")
    return Choices(tuple(dict.fromkeys(read(word) for word in words)))


def _whole(text: str, low: Any, high: Any, how: str) -> Domain:
    return _range(text, low, high, how, Whole, int)


def _real(text: str, low: Any, high: Any, how: str) -> Domain:
    return _range(text, low, high, how, Real, float)


_RANGES: dict[type, Callable[[str, Any, Any, str], Domain]] = {int: _whole, float: _real}


def _range(text: str, low: Any, high: Any, how: str, between: Callable[..., Domain], kind: type) -> Domain:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise SweepError(f"{text}: not a range", "write LOW..HIGH with the lower number first")
    if how == "log":
        if low <= 0:
            raise SweepError(f"{text}: a log range begins above 0", "raise its lower end")
        return between(low, high, log=True)
    return between(low, high) if not how else _steps(text, low, high, how, kind)


def _steps(text: str, low: Any, high: Any, how: str, kind: type) -> Choices:
    try:
        step = kind(how)
        count = int((high - low) / step * (1 + 1e-9)) + 1
    except (ValueError, ArithmeticError):
        step, count = 0, 0
    if step <= 0 or count > MOST_VALUES:
        raise SweepError(f"{text}: cannot be cut in steps of {how}", "write LOW..HIGH:STEP, or LOW..HIGH:log")
    return Choices(tuple(kind(f"{low + at * step:.12g}") for at in range(count)))


def split(text: str) -> list[str]:
    """Words between commas; commas within brackets or quotes, as JSON has them, part nothing."""
    words, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == '"'
        if not quoted:
            depth += (sign in "{[") - (sign in "}]")
        if sign == "," and depth == 0 and not quoted:
            words.append("")
        else:
            words[-1] += sign
    return [word.strip() for word in words]
