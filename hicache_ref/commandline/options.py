"""Options that several commands share: how to read a workload, when its requests arrive, what serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

import workloads

from ..config.server_args import ServerArgs
from ..control.rules import PROFILES
from .flags import given, key_values, merge_launch_line


def workload_options(command: Any) -> Any:
    """How to read or generate a workload, and when its requests arrive."""
    options = [
        click.option(
            "--format", "format_", type=click.Choice(list(workloads.FORMATS)), help="Instead of detecting it."
        ),
        click.option("--block-tokens", type=int, help="Tokens a block id stands for; the format's own otherwise."),
        click.option("--chain", is_flag=True, default=None, help="Ids hash single blocks: chain them into prefixes."),
        click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="A generator's parameter."),
        click.option(
            "--schedule", type=click.Choice(list(workloads.SCHEDULES)), help="open: by the clock. closed: by answers."
        ),
        click.option("--speed", type=float, default=1.0, show_default=True, help="Recorded times are divided by it."),
        click.option("--spread", is_flag=True, help="Spread requests that share an instant over the gap to the next."),
        click.option(
            "--arrivals", metavar="LAW[:VALUE[:SEED]]", help="How sessions start: together, poisson:RATE, spaced:GAP."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def open_workload(workload: str, options: Mapping[str, Any]) -> tuple[workloads.Workload, workloads.Schedule | None]:
    parameters = key_values(options["parameters"], "--set")
    source = workloads.open_workload(
        workload, parameters or None, options["format_"], options["block_tokens"], options["chain"]
    )
    return source, _schedule(options)


def _schedule(options: Mapping[str, Any]) -> workloads.Schedule | None:
    """The schedule that was asked for; None: the workload's own."""
    arrivals = _arrivals(options["arrivals"])
    plain = options["speed"] == 1.0 and not options["spread"] and arrivals is None
    if options["schedule"] is None and plain:
        return None
    name = options["schedule"] or "open"
    more: dict[str, Any] = {"spread": True} if options["spread"] else {}
    if more and name != "open":
        raise ValueError("--spread: only an open loop has a clock to spread")
    return workloads.SCHEDULES[name](speed=options["speed"], arrivals=arrivals, **more)


def _arrivals(text: str | None) -> workloads.Arrivals | None:
    if text is None:
        return None
    name, *values = text.split(":")
    if name not in workloads.ARRIVALS:
        raise ValueError(f"--arrivals {text}: unknown law {name!r}: known are {', '.join(workloads.ARRIVALS)}")
    try:
        numbers = [float(value) if at == 0 else int(value) for at, value in enumerate(values)]
        law: Callable[..., workloads.Arrivals] = workloads.ARRIVALS[name]
        return law(*numbers)
    except (TypeError, ValueError):
        raise ValueError(f"--arrivals {text}: write together, poisson:RATE[:SEED] or spaced:GAP_S") from None


def engine_options(command: Any) -> Any:
    """What both worlds ask: whose rules, how much of the workload, and where results go."""
    options = [
        click.option(
            "--profile", type=click.Choice(list(PROFILES)), default="v0.5.7", show_default=True, help="Whose rules."
        ),
        click.option("--rule", "rules", multiple=True, metavar="NAME=VALUE", help="One knob of the profile, changed."),
        click.option("--no-hicache", is_flag=True, help="L1 only, as a server without --enable-hierarchical-cache."),
        click.option("--sequential", is_flag=True, help="One request at a time."),
        click.option(
            "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for tables, log and summary."
        ),
        click.option("--limit", type=click.IntRange(min=1), help="Only the first requests."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of all chance."),
        click.option("--check", is_flag=True, help="Check the laws after every step (slow)."),
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of tables."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def real_options(command: Any) -> Any:
    """What a real machine asks beside SGLang's flags."""
    options = [
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
        click.option(
            "--model-scale",
            type=float,
            help="Shrinks the model: every width times this, or, above 1, to so many parameters (5e6). On a CPU a "
            "million unless given.",
        ),
        click.option("--dtype", help="Of the computation: float32 on a CPU, the model's own on a GPU."),
        click.option("--threads", type=click.IntRange(min=1), help="That compute on a CPU; torch's choice otherwise."),
        click.option("--exact", is_flag=True, help="Bitwise the same whatever is cached, chunked or batched (slower)."),
        click.option(
            "--poison", is_flag=True, help="Free pages are NaN: finds pages read before they arrived (slower)."
        ),
        click.option(
            "--device-memory", type=float, default=1.0, show_default=True, metavar="GIB", help="L1 on a CPU, at most."
        ),
        click.option(
            "--host-reserve", type=float, default=10.0, show_default=True, metavar="GIB", help="Left free beside L2."
        ),
        click.option(
            "--store-timeout", type=float, default=30.0, show_default=True, metavar="S", help="Of a store's call."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def server_args(launch_line: tuple[str, ...], options: Mapping[str, Any]) -> tuple[ServerArgs, list[str]]:
    """Flags of a command and of the launch line behind it, and what to tell the user."""
    flags, notes = merge_launch_line(launch_line, given(dict(options)))
    if options["no_hicache"]:
        flags["enable_hierarchical_cache"] = False
    return ServerArgs(**flags), notes
