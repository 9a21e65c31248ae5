"""What a sweep may vary, by name: every option of `hicache replay` that changes what is replayed.

SGLang's flags go by their own names (`hicache-ratio`); single numbers of a mapping by a dot: `rule.NAME`,
`hardware-set.NAME`, `store-set.NAME`, `set.NAME` (a generator's parameter).

Rules of this file
- A knob is a choice (one looks for the best value) or a condition (what has to be coped with: the trace, its load, the
  seed). A setting is judged under all conditions, and no condition is ever recommended.
- A word becomes a value here and nowhere else; the value of `none` is None, "not given".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import workloads
from hicache_ref.commandline.flags import key_values
from hicache_ref.config.server_args import FLAGS, UPSTREAM, Flag, parse_value
from hicache_ref.control.rules import PROFILES, Rules

from ..hardware import HARDWARE, STORES, HardwareProfile, StoreProfile, load_profile, load_store
from .ask import Ask
from .domains import Choices, Domain, read_domain
from .errors import SweepError, look_up, unknown

TRUTH = {"true": True, "false": False}


class Knob(ABC):
    """One thing to vary. `name` as written, `kind` of its values; only numbers have ranges."""

    name: str
    kind: type
    condition: bool = False

    @property
    def column(self) -> str:
        """Its name in tables."""
        return self.name.replace("-", "_")

    @abstractmethod
    def read(self, text: str) -> Any:
        """The value that a word stands for. ValueError: none of this knob's."""

    @abstractmethod
    def everything(self, profiles: Collection[str]) -> Sequence[Any]:
        """What `all` means where these profiles are in play. SweepError: no list of values."""

    @abstractmethod
    def put(self, ask: Ask, value: Any) -> Ask:
        """The ask with this knob set."""

    @abstractmethod
    def get(self, ask: Ask) -> Any:
        """Where the knob stands; None: not given."""

    def domain(self, wanted: str | Iterable[Any], profiles: Collection[str]) -> Domain:
        """From a command line's text, or from values. SweepError, ConfigError, ProfileError: what cannot be read."""
        try:
            if isinstance(wanted, str):
                return read_domain(wanted, self.read, self.kind, lambda: self.everything(profiles))
            values = tuple(dict.fromkeys(self.read(str(value)) for value in wanted))
        except SweepError as error:
            raise SweepError(f"--vary {self.name}: {error}") from None
        if not values:
            raise SweepError(f"--vary {self.name}: no values", "give at least one")
        return Choices(values)

    def _no_list(self) -> SweepError:
        return SweepError("all: there is no list of its values", "name them, separated by commas")


@dataclass(frozen=True)
class FlagKnob(Knob):
    """One of SGLang's flags."""

    flag: Flag

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.flag.name.removeprefix("--")

    @property
    def column(self) -> str:
        return self.flag.field

    @property
    def kind(self) -> type:  # type: ignore[override]
        return self.flag.kind

    def read(self, text: str) -> Any:
        if text.lower() == "none":
            return None
        if self.flag.kind is bool:
            return look_up(TRUTH, "value", text.lower())
        value = parse_value(self.flag, text)
        choices = cast(tuple[Any, ...], self.flag.all_choices)
        if choices and value not in choices:
            raise unknown("value", text, self.flag.all_choices)
        return value

    def everything(self, profiles: Collection[str]) -> Sequence[Any]:
        if self.flag.kind is bool:
            return (True, False)
        later = any(UPSTREAM.get(profile) != "v0.5.7" for profile in profiles)
        choices = self.flag.choices + (self.flag.later_choices if later else ()) + self.flag.our_choices
        if not choices:
            raise self._no_list()
        return choices

    def put(self, ask: Ask, value: Any) -> Ask:
        others = {name: each for name, each in ask.flags.items() if name != self.flag.field}
        return replace(ask, flags=others if value is None else {**others, self.flag.field: value})

    def get(self, ask: Ask) -> Any:
        return ask.flags.get(self.flag.field)


def _unchecked(value: Any) -> None:
    pass


@dataclass(frozen=True)
class Setting(Knob):
    """A plain field of the ask. `names`: the values it can have, or `all` of those that have a name."""

    name: str
    field: str
    kind: type = str
    names: tuple[Any, ...] = ()
    closed: bool = False
    """Nothing but `names` will do."""
    optional: bool = False
    condition: bool = True
    check: Callable[[Any], object] = _unchecked

    def read(self, text: str) -> Any:
        if self.optional and text.lower() == "none":
            return None
        if self.kind is bool:
            return look_up(TRUTH, "value", text.lower())
        if self.closed and text not in self.names:
            raise unknown("value", text, self.names)
        try:
            value = self.kind(text)
        except ValueError:
            raise SweepError(f"{text!r} is not a number", "correct the value") from None
        self.check(value)
        return value

    def everything(self, profiles: Collection[str]) -> Sequence[Any]:
        if self.kind is bool:
            return (True, False)
        if not self.names:
            raise self._no_list()
        return self.names

    def put(self, ask: Ask, value: Any) -> Ask:
        return replace(ask, **{self.field: value})

    def get(self, ask: Ask) -> Any:
        return getattr(ask, self.field)


