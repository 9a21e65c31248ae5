"""SGLang PR #29049: an L2 smaller than L1, and an L2 that holds what L1 does not."""

from __future__ import annotations

from typing import ClassVar

from matplotlib.figure import Figure

from hicache_sim.report.inks import series_ink
from hicache_sim.sweeps.ask import Ask

from ..question import Found, Question

PAGE_TOKENS = 512
L1_PAGES = 6000
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
POLICIES = ("write_through", "write_back", "boundary")
TRACES = ("conversation", "synthetic")


def _case(trace: str, policy: str, share: float) -> str:
    return f"{trace}, {policy}, L2 = {share:g} x L1"


def _ask(trace: str, policy: str, share: float) -> Ask:
    flags = {
        "page_size": PAGE_TOKENS,
        "max_total_tokens": L1_PAGES * PAGE_TOKENS,
        "hicache_total_tokens": int(share * L1_PAGES) * PAGE_TOKENS,
        "hicache_write_policy": policy,
    }
    return Ask(trace, flags, profile="v0.5.23", untimed=True)


class SmallL2(Question):
    name = "small_l2"
    title = "Is an L2 smaller than L1 worth having, and what does an exclusive L2 give?"
    asked = (
        "[SGLang PR #29049](https://github.com/sgl-project/sglang/pull/29049), which emulates a boundary policy on the "
        "Mooncake tool-agent trace, L1 of 6,000 pages: L1 and L2 together hit 47.39 % under write_through and 50.17 "
        "% under the boundary policy at L2 = 2 x L1, 40.98 % and 44.67 % at 0.5 x L1 (L1 alone: 40.95 %)."
    )
    setting = (
        "the shipped Mooncake traces `conversation` (12,031 requests) and `synthetic` (3,993), whole, in the PR's "
        "sizes: pages of 512 tokens, 6,000 of them in L1. Without time (one request after the other, copies at "
        "once), rules of v0.5.23, which lets L2 be the smaller one. The tool-agent trace is not shipped, so gains "
        "compare, not levels."
    )
    cases: ClassVar = {
        _case(trace, policy, share): _ask(trace, policy, share)
        for trace in TRACES
        for policy in POLICIES
        for share in SHARES
    }
    cheap = tuple(_case("synthetic", policy, 0.5) for policy in POLICIES)
    columns: ClassVar = {
        "l2_tokens": ("L2, tokens", "{:,}"),
        "hit_rate_device": ("L1 hit rate", "{:.4f}"),
        "hit_rate": ("L1 and L2", "{:.4f}"),
    }

    def draw(self, found: Found, canvas: Figure) -> None:
        for axes, trace in zip(canvas.subplots(1, 2), TRACES, strict=True):
            for at, policy in enumerate(POLICIES):
                ink = series_ink(at)
                rates = [100 * found[_case(trace, policy, share)]["hit_rate"] for share in SHARES]
                axes.plot(
                    SHARES, rates, label=policy, color=ink.light, linestyle=ink.line_style, marker=ink.marker, ms=4
                )
            alone = 100 * found[_case(trace, "write_through", 1.0)]["hit_rate_device"]
            axes.axhline(alone, color="0.45", lw=1, ls=":")
            axes.annotate("L1 alone ", (SHARES[-1], alone - 0.5), ha="right", va="top", fontsize=8, color="0.3")
            axes.set(
                title=f"{trace} trace", xlabel="L2 over L1", ylabel="hit rate of L1 and L2, % of tokens", xscale="log"
            )
            axes.set_xticks(SHARES, [f"{share:g}" for share in SHARES])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left")

    def answer(self, found: Found) -> str:
        def points(trace: str, policy: str, share: float) -> float:
            """Above L1 alone, in points."""
            figures = found[_case(trace, policy, share)]
            return 100 * float(figures["hit_rate"] - figures["hit_rate_device"])

        for trace in TRACES:
            assert all(points(trace, "write_through", share) < 0.02 for share in (0.25, 0.5, 1.0))
            assert all(points(trace, policy, 0.25) > 2 for policy in ("boundary", "write_back"))
        through, exclusive = "write_through", "boundary"
        gains = [points("conversation", exclusive, at) - points("conversation", through, at) for at in (0.5, 2.0)]
        back = [points("conversation", "write_back", at) - points("conversation", exclusive, at) for at in (0.5, 2.0)]
        assert all(0 < more < 0.6 for more in back)
        return (
            "Under write_through no: L2 then holds what L1 holds, and up to the size of L1 it adds less than 0.02 "
            "points of hit rate on both traces, while an L2 that holds what L1 does not adds "
            f"{points('conversation', exclusive, 0.5):.1f} points at half the size of L1 "
            f"({points('synthetic', exclusive, 0.5):.1f} on the synthetic trace). The boundary policy is "
            f"{gains[0]:.1f} and {gains[1]:.1f} points above write_through at 0.5 and 2 x L1 (the PR reports 3.7 and "
            "2.8 on another trace), but the write_back of v0.5.23, which drops duplicates first when L2 is full, "
            f"gives {back[0]:.1f} and {back[1]:.1f} points more still, without a new policy."
        )


QUESTION = SmallL2()
