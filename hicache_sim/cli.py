"""The command line: `hicache replay`, `hicache trace`, `hicache list`.

Rules of this file
- Bad input ends in one line on stderr and exit code 2, never in a traceback: every error of ours is a ValueError whose
  text is that line.
- Commands translate between words and the library; what they do can be done from Python as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import workloads
from hicache_ref.config.models import CATALOGUE
from hicache_ref.config.server_args import ServerArgs
from hicache_ref.control.rules import PROFILES

from .flags import given, key_values, merge_launch_line, server_flags
from .hardware import HARDWARE, STORES, HardwareProfile, StoreProfile


class _OneLine(click.Group):
    """Turns our errors into one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            click.echo(f"hicache: {' '.join(str(error).split())}", err=True)
            sys.exit(2)


@click.group(cls=_OneLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="hicache")
def main() -> None:
    """Understand and tune the multi-level KV cache of LLM serving (SGLang's HiCache)."""


def _workload_options(command: Any) -> Any:
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


def _open(workload: str, options: Mapping[str, Any]) -> tuple[workloads.Workload, workloads.Schedule | None]:
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


@main.command(context_settings={"ignore_unknown_options": False})
@click.argument("workload")
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@_workload_options
@click.option("--profile", type=click.Choice(list(PROFILES)), default="v0.5.7", show_default=True, help="Whose rules.")
@click.option("--rule", "rules", multiple=True, metavar="NAME=VALUE", help="One knob of the profile, changed.")
@click.option("--no-hicache", is_flag=True, help="L1 only, as a server without --enable-hierarchical-cache.")
@click.option("--hardware", default="h100-pcie5", show_default=True, help="A machine by name, or a JSON file.")
@click.option("--hardware-set", multiple=True, metavar="NAME=VALUE", help="One number of the machine.")
@click.option("--store", help="A store profile by name, or a JSON file; otherwise the storage backend's.")
@click.option("--store-set", multiple=True, metavar="NAME=VALUE", help="One number of the store.")
@click.option(
    "--storage-fault", multiple=True, metavar="KIND:START:SECONDS[:VALUE]", help="slow, outage, owner-lost, …"
)
@click.option("--untimed", is_flag=True, help="Decisions only: one request after the other, every transfer at once.")
@click.option("--sequential", is_flag=True, help="One request at a time.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for tables, log and summary.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first requests.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all chance in the simulation.")
@click.option("--check", is_flag=True, help="Check the laws after every step (slow).")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of tables.")
@server_flags
def replay(workload: str, launch_line: tuple[str, ...], **options: Any) -> None:
    """Replay WORKLOAD through HiCache in simulated time.

    WORKLOAD is a trace file, a shipped sample or a generator (see `hicache list`). Behind `--` a whole line
    `python -m sglang.launch_server …` may stand; flags before it go on top.
    """
    from hicache_ref.account.summary import changes
    from hicache_ref.account.tables import show, show_changes

    from .api import Options
    from .api import replay as run
    from .build import RunConfig, plan

    source, schedule = _open(workload, options)
    flags, notes = merge_launch_line(launch_line, given(options))
    if options["no_hicache"]:
        flags["enable_hierarchical_cache"] = False
    config = RunConfig(
        args=ServerArgs(**flags),
        profile=options["profile"],
        rules=key_values(options["rules"], "--rule"),
        hardware=options["hardware"],
        hardware_numbers=key_values(options["hardware_set"], "--hardware-set"),
        store=options["store"],
        store_numbers=key_values(options["store_set"], "--store-set"),
        faults=options["storage_fault"],
        untimed=options["untimed"],
        seed=options["seed"],
    )
    console, errors = _console(), _console(stderr=True)
    if not options["as_json"]:
        show_changes(changes(plan(config).resolved.changes), notes, errors)
    with _Bar(errors, source, options["limit"]) as bar:
        chosen = Options(
            limit=options["limit"],
            sequential=options["sequential"],
            check=options["check"],
            out=options["out"],
            keep=False,
            progress=bar.advance,
        )
        result = run(source, schedule, chosen, config)
    if options["as_json"]:
        import json

        click.echo(json.dumps(result.summary, indent=2))
    else:
        show(result.summary, console)
        if options["out"] is not None:
            console.print(f"files in {options['out']}")


def _console(stderr: bool = False) -> Console:
    """As wide as the terminal; in a file, wide enough for the tables."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=120)


class _Bar:
    """A progress bar that appears when a run is long, and costs next to nothing when it is not."""

    def __init__(self, console: Console, source: workloads.Workload, limit: int | None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("replaying", total=limit)
        self._started = False

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._progress.stop()

    def advance(self, done: int, at_s: float) -> None:
        if done % 1000:
            return
        if not self._started:
            self._started = True
            self._progress.start()
        self._progress.update(self._task, completed=done, description=f"replaying, {at_s:,.0f} s simulated")


@main.group()
def trace() -> None:
    """Look at workloads."""


@trace.command()
@click.argument("workload")
@_workload_options
@click.option("--lru", multiple=True, type=int, metavar="TOKENS", help="Also the hits of an LRU pool of this size.")
def stats(workload: str, lru: tuple[int, ...], **options: Any) -> None:
    """What a trace holds, and what any cache could hit of it, by each definition of a hit."""
    from .trace_tables import show_stats

    source, schedule = _open(workload, options)
    show_stats(source, schedule, lru, _console())


@trace.command()
@click.argument("generator", type=click.Choice(list(workloads.GENERATORS)))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of the generator.")
@click.option("--block-tokens", type=int, default=512, show_default=True)
def generate(generator: str, out: Path, parameters: tuple[str, ...], block_tokens: int) -> None:
    """Write a generated workload as a Mooncake trace (open loop, times as if answers took none)."""
    source = workloads.open_workload(generator, key_values(parameters, "--set") or None)
    rows = workloads.write_mooncake(source.requests(workloads.OpenLoop()), out, block_tokens)
    click.echo(f"{rows:,} requests in {out}")


@main.command("list")
@click.argument("what", type=click.Choice(["models", "hardware", "stores", "workloads", "profiles"]), required=False)
def list_(what: str | None) -> None:
    """Names that other commands know. With `hardware` or `stores`: every number and its source."""
    from .trace_tables import show_names, show_numbers

    console = _console()
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


if __name__ == "__main__":
    main()
