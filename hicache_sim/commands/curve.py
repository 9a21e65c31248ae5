"""`hicache curve`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hicache_ref.commandline.console import Bar, make_console
from hicache_ref.commandline.options import open_workload, workload_options
from hicache_ref.config.server_args import FLAG_OF, ServerArgs, parse_value
from hicache_ref.control.rules import PROFILES

if TYPE_CHECKING:
    from rich.console import Console

    from ..curve.bounds import Links
    from ..curve.study import Study


@click.command()
@click.argument("workload")
@workload_options
@click.option("--page-size", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens of a page.")
@click.option("--l1-tokens", metavar="SIZES", help="Sizes of L1: 256k,1M,…  [--points of them, up to all there is]")
@click.option("--points", type=click.IntRange(min=2), default=8, show_default=True, help="Sizes of L1.")
@click.option("--l2-ratio", default="1,2,4", show_default=True, help="Sizes of L2 over L1; 0: no L2.")
@click.option("--eviction", default="", metavar="NAMES", help="Strategies to replay beside LRU: a,b or all; belady.")
@click.option("--write", "writes", default="write_through", show_default=True, help="Their write policies: a,b or all.")
@click.option("--sample", type=float, default=1.0, show_default=True, help="Share of the pages for curve and bounds.")
@click.option("--replay-sample", type=float, help="Share of the pages for replays; otherwise what a minute allows.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sample.")
@click.option("--profile", type=click.Choice(list(PROFILES)), default="v0.5.7", show_default=True, help="Whose rules.")
@click.option("--hardware", default="h100-pcie5", show_default=True, help="Whose host link bounds L2.")
@click.option("--store", help="Whose read rate bounds L3, by name or a JSON file; otherwise an unlimited one.")
@click.option("--model-path", help="Whose pages travel: see `hicache list`.  [llama-3.1-8b]")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first requests.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for Parquet tables and picture.")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="The curves as a picture.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON instead of tables.")
def curve(workload: str, **options: Any) -> None:
    """Hit rates of WORKLOAD over all sizes of L1 and L2, and what no policy can exceed.

    LRU's are exact, from one pass over the trace (`--sample` for what does not fit in memory); other strategies are
    replayed. Requests are served one after the other, as in `hicache replay --untimed`.
    """
    from ..curve.references import gather
    from ..curve.study import Wanted, of

    source, schedule = open_workload(workload, options)
    wanted = Wanted(
        sizes=_pages(options["l1_tokens"], options["page_size"]),
        points=options["points"],
        ratios=_numbers(options["l2_ratio"]),
        evictions=_names(options["eviction"], _evictions),
        writes=_names(options["writes"], _writes),
        rate=options["sample"],
        replay_rate=options["replay_sample"],
        seed=options["seed"],
        links=_links(options),
        profile=options["profile"],
    )
    console, errors = make_console(), make_console(stderr=True)
    requests = itertools.islice(source.requests(schedule), options["limit"])
    with Bar(errors, options["limit"], "reading", "recorded") as bar:
        references = gather(requests, options["page_size"], wanted.rate, wanted.seed, bar.advance)
    with errors.status("replaying") as status:
        done = of(
            references, wanted, lambda s: status.update(f"replaying {s.eviction}, {s.write}, {s.l1_pages:,} pages")
        )
    _write(done, options["out"], options["png"])
    _tell(done, console, options["as_json"])
    if options["out"] is not None and not options["as_json"]:
        console.print(f"files in {options['out']}")


def _pages(text: str | None, page: int) -> tuple[int, ...]:
    if text is None:
        return ()
    flag = FLAG_OF["max_total_tokens"]
    return tuple(sorted({int(str(parse_value(flag, word.strip()))) // page for word in text.split(",")}))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        raise ValueError(f"--l2-ratio {text}: write numbers with commas between them, as 1,2,4") from None


def _names(text: str, everything: Any) -> tuple[str, ...]:
    return tuple(everything()) if text == "all" else tuple(word.strip() for word in text.split(",") if word.strip())


def _evictions() -> list[str]:
    from hicache_ref.policy.eviction import EVICTION

    return list(EVICTION)


def _writes() -> list[str]:
    from hicache_ref.policy.write import WRITE

    return [name for name in WRITE if name != "none"]


def _links(options: dict[str, Any]) -> Links:
    """Pages a second, of the machine, the store and the model."""
    from hicache_ref.config.layouts import geometry
    from hicache_ref.config.models import load_model

    from ..build import DEFAULT_MODEL
    from ..curve.bounds import Links
    from ..hardware import load_profile, load_store

    model = load_model(options["model_path"] or DEFAULT_MODEL)
    page_bytes = geometry(model, options["page_size"], 1, ServerArgs().kv_cache_dtype or "auto").page_bytes
    l2 = load_profile(options["hardware"]).h2d_bytes_per_s / page_bytes
    return Links(l2, load_store(options["store"]).read_bytes_per_s / page_bytes) if options["store"] else Links(l2)


def _write(done: Study, out: Path | None, png: Path | None) -> None:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, rows in (("levels", done.levels), ("bounds", done.bounds), ("strategies", done.strategies)):
            if len(rows):
                rows.to_parquet(out / f"{name}.parquet", index=False)
        done.plot(out / "curve.png")
    if png is not None:
        done.plot(png)


def _tell(done: Study, console: Console, as_json: bool) -> None:
    if as_json:
        import json

        rows = {"levels": done.level_rows, "bounds": done.bound_rows, "strategies": done.strategy_rows}
        click.echo(json.dumps({"workload": done.facts, **rows}, indent=2))
        return
    from ..curve.tables import tables

    for table in tables(done):
        console.print(table)
