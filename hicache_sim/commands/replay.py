"""`hicache replay`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hicache_ref.commandline.console import Bar, make_console
from hicache_ref.commandline.flags import key_values, server_flags
from hicache_ref.commandline.options import engine_options, open_workload, server_args, workload_options
from workloads.request import Request


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("workload")
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@workload_options
@engine_options
@click.option("--hardware", default="h100-pcie5", show_default=True, help="A machine by name, or a JSON file.")
@click.option("--hardware-set", multiple=True, metavar="NAME=VALUE", help="One number of the machine.")
@click.option("--store", help="A store profile by name, or a JSON file; otherwise the storage backend's.")
@click.option("--store-set", multiple=True, metavar="NAME=VALUE", help="One number of the store.")
@click.option(
    "--storage-fault", multiple=True, metavar="KIND:START:SECONDS[:VALUE]", help="slow, outage, owner-lost, …"
)
@click.option(
    "--log",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of a recorded run: decide it again from its log, and compare.",
)
@click.option("--untimed", is_flag=True, help="Decisions only: one request after the other, every transfer at once.")
@server_flags
def replay(workload: str, launch_line: tuple[str, ...], **options: Any) -> None:
    """Replay WORKLOAD through HiCache in simulated time.

    WORKLOAD is a trace file, a shipped sample or a generator (see `hicache list`). Behind `--` a whole line
    `python -m sglang.launch_server …` may stand; flags before it go on top.
    """
    from hicache_ref.account.summary import changes
    from hicache_ref.account.tables import show, show_changes

    from ..api import Options
    from ..api import replay as run
    from ..build import RunConfig, plan

    source, schedule = open_workload(workload, options)
    if options["log"] is not None:
        _decide_again(options["log"], source.requests(schedule))
        return
    args, notes = server_args(launch_line, options)
    config = RunConfig(
        args=args,
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
    console, errors = make_console(), make_console(stderr=True)
    if not options["as_json"]:
        show_changes(changes(plan(config).resolved.changes), notes, errors)
    with Bar(errors, options["limit"]) as bar:
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


def _decide_again(folder: Path, requests: Iterator[Request]) -> None:
    """Law L6 on a recorded run. Exit code 1 if anything was decided otherwise."""
    from hicache_ref.drive.relog import decide_again

    again = decide_again(folder, requests)
    console = make_console()
    console.print(f"{again.entries:,} entries of the log in {folder}, decided again")
    for kind, count in again.operations.items():
        recorded = again.recorded_operations[kind]
        console.print(f"  {kind:8} {count:>10,}" + ("" if count == recorded else f"   recorded: {recorded:,}"))
    if again.recorded_sha256 is not None:
        console.print(f"  sha256 {again.sha256[:16]}…, recorded {again.recorded_sha256[:16]}…")
    console.print("the same operations" if again.same else "NOT the same operations")
    sys.exit(0 if again.same else 1)
