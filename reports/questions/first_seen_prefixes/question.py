"""SGLang #39444: how large must L2 be for write_through to persist prefixes that are seen once?

Rules of this file
- The trace is the report's: 5 prefixes of 16,011 tokens, one after the other, and all of them once more. `first` cases
  end after the first pass, and count what was stored; `again` cases count what the second pass restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from matplotlib.figure import Figure

from hicache_sim.api import Result
from hicache_sim.report.inks import series_ink
from hicache_sim.sweeps.ask import Ask

from ..question import Found, Question

PREFIXES = 5
PREFIX_TOKENS = 16_011
L1_TOKENS = 42_763
REPORTED_L2_TOKENS = 27_127
SIZES = (16_384, REPORTED_L2_TOKENS, 32_768, 38_400, L1_TOKENS, 50_000, L1_TOKENS + PREFIX_TOKENS + 64, 85_526)
POLICIES = ("write_through", "write_back")
PASSES: Mapping[str, int | None] = {"first": PREFIXES, "again": None}


def _case(policy: str, size: int, which: str) -> str:
    return f"{policy}, L2 of {size:,}, {which}"


def _ask(policy: str, size: int, which: str) -> Ask:
    flags = {
        "model_path": "Qwen/Qwen3-8B",
        "page_size": 64,
        "max_total_tokens": L1_TOKENS,
        "hicache_total_tokens": size,
        "hicache_write_policy": policy,
        "hicache_storage_backend": "mooncake",
        "hicache_storage_prefetch_policy": "wait_complete",
    }
    trace = "reports/questions/first_seen_prefixes/trace.jsonl"
    return Ask(trace, flags, profile="v0.5.23", hardware="h20", limit=PASSES[which])


class FirstSeenPrefixes(Question):
    name = "first_seen_prefixes"
    title = "How large must L2 be for write_through to persist first-seen prefixes?"
    asked = (
        "[SGLang #39444](https://github.com/sgl-project/sglang/issues/39444): 5 prefixes of 16,011 tokens, L1 of "
        "42,763 tokens, L2 of 27,127; replayed after eviction, a prefix comes back from L3 in part only under "
        "write_through, and in full under write_back with wait_complete."
    )
    setting = (
        "`trace.jsonl` here: those 5 prefixes 20 s apart, then the same 5 again. L1 and L2 as reported, in pages of "
        "64; Qwen3-8B on an H20 stands for Qwen3-4B (sizes are in tokens, so only times would differ); rules of "
        "v0.5.23. Under write_back half of the prefixes is still in L1 after the first pass, and stored when it is "
        "evicted."
    )
    cases: ClassVar = {
        _case(policy, size, which): _ask(policy, size, which)
        for policy in POLICIES
        for size in SIZES
        for which in PASSES
    }
    cheap = tuple(_case("write_through", size, which) for size in (REPORTED_L2_TOKENS, L1_TOKENS) for which in PASSES)
    columns: ClassVar = {
        "stored": ("stored", "{:.0%}"),
        "restored": ("restored", "{:.0%}"),
    }

    def measure(self, result: Result) -> dict[str, Any]:
        summary = result.summary
        return {
            "stored_tokens": summary["writes"]["stored_tokens"],
            "loaded_tokens": summary["tokens"]["loaded"],
            "backups_refused": summary["writes"]["backups_refused"],
            "requests": summary["requests"]["done"],
        }

    def rows(self, found: Found) -> dict[str, dict[str, float]]:
        whole = PREFIXES * (PREFIX_TOKENS // 64 * 64)
        return {
            f"{policy}, L2 of {size:,} ({size / L1_TOKENS:.2f} x L1)": {
                "stored": found[_case(policy, size, "first")]["stored_tokens"] / whole,
                "restored": found[_case(policy, size, "again")]["loaded_tokens"] / whole,
            }
            for policy in POLICIES
            for size in SIZES
        }

    def draw(self, found: Found, canvas: Figure) -> None:
        rows = list(self.rows(found).values())
        titles = {"stored": "Stored in the first pass", "restored": "Restored in the second"}
        for axes, (column, title) in zip(canvas.subplots(1, 2), titles.items(), strict=True):
            for at, policy in enumerate(POLICIES):
                ink = series_ink(at)
                shares = [100 * row[column] for row in rows[at * len(SIZES) : (at + 1) * len(SIZES)]]
                style: dict[str, Any] = {"color": ink.light, "linestyle": ink.line_style, "marker": ink.marker, "ms": 4}
                axes.plot([size / 1000 for size in SIZES], shares, label=policy, **style)
            marks = {"reported": REPORTED_L2_TOKENS, "L1": L1_TOKENS, "L1 + a prefix": L1_TOKENS + PREFIX_TOKENS}
            for words, size in marks.items():
                axes.axvline(size / 1000, color="0.45", lw=1, ls=":")
                paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                axes.annotate(
                    words, (size / 1000 - 0.7, 14), rotation=90, ha="right", fontsize=8, color="0.3", bbox=paper
                )
            axes.set(title=title, xlabel="L2, thousand tokens", ylabel="% of the prefixes' tokens", ylim=(0, 105))
            axes.legend(loc="lower right")

    def answer(self, found: Found) -> str:
        whole = PREFIXES * (PREFIX_TOKENS // 64 * 64)
        stored = {size: found[_case("write_through", size, "first")]["stored_tokens"] / whole for size in SIZES}
        again = {
            policy: {size: found[_case(policy, size, "again")]["loaded_tokens"] / whole for size in SIZES}
            for policy in POLICIES
        }
        assert all((share == 1) == (size >= L1_TOKENS) for size, share in stored.items())
        assert all(
            (share == 1) == (size >= L1_TOKENS + PREFIX_TOKENS) for size, share in again["write_through"].items()
        )
        assert again["write_back"][REPORTED_L2_TOKENS] > again["write_through"][REPORTED_L2_TOKENS]
        at = REPORTED_L2_TOKENS
        return (
            "As large as L1: below that, L2 is full of copies of pages that are still in L1 and cannot go, backups "
            f"are refused, and L1 drops what was never written (at the reported sizes {stored[at]:.0%} of the first "
            f"pass reaches the store; from {L1_TOKENS:,} tokens on, all). To get it back in full L2 needs room for "
            f"L1 and for the longest prefix beside it, {L1_TOKENS + PREFIX_TOKENS:,} tokens here, since that is what "
            f"a prefetch lands in: at the reported size the second pass restores {again['write_through'][at]:.0%}, "
            f"under write_back {again['write_back'][at]:.0%}."
        )


QUESTION = FirstSeenPrefixes()
