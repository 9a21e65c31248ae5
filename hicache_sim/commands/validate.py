"""`hicache validate`."""

from __future__ import annotations

import json
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
from hicache_ref.config.server_args import FLAGS

from ..api import Options as ReplayOptions
from ..api import replay
from ..build import RunConfig, plan
from ..calibration import find_calibration
from ..validate.api import Machine, Options
from ..validate.api import validate as compare
from ..validate.drift import median
from ..validate.figures import TOLERANCES
from ..validate.page import show
from ..validate.runs import RunError, calibrate

OWN = ("hardware", "calibrate_s", "runs", "out", "as_json", "check")
"""Options that are not handed to `hicache run`."""
_REAL = ("device", "model_scale", "dtype", "exact", "poison", "device_memory", "host_reserve", "store_timeout")
CALIBRATED = frozenset(("profile", "rules", "seed", *_REAL, *(flag.field for flag in FLAGS)))
"""Options that `hicache calibrate` has as well."""


@click.command()
@click.argument("workload")
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@click.option("--hardware", metavar="FILE", help="What `hicache calibrate` wrote on this machine.")
@click.option(
    "--calibrate",
    "calibrate_s",
    type=float,
    metavar="SECONDS",
    help="Instead: calibrate for about so long before each real run; the machine is the median.",
)
@click.option("--runs", type=int, default=3, show_default=True, help="Real runs, each with an empty store.")
@click.option(
    "--tolerance-hits", type=float, default=0.5, show_default=True, metavar="POINTS", help="Of each level's hit rate."
)
@click.option(
    "--tolerance-bytes", type=float, default=2.0, show_default=True, metavar="%", help="Of those between two levels."
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
    console, errors = make_console(), make_console(stderr=True)
    given = {name: options[f"tolerance_{name}"] for name in TOLERANCES}
    tolerances = {name: value for name, value in given.items() if value is not None}
    out = options["out"] or Path("out/validation")
    chosen = Options(out, options["runs"], tolerances, lambda what: errors.print(what))
    if (options["hardware"] is None) == (options["calibrate_s"] is None):
        raise click.UsageError("give --hardware FILE, or --calibrate SECONDS to measure this machine between the runs")
    words = _words(ctx, lambda name: name not in OWN and not name.startswith("tolerance_"))
    simulation = _Simulation(workload, launch_line, options)
    if options["hardware"] is not None:
        simulation.plan(options["hardware"])
        machine: Machine = Given(simulation, options["hardware"])
    else:
        machine = Drifting(simulation, _words(ctx, CALIBRATED.__contains__), options["calibrate_s"])
    try:
        found = compare([workload, *words], machine, chosen)
    except RunError as error:
        raise click.ClickException(str(error)) from None
    if options["as_json"]:
        click.echo((out / "validation.json").read_text(encoding="utf-8"), nl=False)
    else:
        show(found.rows, console)
        console.print(f"files in {out}")
    sys.exit(0 if found.passes else 1)


class _Simulation:
    """The same configuration, simulated."""

    def __init__(self, workload: str, launch_line: tuple[str, ...], options: Mapping[str, Any]) -> None:
        self._options = options
        self._args, _ = server_args(launch_line, options)
        self._source, self._schedule = open_workload(workload, options)

    def plan(self, hardware: str) -> RunConfig:
        """ConfigError, ProfileError: not on this machine."""
        options = self._options
        calibration = find_calibration(hardware)
        if calibration is None:
            raise click.UsageError(f"--hardware {hardware}: not a file that hicache calibrate has written")
        calibration.check_run(options["model_scale"], options["dtype"], options["device"])
        rules = key_values(options["rules"], "--rule")
        config = RunConfig(self._args, options["profile"], rules, hardware, seed=options["seed"])
        plan(config)
        return config

    def run(self, folder: Path, hardware: str) -> Mapping[str, Any]:
        options = self._options
        chosen = ReplayOptions(options["limit"], options["sequential"], options["check"], folder, keep=False)
        return replay(self._source, self._schedule, chosen, self.plan(hardware)).summary


class Given:
    """Satisfies `validate.api.Machine`: measured once, before."""

    def __init__(self, simulation: _Simulation, hardware: str) -> None:
        self._hardware = hardware
        self.simulate = simulation.run

    def before_run(self, out: Path, number: int, tell: Callable[[str], None]) -> None:
        pass

    def measured(self, out: Path) -> tuple[str, Mapping[str, Any]]:
        about: Mapping[str, Any] = json.loads(Path(self._hardware).read_text(encoding="utf-8"))["about"]
        return self._hardware, about


class Drifting:
    """Satisfies `validate.api.Machine`: measured before each run."""

    def __init__(self, simulation: _Simulation, words: list[str], seconds: float) -> None:
        self._words, self._seconds = words, seconds
        self._found: list[Any] = []
        self.simulate = simulation.run

    def before_run(self, out: Path, number: int, tell: Callable[[str], None]) -> None:
        tell(f"calibration {number}")
        self._found.append(calibrate(self._words, out / f"calibration-{number}.json", self._seconds))

    def measured(self, out: Path) -> tuple[str, Mapping[str, Any]]:
        path, content = out / "calibration.json", median(self._found)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return str(path), content["about"]


def _words(ctx: click.Context, wanted: Callable[[str], bool]) -> list[str]:
    """Options that were typed, by their names, and the launch line."""
    words: list[str] = []
    for param in ctx.command.params:
        assert param.name is not None
        typed = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        if not isinstance(param, click.Option) or not typed or not wanted(param.name):
            continue
        value = ctx.params[param.name]
        if param.is_flag:
            words.append(param.opts[0])
        else:
            for each in value if param.multiple else (value,):
                words += [param.opts[0], str(each)]
    launch_line = ctx.params["launch_line"]
    return [*words, "--", *launch_line] if launch_line else words
