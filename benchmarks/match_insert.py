"""Look up and insert 8,192-token prompts: our radix cache and the real one of SGLang, prompt by prompt the same.

Rules of this file
- Both sides get lists of token ids. Ours turns them into keys first; the real one compares the lists themselves. The
  ratio is given with and without that.
- The prefixes found must be equal for every prompt, or there is no ratio.
"""

from __future__ import annotations

from . import peers
from .inputs import PROMPT_TOKENS, prompts
from .measure import ROOT, Row, Table, Usage, builds, run, spread
from .scale import Scale, main

PAGES = (1, 64)
SIDES = ROOT / "benchmarks" / "sides"
REAL = "RadixCache, SGLang 0.5.7"
TIMES, SERVED = "times the real one", "keys not counted"


def match_insert(scale: Scale) -> Table:
    """Match, lock, take slots, insert and unlock prompts, at page sizes 1 and 64, beside the real RadixCache."""
    table = Table("match_insert", f"Match and insert, prompts of {PROMPT_TOKENS:,} tokens")
    path = str(prompts(scale.work, scale.prompts, table))
    sides = {build.name: [build.python, str(SIDES / "ours.py")] for build in builds()}
    try:
        peer = peers.sglang(scale.peers)
        sides[REAL] = [peer.python, str(SIDES / "theirs.py"), peer.source, "radix"]
    except peers.Missing as why:
        table.notes.append(f"No row for the real RadixCache: {why}.")
    found: dict[tuple[int, str], list[Usage]] = {(page, side): [] for page in PAGES for side in sides}
    for _ in range(scale.repetitions):
        for (page, side), usages in found.items():
            argv = [*sides[side], path, str(PROMPT_TOKENS), str(page)]
            table.ran(argv)
            usages.append(run(argv))
    _agree(found)
    table.rows = [_row(page, side, usages, scale.prompts) for (page, side), usages in found.items()]
    if REAL in sides:
        for row in table.rows:
            _compare(row, next(other for other in table.rows if (other["page"], other["who"]) == (row["page"], REAL)))
        table.notes.append("Prefixes found are equal on both sides, prompt by prompt.")
    return table


def _row(page: int, side: str, usages: list[Usage], count: int) -> Row:
    said = [usage.json for usage in usages]
    return {
        "page": page,
        "who": side,
        "prompts": count,
        "matched": said[0]["matched"] / (count * PROMPT_TOKENS),
        "keys us": spread(one["keys_s"] / count * 1e6 for one in said),
        "match + insert us": spread(one["serve_s"] / count * 1e6 for one in said),
        "both us": spread((one["keys_s"] + one["serve_s"]) / count * 1e6 for one in said),
        TIMES: None,
        SERVED: None,
    }


def _compare(row: Row, real: Row) -> None:
    row[TIMES] = real["both us"]["median"] / row["both us"]["median"]
    row[SERVED] = real["match + insert us"]["median"] / row["match + insert us"]["median"]


def _agree(found: dict[tuple[int, str], list[Usage]]) -> None:
    for page in PAGES:
        digests = {side: usages[0].json["digest"] for (at, side), usages in found.items() if at == page}
        if len(set(digests.values())) > 1:
            raise AssertionError(f"page {page}: the prefixes found differ: {digests}")


if __name__ == "__main__":
    main(match_insert)
