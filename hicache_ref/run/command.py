"""`hicache run`."""

from __future__ import annotations

from typing import Any

import click

from ..commandline.console import Bar, make_console
from ..commandline.flags import key_values, server_flags
from ..commandline.options import engine_options, open_workload, real_options, server_args, workload_options
from ..config.sizing import GIB


@click.command()
@click.argument("workload")
@click.argument("launch_line", nargs=-1, type=click.UNPROCESSED)
@workload_options
@engine_options
@real_options
@click.option(
    "--fresh-store",
    is_flag=True,
    help="Keep pages in a part of the store of their own, empty at the start and the end.",
)
@server_flags
def run(workload: str, launch_line: tuple[str, ...], **options: Any) -> None:
    """Run WORKLOAD on real memory: pools, copies, a store and a model that computes every token.

    Flags and output are those of `hicache replay`; the times are this machine's. Needs the extra `ref` (torch).
    With --tp-size N each rank is a process of this machine; files are written by rank 0, and bytes are those of all.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise click.UsageError("hicache run needs torch: pip install 'hicache[ref]'") from None
    from ..account.summary import changes
    from ..account.tables import show, show_changes
    from .api import Options
    from .api import run as run_workload
    from .driver import RunFailed
    from .setup import plan

    source, schedule = open_workload(workload, options)
    config, notes = real_config(launch_line, options)
    console, errors = make_console(), make_console(stderr=True)
    if not options["as_json"]:
        made = plan(config)
        show_changes(changes(made.resolved.changes), [*notes, *made.kernels.notes], errors)
    with Bar(errors, options["limit"], "running", "passed") as bar:
        chosen = Options(
            limit=options["limit"],
            sequential=options["sequential"],
            check=options["check"],
            out=options["out"],
            progress=bar.advance,
        )
        try:
            result = run_workload(source, schedule, chosen, config)
        except RunFailed as error:
            raise click.ClickException(str(error)) from None
    if options["as_json"]:
        import json

        click.echo(json.dumps(result.summary, indent=2))
    else:
        show(result.summary, console)
        if options["out"] is not None:
            console.print(f"files in {options['out']}")


def real_config(launch_line: tuple[str, ...], options: dict[str, Any]) -> tuple[Any, list[str]]:
    """A `RealConfig` from a command's options, and what to tell the user."""
    from .setup import RealConfig

    args, notes = server_args(launch_line, options)
    config = RealConfig(
        args=args,
        profile=options["profile"],
        rules=key_values(options["rules"], "--rule"),
        device=options["device"],
        model_scale=options["model_scale"],
        dtype=options["dtype"],
        threads=options["threads"],
        fresh_store=options.get("fresh_store", False),
        exact=options["exact"],
        poison=options["poison"],
        device_memory_bytes=int(options["device_memory"] * GIB),
        host_reserve_bytes=int(options["host_reserve"] * GIB),
        store_timeout_s=options["store_timeout"],
        seed=options["seed"],
    )
    return config, notes
