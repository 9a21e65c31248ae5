"""`hicache sweep`: its options are those of `hicache replay`, and its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hicache_ref.commandline.console import make_console
from hicache_ref.commandline.flags import given, key_values, merge_launch_line

from ..sweeps.ask import Ask
from ..sweeps.engines import ENGINES
from ..sweeps.errors import SweepError
from ..sweeps.journal import Outcome
from ..sweeps.search import DEFAULT_POINTS, SEARCHERS
from .replay import replay

_NOT_OURS = {"workload", "launch_line", "out", "check", "as_json"}
"""Of replay's parameters: what a sweep has in its own way, or not at all."""


def _as_replay(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command replay's options: the same for all points, unless varied."""
    made = click.command(context_settings={"ignore_unknown_options": False})(command)
    made.params += [parameter for parameter in replay.params if parameter.name not in _NOT_OURS]
    return made


@_as_replay
@click.argument("workload")
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@click.option("--vary", multiple=True, metavar="KNOB=VALUES", help="a,b,c or all, LOW..HIGH[:STEP|:log]; may repeat.")
@click.option("--search", type=click.Choice(list(SEARCHERS)), default="grid", show_default=True)
@click.option("--points", type=click.IntRange(min=1), help=f"Settings for random and optuna.  [{DEFAULT_POINTS}]")
@click.option("--search-seed", type=int, default=0, show_default=True, help="Of the search's own chance.")
@click.option("--pareto", help="Metrics, METRIC[:min|:max],…  [ttft_p99,host_bytes,store_bytes]")
@click.option("--slo", multiple=True, metavar="METRIC<NUMBER", help="A promise (seconds, bytes, shares); may repeat.")
@click.option("--best", help="The metric that decides; otherwise the first of --pareto that no --slo bounds.")
@click.option("--worth/--no-worth", default=True, show_default=True, help="Also run the best without each flag.")
@click.option("--jobs", type=click.IntRange(min=1), help="Replays at once; otherwise one a core.")
@click.option("--cluster", type=click.Choice(list(ENGINES)), default="local", show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/sweep"),
    show_default=True,
    help="Folder for tables, journal, and report.html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print best.json instead of tables.")
def sweep(workload: str, launch_line: tuple[str, ...], **options: Any) -> None:
    """Replay WORKLOAD with many settings, and say which flags to set.

    A KNOB is any option of `hicache replay`: a flag of SGLang (hicache-ratio=1.5,2,4), trace, seed, speed, hardware,
    store, profile, and single numbers: rule.NAME, hardware-set.NAME, store-set.NAME, set.NAME. Killed or interrupted,
    the same command continues where it was. Behind `--` a whole line `python -m sglang.launch_server …` may stand.
    """
    from ..report.build import write_page
    from ..sweeps.api import sweep as run
    from ..sweeps.tables import show

    console, errors = make_console(), make_console(stderr=True)
    base, notes = _base(workload, launch_line, options)
    for note in notes:
        errors.print(f"note  {note}")
    try:
        with _Bar(errors) as bar:
            swept = run(
                base,
                _vary(options["vary"]),
                search=options["search"],
                points=options["points"],
                search_seed=options["search_seed"],
                pareto=options["pareto"].split(",") if options["pareto"] else None,
                slo=options["slo"],
                best=options["best"],
                worth=options["worth"],
                out=options["out"],
                jobs=options["jobs"],
                cluster=options["cluster"],
                watch=bar,
            )
    except KeyboardInterrupt:
        raise SweepError(
            "interrupted", f"what is done is kept in {options['out']}; the same command continues"
        ) from None
    page = write_page([options["out"]])
    if options["as_json"]:
        click.echo(json.dumps(swept.best, indent=2))
    else:
        show(swept, console)
        console.print(f"files in {options['out']}; all of this, drawn: {page}", soft_wrap=True)
    if swept.best["setting"] is None:
        first = swept.points.error.dropna()
        raise SweepError(f"nothing to recommend: {swept.best['why']}", str(first.iloc[0]) if len(first) else "")


def _base(workload: str, launch_line: tuple[str, ...], options: dict[str, Any]) -> tuple[Ask, list[str]]:
    """What all points share, and what to tell the user."""
    flags, notes = merge_launch_line(launch_line, given(options))
    if options["no_hicache"]:
        flags["enable_hierarchical_cache"] = False
    ask = Ask(
        trace=workload,
        flags=flags,
        profile=options["profile"],
        rules=key_values(options["rules"], "--rule"),
        hardware=options["hardware"],
        hardware_numbers=key_values(options["hardware_set"], "--hardware-set"),
        store=options["store"],
        store_numbers=key_values(options["store_set"], "--store-set"),
        faults=options["storage_fault"],
        untimed=options["untimed"],
        sequential=options["sequential"],
        seed=options["seed"],
        limit=options["limit"],
        format=options["format_"],
        block_tokens=options["block_tokens"],
        chain=options["chain"],
        parameters=key_values(options["parameters"], "--set"),
        schedule=options["schedule"],
        speed=options["speed"],
        spread=options["spread"],
        arrivals=options["arrivals"],
    )
    return ask, notes


def _vary(words: tuple[str, ...]) -> dict[str, str]:
    vary: dict[str, str] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals:
            raise SweepError(f"--vary {word}: write KNOB=VALUES")
        if name in vary:
            raise SweepError(f"--vary {name}: given twice", "list all its values at once")
        vary[name] = values
    return vary


class _Bar:
    """Points done, how many of them failed, and the time left."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        left = (TextColumn("left"), TimeRemainingColumn())
        self._progress = Progress(*columns, *left, console=console, transient=True)
        self._task = self._progress.add_task("sweeping", total=0)
        self._points = self._failed = 0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def expect(self, points: int) -> None:
        self._points += points
        self._progress.update(self._task, total=self._points)

    def point(self, outcome: Outcome, reused: bool) -> None:
        self._failed += outcome.error is not None
        words = f"sweeping, {self._failed} failed" if self._failed else "sweeping"
        self._progress.update(self._task, advance=1, description=words)
