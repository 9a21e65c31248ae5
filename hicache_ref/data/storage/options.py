"""The extra config of a store, read key by key: wrong values and unknown keys are errors, not surprises.

Rules of this file
- A reader turns what JSON or an environment variable holds into a value, or raises ValueError saying what it wants.
- The extra config goes before the environment, the environment before the default, as upstream has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .client import StorageError

T = TypeVar("T")
FLAG = "--hicache-storage-backend-extra-config"

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class Options:
    """What one store may take from its extra config and the environment."""

    def __init__(self, backend: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self.backend = backend
        self._given = dict(given)
        self.environ = environ
        self._known: list[str] = []

    def take(self, key: str, read: Callable[[Any], T], default: T, env: str | None = None) -> T:
        """The value of `key`, else of the environment variable `env`, else `default`. StorageError: `read` refused."""
        self._known.append(key)
        value, where = self._given.get(key), f"{FLAG}: {key}"
        if value is None and env is not None:
            value, where = self.environ.get(env), env
        if value is None:
            return default
        try:
            return read(value)
        except ValueError as error:
            raise StorageError(f"{where} of backend {self.backend!r} must be {error}, got {value!r}") from None

    def default_to(self, more: Mapping[str, Any]) -> None:
        """Settings from elsewhere, a file of a store's own, for keys that the extra config leaves out."""
        self._given = {**more, **self._given}

    @property
    def given(self) -> dict[str, Any]:
        """All of the extra config, for stores that read it themselves."""
        return dict(self._given)

    def end(self) -> None:
        """Everything known has been taken. StorageError: something else was given."""
        unknown = [key for key in self._given if key not in self._known]
        if unknown:
            raise StorageError(
                f"{FLAG}: backend {self.backend!r} knows no {', '.join(unknown)}; it knows {', '.join(self._known)}"
            )


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def flag(value: Any) -> bool:
    """JSON's booleans, and what environment variables write for them."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    answer = known.get(str(value).lower())
    if answer is None:
        raise ValueError("true or false")
    return answer


def size_bytes(value: Any) -> int:
    """Bytes, as upstream writes sizes: 1048576, "200G" (decimal) or "1Gi" (binary); 0 for none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]i?|Ki)?", str(value).strip())
    if isinstance(value, bool) or match is None or (match[2] or "") not in UNITS:
        raise ValueError('a size in bytes, such as 1048576, "200G" or "1Gi"')
    return int(float(match[1]) * UNITS[match[2] or ""])


def number(low: float, high: float = math.inf, what: str = "a number") -> Callable[[Any], float]:
    """A reader of numbers from `low` to `high`."""

    def read(value: Any) -> float:
        try:
            result = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            result = math.nan
        if not low <= result <= high:
            raise ValueError(f"{what} from {low:g} to {high:g}" if high < math.inf else f"{what}, at least {low:g}")
        return result

    return read


def whole(low: int, high: int) -> Callable[[Any], int]:
    """A reader of whole numbers from `low` to `high`."""
    read_number = number(low, high, "a whole number")

    def read(value: Any) -> int:
        result = read_number(value)
        if result != int(result):
            raise ValueError(f"a whole number from {low} to {high}")
        return int(result)

    return read
