"""`hicache report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page; otherwise report.html in the first folder.",
)
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write every figure here for papers, as PNG and PDF.",
)
def report(folders: tuple[Path, ...], out: Path | None, figures: Path | None) -> None:
    """One self-contained HTML page about runs and sweeps.

    DIR is what `hicache replay --out`, `hicache run --out` or `hicache sweep --out` has written. Several are compared,
    with the first.
    """
    from ..report.build import read, write_page

    click.echo(f"{write_page(folders, out)}")
    if figures is not None:
        click.echo(f"{len(read(folders).save_figures(figures))} files in {figures}")
