"""Options that several commands share: how to read a workload, and when its requests arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

import workloads

from .flags import key_values


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
