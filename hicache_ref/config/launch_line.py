"""A line that starts an SGLang server, read back into `ServerArgs`' fields.

Rules of this file
- What argparse would accept is accepted: `--flag=value`, unique beginnings of flags (`--tp`), negative numbers, flags
  of many values. The last of two wins.
- `sglang_flags.json` says which flags there are and how many words each takes. It holds names and arities of two
  versions, extracted once from their argparse definitions; a flag that only one version has is accepted with a note.
- Nothing is dropped in silence: a flag that does not touch the cache is listed as ignored, an unknown one is an error.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from hicache_ref.config.server_args import FLAGS, OURS, ConfigError, Flag, parse_value


@dataclass(frozen=True)
class LaunchLine:
    """`ServerArgs(**line.args)` is what the line asks for."""

    args: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    """Flags that do not touch the cache, with their values, and what stood before the command."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Known:
    """One spelling of a flag: the flag's first spelling, argparse's arity, the versions that know it, ours if we do."""

    spelling: str
    name: str
    arity: str
    versions: tuple[str, ...]
    ours: Flag | None


_VERSIONS = ("v0.5.7", "v0.5.23")
_SHELL = re.compile(r"[&|;<]|&&|\|\||\d?>.*")
"""Where the command ends for a shell: what follows is not the server's."""
_NEGATIVE_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")


def parse_launch_line(line: str | Sequence[str]) -> LaunchLine:
    """Read `python -m sglang.launch_server ...`, `sglang serve ...`, or the flags alone; a string is split first."""
    words = shlex.split(line.replace("\\\n", " ")) if isinstance(line, str) else list(line)
    result = LaunchLine()
    rest = _without_command([w for w in words if w.strip()], result)
    while rest:
        word, rest = rest[0], rest[1:]
        if _SHELL.fullmatch(word):
            result.ignored.append(" ".join([word, *rest]))
            break
        name, equals, inline = word.partition("=")
        known = _look_up(name, result)
        values, rest = _take(known, [inline] if equals else None, rest)
        _record(known, values, result)
    return result


def _without_command(words: list[str], result: LaunchLine) -> list[str]:
    """The flags, without the command and what stands before it. `sglang serve` takes the model as its first word."""
    for at, pair in enumerate(pairwise(words)):
        served = pair == ("sglang", "serve") or (pair[0].endswith("/sglang") and pair[1] == "serve")
        if served or pair == ("-m", "sglang.launch_server"):
            python = 0 if served else int(at > 0 and "python" in words[at - 1])
            result.ignored.extend(words[: at - python])
            rest = words[at + 2 :]
            if served and rest and not rest[0].startswith("-"):
                result.args["model_path"] = rest.pop(0)
            return rest
    if words and not words[0].startswith("--"):
        raise ConfigError(
            f"launch line {words[0]} ...",
            "it starts no SGLang server",
            "begin with python -m sglang.launch_server, sglang serve, or the first flag",
            "launch line",
        )
    return words


def _look_up(name: str, result: LaunchLine) -> _Known:
    """The flag of this name, or the only one of some version that begins so."""
    if not name.startswith("--"):
        raise ConfigError(f"launch line: {name}", "it belongs to no flag", "drop or quote it", "launch line")
    known = _flags().get(name) or _by_beginning(name)
    if known.name == "--config":
        raise ConfigError(
            "--config", "it reads flags from a file that is not here", "write its flags on the line", "launch line"
        )
    if known.versions == (OURS,):
        result.notes.append(f"{known.spelling}: no SGLang has this flag")
    elif len(known.versions) == 1:
        result.notes.append(f"{known.spelling}: only SGLang {known.versions[0]} has this flag")
    return known


def _by_beginning(name: str) -> _Known:
    """argparse takes any beginning that fits one flag. A version is asked on its own, as upstream would be."""
    fits = {flag.name: flag for spelling, flag in _flags().items() if spelling.startswith(name)}
    per_version = [[flag for flag in fits.values() if version in flag.versions] for version in _VERSIONS]
    unique = {flags[0].name: flags[0] for flags in per_version if len(flags) == 1}
    if len(unique) == 1:
        return next(iter(unique.values()))
    if fits:
        raise ConfigError(name, "several flags begin so", f"take {_any_of(sorted(fits))}", "launch line")
    close = difflib.get_close_matches(name, _flags(), n=3)
    do = f"did you mean {_any_of(close)}?" if close else "drop it"
    raise ConfigError(name, "neither SGLang 0.5.7 nor 0.5.23 has this flag", do, "launch line")


def _any_of(names: Iterable[str]) -> str:
    return " or ".join(names)


def _take(known: _Known, inline: list[str] | None, rest: list[str]) -> tuple[list[str], list[str]]:
    """The words of a flag's value, and what follows them."""
    at_most = {"0": 0, "1": 1, "?": 1}.get(known.arity, len(rest))
    count = 0
    while inline is None and count < min(at_most, len(rest)) and not _is_flag(rest[count]):
        count += 1
    values = rest[:count] if inline is None else inline
    if inline and known.arity == "0":
        raise ConfigError(known.name, "it takes no value", f"drop ={inline[0]}", "launch line")
    if not values and known.arity in "1+":
        raise ConfigError(known.name, "its value is missing", "add it", "launch line")
    return values, rest[count:]


def _is_flag(word: str) -> bool:
    """As argparse tells them apart: a dash begins a flag, unless a number follows or there is a space in the word."""
    if _SHELL.fullmatch(word):
        return True
    return word.startswith("-") and word != "-" and not _NEGATIVE_NUMBER.match(word) and " " not in word


def _record(known: _Known, values: list[str], result: LaunchLine) -> None:
    if known.ours is None:
        result.ignored.append(shlex.join([known.name, *values]))
    else:
        result.args[known.ours.field] = True if known.ours.kind is bool else parse_value(known.ours, values[0])


@cache
def _flags() -> dict[str, _Known]:
    """Every spelling of every flag of the two versions, and ours."""
    table = json.loads(files("hicache_ref.config").joinpath("sglang_flags.json").read_text(encoding="utf-8"))
    ours = {name: flag for flag in FLAGS for name in flag.names}
    found: dict[str, _Known] = {}
    for version in _VERSIONS:
        for arity, *names in table[version]:
            flag = next((ours[n] for n in names if n in ours), None)
            name = flag.name if flag else names[0]
            for spelling in names:
                before = found[spelling].versions if spelling in found else ()
                found[spelling] = _Known(spelling, name, arity, (*before, version), flag)
    for name, flag in ours.items():
        if name not in found:
            versions = (OURS,) if flag.only == OURS else found[flag.name].versions
            found[name] = _Known(name, flag.name, "0" if flag.kind is bool else "1", versions, flag)
    return found