class Faults(Setting):
    """At most one storage fault at a time."""

    def put(self, ask: Ask, value: Any) -> Ask:
        return replace(ask, faults=() if value is None else (value,))

    def get(self, ask: Ask) -> Any:
        return " ".join(ask.faults) or None


@dataclass(frozen=True)
class Entry(Knob):
    """One number of a mapping of the ask."""

    name: str
    field: str
    key: str
    kind: type
    condition: bool = False

    @property
    def column(self) -> str:
        return f"{self.name.partition('.')[0].replace('-', '_')}.{self.key}"

    def read(self, text: str) -> Any:
        return key_values((f"{self.key}={text}",), self.name)[self.key]

    def everything(self, profiles: Collection[str]) -> Sequence[Any]:
        if self.kind is not bool:
            raise self._no_list()
        return (True, False)

    def put(self, ask: Ask, value: Any) -> Ask:
        changed: dict[str, Any] = {self.field: {**getattr(ask, self.field), self.key: value}}
        return replace(ask, **changed)

    def get(self, ask: Ask) -> Any:
        return getattr(ask, self.field).get(self.key)


# --- Finding them ---------------------------------------------------------------------------------------------------


_SETTINGS: tuple[Knob, ...] = (
    Setting("trace", "trace", names=tuple(workloads.SAMPLES)),
    Setting("seed", "seed", int),
    Setting("speed", "speed", float),
    Setting("schedule", "schedule", names=tuple(workloads.SCHEDULES), closed=True, optional=True),
    Setting("arrivals", "arrivals", optional=True),
    Setting("spread", "spread", bool),
    Setting("limit", "limit", int, optional=True),
    Setting("sequential", "sequential", bool),
    Setting("untimed", "untimed", bool),
    Setting("format", "format", names=tuple(workloads.FORMATS), closed=True, optional=True),
    Setting("block-tokens", "block_tokens", int, optional=True),
    Setting("chain", "chain", bool),
    Faults("storage-fault", "faults", optional=True),
    Setting("profile", "profile", names=tuple(PROFILES), closed=True, condition=False),
    Setting("hardware", "hardware", names=tuple(HARDWARE), condition=False, check=load_profile),
    Setting("store", "store", names=tuple(STORES), optional=True, condition=False, check=load_store),
)

KNOBS: dict[str, Knob] = {spelling.removeprefix("--"): FlagKnob(flag) for flag in FLAGS for spelling in flag.names}
KNOBS |= {flag.field.replace("_", "-"): FlagKnob(flag) for flag in FLAGS}
KNOBS |= {knob.name: knob for knob in _SETTINGS}
"""Knobs by every spelling. Those of a mapping are made when asked for, see `find_knob`."""

_INHERITED = ("name", "description", "sources")


def _numbers(of: type) -> dict[str, type]:
    return {each.name: float for each in fields(of) if each.name not in _INHERITED}


def _kind(default: Any) -> type:
    return float if default is None else type(default)


_MAPPINGS: dict[str, tuple[str, Mapping[str, type], bool]] = {
    "rule": ("rules", {each.name: _kind(each.default) for each in fields(Rules)}, False),
    "hardware-set": ("hardware_numbers", _numbers(HardwareProfile), False),
    "store-set": ("store_numbers", _numbers(StoreProfile), False),
    "set": (
        "parameters",
        {each: type(value) for name in workloads.GENERATORS for each, value in workloads.parameters_of(name).items()},
        True,
    ),
}
"""Field of the ask, the keys it may have with the kind of their values, and whether it is a condition."""


def find_knob(name: str) -> Knob:
    """The knob of that name, with or without dashes in front. SweepError: unknown, with close matches."""
    plain = name.removeprefix("--").replace("_", "-")
    family, dot, key = plain.partition(".")
    if not dot:
        return look_up(KNOBS, "flag to vary", plain)
    field, keys, condition = look_up(_MAPPINGS, "family of numbers to vary", family)
    key = key.replace("-", "_")
    return Entry(f"{family}.{key}", field, key, look_up(keys, f"{family} to vary", key), condition)
