"""SGLang's flags as options of a command, made from the one table of them.

Rules of this file
- Names, types, choices and help are the table's (`hicache_ref.config.server_args.FLAGS`); nothing about a single flag
  stands here.
- An option that was not given is not in the result, so that a profile's default can be told from a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..config.launch_line import LaunchLine, parse_launch_line
from ..config.server_args import FLAGS, ConfigError, Flag, parse_value


class _Value(click.ParamType):  # type: ignore[type-arg]
    """A flag's value, read as SGLang's command line reads it."""

    def __init__(self, flag: Flag) -> None:
        self._flag = flag
        self.name = "|".join(flag.all_choices) if 0 < len(flag.all_choices) <= 7 else flag.kind.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parse_value(self._flag, value) if isinstance(value, str) else value


def server_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add every flag of the table to a command."""
    for flag in reversed(FLAGS):
        names = (*flag.names, flag.field)
        if flag.kind is bool:
            command = click.option(*names, is_flag=True, default=None, help=flag.help)(command)
        else:
            default = "" if flag.default is None else f"  [{flag.default}]"
            command = click.option(*names, type=_Value(flag), default=None, help=flag.help + default)(command)
    return command


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The server flags among a command's options that were given."""
    return {flag.field: options[flag.field] for flag in FLAGS if options.get(flag.field) is not None}


def merge_launch_line(words: tuple[str, ...], flags: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Flags of a launch line behind `--`, with those given before it on top; what to tell the user.

    A line that does not switch HiCache on means a server without it. ConfigError: an unknown flag.
    """
    if not words:
        return flags, []
    line: LaunchLine = parse_launch_line(words)
    merged = {"enable_hierarchical_cache": False, **line.args, **flags}
    notes = list(line.notes)
    if line.ignored:
        notes.append("flags that do not touch the cache, ignored: " + " ".join(line.ignored))
    if not merged["enable_hierarchical_cache"]:
        notes.append("this launch line does not have --enable-hierarchical-cache: no L2, no L3")
    return merged, notes


def key_values(pairs: tuple[str, ...], option: str) -> dict[str, Any]:
    """`NAME=VALUE` options. Values are numbers or words where they look like it."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"{option} {pair}: write NAME=VALUE")
        values[name.replace("-", "_")] = _literal(text)
    return values


_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}


def _literal(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
