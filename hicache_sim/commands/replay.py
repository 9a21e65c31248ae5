"""`hicache replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hicache_ref.commandline.console import Bar, make_console
from hicache_ref.commandline.flags import given, key_values, merge_launch_line, server_flags
from hicache_ref.commandline.options import open_workload, workload_options
from hicache_ref.config.server_args import ServerArgs
from hicache_ref.control.rules import PROFILES


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("workload")
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@workload_options
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

    from ..api import Options
    from ..api import replay as run
    from ..build import RunConfig, plan

    source, schedule = open_workload(workload, options)
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
