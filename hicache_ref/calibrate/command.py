"""`hicache calibrate`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from ..commandline.console import make_console
from ..commandline.flags import server_flags
from ..commandline.options import real_options
from ..control.rules import PROFILES
from ..run.command import real_config


@click.command()
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE", help="The JSON file."
)
@click.option(
    "--storage",
    "stores",
    multiple=True,
    metavar="NAME[=JSON]",
    help="A store to measure as well, with the settings of its extra config.",
)
@click.option("--seconds", type=float, default=90.0, show_default=True, help="About how long to take.")
@click.option("--profile", type=click.Choice(list(PROFILES)), default="v0.5.7", show_default=True, help="Whose rules.")
@click.option("--rule", "rules", multiple=True, metavar="NAME=VALUE", help="One knob of the profile, changed.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the weights.")
@real_options
@server_flags
def calibrate(launch_line: tuple[str, ...], **options: Any) -> None:
    """Measure this machine, for `hicache replay --hardware FILE`.

    Links, copies of every layout and backend, host memory, stores, prefill and decode of the model: with the flags that
    `hicache run` is given, since all of it depends on them. Needs the extra `ref` (torch), and a machine at rest.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise click.UsageError("hicache calibrate needs torch: pip install 'hicache[ref]'") from None
    from .api import Wanted, write
    from .api import calibrate as measure
    from .rig import RigFailed
    from .tables import show

    config, notes = real_config(launch_line, options | {"no_hicache": False})
    console, errors = make_console(), make_console(stderr=True)
    for note in notes:
        errors.print(note)
    stores = dict(map(_store, options["stores"]))
    wanted = Wanted(stores, options["seconds"], lambda what: errors.print(f"measuring {what}"))
    line = shlex.join(["hicache", *sys.argv[1:]])
    try:
        found = measure(config, wanted, line)
    except RigFailed as error:
        raise click.ClickException(str(error)) from None
    write(options["out"], found)
    show(found, console)
    console.print(f"written to {options['out']}; use it with --hardware {options['out']}")


def _store(word: str) -> tuple[str, dict[str, Any]]:
    """NAME, or NAME={"key": value, …}."""
    name, equals, settings = word.partition("=")
    try:
        found = json.loads(settings) if equals else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.UsageError(
            f'--storage {word}: write NAME, or NAME={{"key": value}} with the keys of its extra config'
        )
    return name, found
