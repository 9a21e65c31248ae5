"""The command line: `hicache COMMAND`, each command a module of its own.

Rules of this file
- Bad input ends in one line on stderr and exit code 2, never in a traceback: every error of ours is a ValueError whose
  text is that line.
- Commands translate between words and the library; what they do can be done from Python as well.
- A command's module is imported when it is asked for, so that nobody waits for what he does not use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "replay": ("hicache_sim.commands.replay", "replay"),
    "run": ("hicache_ref.run.command", "run"),
    "calibrate": ("hicache_ref.calibrate.command", "calibrate"),
    "curve": ("hicache_sim.commands.curve", "curve"),
    "validate": ("hicache_sim.commands.validate", "validate"),
    "sweep": ("hicache_sim.commands.sweep", "sweep"),
    "report": ("hicache_sim.commands.report", "report"),
    "trace": ("hicache_sim.commands.trace", "trace"),
    "list": ("hicache_sim.commands.list", "list_"),
}
"""Module and name of each command."""


class _Commands(click.Group):
    """Finds commands by name, and turns our errors into one line and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            raise ValueError(f"unknown command {cmd_name!r}; known: {', '.join(COMMANDS)}")
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            click.echo(f"hicache: {' '.join(str(error).split())}", err=True)
            sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="hicache")
def main() -> None:
    """Understand and tune the multi-level KV cache of LLM serving (SGLang's HiCache)."""


if __name__ == "__main__":
    main()
