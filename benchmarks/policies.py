"""What the policies are worth on the shipped traces: `python -m benchmarks.policies` writes `reports/policies/`.

Rules of this file
- Hits are of replays without time, every request, on all pages; LRU's and offline-best of the same sizes stand beside.
- Prefetch policies are compared in simulated time, since nothing else tells late from never.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.keys import AtomKeys
from hicache_ref.control.rules import rules_for
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.write import WRITE
from hicache_sim.api import Options, replay
from hicache_sim.curve import References, Wanted, gather
from hicache_sim.curve.replays import Setting, prompts, replayed
from hicache_sim.curve.study import of
from hicache_sim.untimed import replay as replay_untimed
from workloads import SCHEDULES, open_workload

from .measure import ROOT


@dataclass(frozen=True)
class Case:
    """A trace at a page size. small, medium: sizes of L1 in pages, where LRU hits a quarter and three quarters or so
    of what an infinite cache would."""

    trace: str
    page_tokens: int
    small: int
    medium: int


CASES = (
    Case("conversation", 512, 4_000, 14_000),
    Case("synthetic", 512, 1_500, 6_000),
    Case("claude-code", 64, 6_000, 20_000),
)
EVICTIONS = (*EVICTION, "belady")
WRITES = ("write_through", "write_through_selective", "write_back", "write_back_watermark", "boundary")
TIMED = (("conversation", 3_000, 0.1), ("claude-code", 800, 0.2))
"""Trace, requests, speed of its clock: slow enough for one GPU to keep up."""


def sections() -> Iterator[str]:
    for case in CASES:
        references = gather(open_workload(case.trace).requests(None), case.page_tokens)
        print(case.trace, flush=True)
        yield f"## {case.trace}, pages of {case.page_tokens} tokens\n"
        yield _about(references)
        yield "\n### Eviction, L1 alone\n"
        yield _evictions(references, case)
        yield "\n### Writing, lru, L2 = 2 × L1 and L2 = L1 / 2\n"
        yield _writes(references, case)
        yield "\n### Both\n"
        yield _both(references, case)
    yield "\n## The sizes of SGLang PR #29049, on the conversation trace\n"
    yield _boundary()
    yield "\n## The watermark of SGLang PR #40576, on the conversation trace\n"
    yield _watermarks()
    yield "\n## Prefetch, in simulated time\n"
    yield _prefetch()


def _about(references: References) -> str:
    ceiling = 1 - references.distinct / references.total
    return (
        f"{len(references.starts) - 1:,} requests, {references.total:,} prompt pages, "
        f"{references.distinct:,} distinct; an infinite cache hits {ceiling:.2%}.\n"
    )


def _rows(
    references: References, sizes: tuple[int, ...], ratios: tuple[float, ...], **more: Any
) -> list[dict[str, Any]]:
    wanted = Wanted(sizes=sizes, ratios=ratios, replay_rate=1.0, profile="v0.5.23", **more)
    return of(references, wanted).strategy_rows


def _evictions(references: References, case: Case) -> str:
    rows = _rows(references, (case.small, case.medium), (0.0,), evictions=EVICTIONS)
    head = [
        f"{size:,} pages: hit %" if end == "rate" else "gap closed"
        for size in (case.small, case.medium)
        for end in ("rate", "gap")
    ]
    lines = []
    for name in EVICTIONS:
        mine = [row for row in rows if row["eviction"] == name]
        cells = [cell for row in mine for cell in (_percent(row["rate"]), _share(row["gap_closed"]))]
        lines.append([f"{name}{'†' if mine[0]['reads_future'] else ''}", *cells])
    best = {row["l1_pages"]: row["best_rate"] for row in rows}
    lines.append(
        ["offline-best", *(cell for size in (case.small, case.medium) for cell in (_percent(best[size]), "+100 %"))]
    )
    return _table(["eviction", *head], lines)


def _writes(references: References, case: Case) -> str:
    rows = _rows(references, (case.small,), (0.5, 2.0), evictions=("lru",), writes=(*WRITES, "write_what_is_read"))
    lines = [
        [
            row["write"] + ("†" if row["reads_future"] else ""),
            f"{row['l2_ratio']:g}",
            _percent(row["rate"]),
            _percent(row["best_rate"]),
            _share(row["gap_closed"]),
            f"{row['l2_written_pages']:,.0f}",
            f"{row['l2_read_pages']:,.0f}",
        ]
        for row in sorted(rows, key=lambda row: -row["l2_ratio"])
    ]
    return _table(["write", "L2/L1", "hit %", "best %", "gap closed", "pages written", "pages read"], lines)


def _both(references: References, case: Case) -> str:
    rows = _rows(
        references,
        (case.small,),
        (2.0,),
        evictions=("lru", "ttl", "session", "s3fifo", "belady"),
        writes=("write_through", "boundary"),
    )
    rows.sort(key=lambda row: row["rate"])
    lines = [
        [
            row["eviction"] + ("†" if row["reads_future"] else ""),
            row["write"],
            _percent(row["rate"]),
            _percent(row["l1_rate"]),
            _share(row["gap_closed"]),
        ]
        for row in rows
    ]
    return _table(["eviction", "write", "hit %", "of it L1 %", "gap closed"], lines)


def _boundary() -> str:
    """L1 of 6,000 pages of 512 tokens, L2 of 12,000 and of 3,000, as there; its tool-agent trace is not to be had."""
    references = gather(open_workload("conversation").requests(None), 512)
    lines = []
    for l2 in (12_000, 3_000):
        for profile in ("v0.5.7", "v0.5.23"):
            for write in ("write_through", "write_back", "boundary"):
                print(write, l2, profile, flush=True)
                found = replayed(references, Setting("lru", 6_000, l2, write, profile))
                lines.append(
                    [
                        f"{l2:,}",
                        profile,
                        write,
                        _percent(found.l1_hits / references.total),
                        _percent(found.hits / references.total),
                        f"{found.written:,.0f}",
                    ]
                )
    return _table(["L2 pages", "rules", "write", "L1 hit %", "L1 + L2 hit %", "pages written"], lines)


def _watermarks() -> str:
    references = gather(open_workload("conversation").requests(None), 512)
    lines = []
    for threshold in (0.0, 0.25, 0.5, 0.7, 0.9, 1.0):
        cells = [f"{threshold:g}"]
        for l2 in (8_000, 2_000):
            cache = HiCache(
                CacheShape(512, 4_000, l2),
                EVICTION.make("lru"),
                WRITE.make("write_back_watermark", threshold=threshold),
                rules_for("v0.5.23"),
                AtomKeys(),
            )
            totals = replay_untimed(prompts(references), cache)
            cells += [_percent((totals.device_hit + totals.loaded) / totals.input), f"{cache.counters.backed_up:,}"]
        lines.append(cells)
    head = ["threshold", "L2 = 2 × L1: hit %", "pages written", "L2 = L1 / 2: hit %", "pages written"]
    return _table(head, lines)


def _prefetch() -> str:
    lines = []
    for trace, limit, speed in TIMED:
        for policy in PREFETCH:
            print(trace, policy, flush=True)
            done = replay(
                trace,
                SCHEDULES["open"](speed=speed),
                Options(limit=limit),
                page_size=64,
                max_total_tokens=500_000,
                hicache_ratio=1.5,
                hicache_storage_backend="mooncake",
                hicache_storage_prefetch_policy=policy,
            )
            fetch, ttft_s = done.summary["prefetch"], done.requests.ttft_s
            lines.append(
                [
                    trace,
                    policy,
                    _percent(done.summary["hit_rates"]["total"]),
                    _percent(done.summary["hit_rates"]["storage"]),
                    f"{ttft_s.mean():.2f}",
                    f"{ttft_s.quantile(0.99):.1f}",
                    f"{fetch['issued']:,}",
                    f"{fetch['refused']['store has less than the threshold']:,}",
                    f"{fetch['useful_tokens']:,}",
                    f"{fetch['late_tokens'] + fetch['wasted_tokens']:,}",
                ]
            )
    head = [
        "trace",
        "prefetch",
        "hit %",
        "from L3 %",
        "TTFT mean s",
        "p99 s",
        "asked",
        "too few there",
        "useful tokens",
        "late or wasted",
    ]
    return _table(head, lines)


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f}"


def _share(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:+.1f} %"


def _table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "policies", metavar="FOLDER")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = "\n".join(sections())
    (out / "tables.md").write_text(HEAD + found)
    print(f"written to {out / 'tables.md'}")


HEAD = """# Policies on the shipped traces

Written by `python -m benchmarks.policies`. Rules of v0.5.23. Hits: of all whole prompt pages, requests one after the
other. Gap closed: of the way from lru (with write_through, where there is an L2) to offline-best of the same pages.
† reads the future: not to be had, only to be compared with.

"""

if __name__ == "__main__":
    main()
