"""`hicache validate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hicache_ref.commandline.console import make_console
from hicache_ref.commandline.flags import key_values, server_flags
from hicache_ref.commandline.options import (
    engine_options,
    open_workload,
    real_options,
    server_args,
    workload_options,
)

OWN = ("hardware", "runs", "out", "as_json", "check")
"""Options that are not handed to `hicache run`."""


@click.command()
@click.argument("workload")
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@click.option("--hardware", required=True, metavar="FILE", help="What `hicache calibrate` wrote on this machine.")
@click.option("--runs", type=int, default=3, show_default=True, help="Real runs, each with an empty store.")
@click.option(
    "--tolerance-hits", type=float, default=0.5, show_default=True, metavar="POINTS", help="Of each level's hit rate."
)
@click.option(
    "--tolerance-ttft", type=float, default=10.0, show_default=True, metavar="%", help="Of mean and median TTFT."
)
@click.option("--tolerance-tpot", type=float, metavar="%", help="Of mean and median time per token; else none.")
@click.option("--tolerance-e2e", type=float, metavar="%", help="Of mean and median end-to-end time; else none.")
@workload_options
@engine_options
@real_options
@server_flags
@click.pass_context
def validate(ctx: click.Context, /, workload: str, launch_line: tuple[str, ...], **options: Any) -> None:
    """Run WORKLOAD for real and simulated, with the same flags, and compare.

    Exit code 1: a figure is farther off than its tolerance and than the real runs are from each other.
    """
    from ..validate.api import Options
    from ..validate.api import validate as compare
    from ..validate.figures import TOLERANCES
    from ..validate.page import show
    from ..validate.runs import RunError

    console, errors = make_console(), make_console(stderr=True)
    given = {name: options[f"tolerance_{name}"] for name in TOLERANCES}
    tolerances = {name: value for name, value in given.items() if value is not None}
    out = options["out"] or Path("out/validation")
    chosen = Options(out, options["runs"], tolerances, lambda what: errors.print(what))
    simulate, machine = _simulation(workload, launch_line, options)
    try:
        found = compare(_words(ctx), simulate, machine, chosen)
    except RunError as error:
        raise click.ClickException(str(error)) from None
    if options["as_json"]:
        click.echo((out / "validation.json").read_text(encoding="utf-8"), nl=False)
    else:
        show(found.rows, console)
        console.print(f"files in {out}")
    sys.exit(0 if found.passes else 1)


def _simulation(
    workload: str, launch_line: tuple[str, ...], options: Mapping[str, Any]
) -> tuple[Callable[[Path], Mapping[str, Any]], Mapping[str, Any]]:
    """The same configuration on the calibrated machine, and what is known of that machine."""
    from ..api import Options, replay
    from ..build import RunConfig, plan
    from ..calibration import find_calibration

    calibration = find_calibration(options["hardware"])
    if calibration is None:
        raise click.UsageError(f"--hardware {options['hardware']}: not a file that hicache calibrate has written")
    calibration.check_run(options["model_scale"], options["dtype"], options["device"])
    args, _ = server_args(launch_line, options)
    rules = key_values(options["rules"], "--rule")
    config = RunConfig(args, options["profile"], rules, options["hardware"], seed=options["seed"])
    plan(config)
    source, schedule = open_workload(workload, options)

    def simulate(folder: Path) -> Mapping[str, Any]:
        chosen = Options(options["limit"], options["sequential"], options["check"], folder, keep=False)
        return replay(source, schedule, chosen, config).summary

    return simulate, calibration.content["about"]


def _words(ctx: click.Context) -> list[str]:
    """What was typed, less the options of this command alone: the words of `hicache run`."""
    words: list[str] = [str(ctx.params["workload"])]
    for param in ctx.command.params:
        assert param.name is not None
        own = param.name in OWN or param.name.startswith("tolerance_")
        typed = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        if not isinstance(param, click.Option) or own or not typed:
            continue
        value = ctx.params[param.name]
        if param.is_flag:
            words.append(param.opts[0])
        else:
            for each in value if param.multiple else (value,):
                words += [param.opts[0], str(each)]
    launch_line = ctx.params["launch_line"]
    return [*words, "--", *launch_line] if launch_line else words
