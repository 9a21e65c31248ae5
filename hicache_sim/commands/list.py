"""`hicache list`."""

from __future__ import annotations

from collections.abc import Mapping

import click

import workloads
from hicache_ref.commandline.console import make_console
from hicache_ref.config.models import CATALOGUE
from hicache_ref.control.rules import PROFILES

from ..hardware import HARDWARE, STORES, HardwareProfile, StoreProfile


@click.command("list")
@click.argument("what", type=click.Choice(["models", "hardware", "stores", "workloads", "profiles"]), required=False)
def list_(what: str | None) -> None:
    """Names that other commands know. With `hardware` or `stores`: every number and its source."""
    from ..trace_tables import show_names, show_numbers

    console = make_console()
    numbers: Mapping[str, HardwareProfile | StoreProfile] | None
    numbers = {"hardware": HARDWARE, "stores": STORES}.get(what or "")  # type: ignore[assignment]
    if numbers is not None:
        show_numbers(numbers.values(), console)
        return
    names = {
        "models": list(CATALOGUE),
        "hardware": list(HARDWARE),
        "stores": list(STORES),
        "workloads": [*workloads.SAMPLES, *workloads.GENERATORS],
        "profiles": list(PROFILES),
    }
    show_names(names if what is None else {what: names[what]}, console)
