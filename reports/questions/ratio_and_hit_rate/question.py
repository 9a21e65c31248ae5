"""SGLang #33984: hit rates by round and --hicache-ratio, with a store that holds everything.

Rules of this file
- The report's rates at ratio 2 are compared to six digits; it does not say what the server was, so that is the one of
  the benchmark page that it repeats.
"""

from __future__ import annotations

from typing import Any, ClassVar

from matplotlib.figure import Figure

from hicache_sim.api import Result
from hicache_sim.report.inks import series_ink
from hicache_sim.sweeps.ask import Ask

from ..question import Found, Question

CLIENTS = 20
REPORTED = [0.0, 0.499939, 0.666558, 0.749863, 0.799844, 0.833164, 0.856964, 0.874813, 0.888696]
"""By round, at ratio 2. Of ratio 1.6 only the first rounds could be read; it drops in the late ones."""

RATIOS = (3.0, 2.0, 1.6, 1.2)


def _ask(profile: str, ratio: float, write_policy: str = "write_through", bytes_per_s: float = 1e10) -> Ask:
    return Ask(
        "issue-33984",
        {
            "model_path": "Qwen/Qwen3-8B",
            "page_size": 64,
            "attention_backend": "triton",
            "hicache_ratio": ratio,
            "hicache_mem_layout": "page_first_direct",
            "hicache_storage_backend": "mooncake",
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_write_policy": write_policy,
        },
        profile=profile,
        hardware="a100-pcie4",
        hardware_numbers={"hbm_bytes": 42.5e9},
        store_numbers={"capacity_bytes": 2e12, "read_bytes_per_s": bytes_per_s, "write_bytes_per_s": bytes_per_s / 2},
    )


class RatioAndHitRate(Question):
    name = "ratio_and_hit_rate"
    title = "Why does the hit rate fall with hicache-ratio although the SSD holds everything?"
    asked = (
        "[SGLang #33984](https://github.com/sgl-project/sglang/issues/33984) and "
        "[Mooncake #3317](https://github.com/kvcache-ai/Mooncake/issues/3317): 20 clients, 9 rounds of 4,096 new "
        "tokens; ratio 2 hits all there is to hit in every round, ratio 1.6 falls behind in the late ones."
    )
    setting = (
        "generator `issue-33984` (seed 1), all 180 requests. The report does not name its server; this is the one of "
        "the [benchmark it "
        "repeats](https://kvcache-ai.github.io/Mooncake/performance/ssd-offload-benchmark-results.html): Qwen3-8B on "
        "one A100 of 40 GB (L1 of 125,504 tokens under v0.5.23), page 64, `wait_complete`. The store has 2 TB, reads "
        "10 GB/s and writes 5 GB/s (assumed; one case has a faster one). Of the rates reported at 1.6 only that late "
        "rounds fall could be compared."
    )
    cases: ClassVar = {
        **{
            f"{profile}, ratio {ratio:g}": _ask(profile, ratio) for profile in ("v0.5.23", "v0.5.7") for ratio in RATIOS
        },
        "v0.5.23, ratio 1.6, write_back": _ask("v0.5.23", 1.6, "write_back"),
        "v0.5.23, ratio 1.6, store of 87 GB/s": _ask("v0.5.23", 1.6, bytes_per_s=8.7e10),
    }
    cheap = ("v0.5.23, ratio 2", "v0.5.23, ratio 1.6")
    columns: ClassVar = {
        "l2_tokens": ("L2, tokens", "{:,}"),
        "hit_rate": ("hit rate", "{:.3f}"),
        "last_round": ("in the last round", "{:.3f}"),
        "refused": ("tokens whose prefetch was refused", "{:,}"),
        "late": ("late", "{:,}"),
        "ttft_mean_s": ("TTFT, mean s", "{:.2f}"),
    }
    size_in = (10.0, 4.0)
    tables = True

    def measure(self, result: Result) -> dict[str, Any]:
        rows = result.requests.sort_values("id").reset_index(drop=True)
        rounds = rows.groupby(rows.index // CLIENTS)
        rates = 1 - rounds.computed_tokens.sum() / rounds.input_tokens.sum()
        lost = rounds[["miss_prefetch_refused_tokens", "miss_prefetch_late_tokens"]].sum() / CLIENTS
        return {
            "l1_tokens": result.plan.resolved.l1_tokens,
            "l2_tokens": result.plan.resolved.l2_tokens,
            "hit_rate": result.summary["hit_rates"]["total"],
            "last_round": float(rates.iloc[-1]),
            "refused": int(rows.miss_prefetch_refused_tokens.sum()),
            "late": int(rows.miss_prefetch_late_tokens.sum()),
            "ttft_mean_s": float(rows.ttft_s.mean()),
            "rates": [float(rate) for rate in rates],
            "ttft_s": [float(mean) for mean in rounds.ttft_s.mean()],
            "lost_tokens_a_request": [float(tokens) for tokens in lost.sum(axis=1)],
        }

    def draw(self, found: Found, canvas: Figure) -> None:
        left, right = canvas.subplots(1, 2)
        for at, ratio in enumerate(RATIOS):
            case, ink = found[f"v0.5.23, ratio {ratio:g}"], series_ink(at)
            style: dict[str, Any] = {"color": ink.light, "linestyle": ink.line_style, "marker": ink.marker, "ms": 4}
            left.plot(case["rates"], label=f"ratio {ratio:g}", **style)
            right.plot(case["lost_tokens_a_request"], label=f"ratio {ratio:g}", **style)
        left.plot(REPORTED, "x", color="black", ms=8, label="reported, ratio 2")
        left.set(title="Hit rate by round", ylabel="share of prompt tokens", ylim=(0, 1))
        right.set(title="In the store, but not fetched in time or at all", ylabel="tokens a request (mean)")
        for axes in (left, right):
            axes.set_xlabel("round")
            axes.legend(loc="lower center" if axes is left else "upper left", ncols=2 if axes is left else 1)

    def answer(self, found: Found) -> str:
        good, poor = found["v0.5.23, ratio 2"], found["v0.5.23, ratio 1.6"]
        assert max(abs(ours - theirs) for ours, theirs in zip(good["rates"], REPORTED, strict=True)) < 1e-6
        fell = next(at for at, (a, b) in enumerate(zip(good["rates"], poor["rates"], strict=True)) if b < a - 0.001)
        assert fell >= 5 and poor["refused"] and not good["refused"]
        room = [case["l2_tokens"] - case["l1_tokens"] for case in (good, poor)]
        return (
            "Not for want of space in the store, but of room in L2 for what is fetched: write_through keeps a copy "
            f"there of all that L1 holds, which leaves L2 - L1 ({room[0]:,} tokens at ratio 2, {room[1]:,} at 1.6) "
            "for the prefetches of four prompts at once, each with up to 32,768 old tokens, and those that find no "
            "room are refused or cut short. Keep (ratio - 1) x L1 above the prompt tokens that wait at once: at "
            f"ratio 2 we get the reported rate in all nine rounds, to six digits, and at 1.6 rounds {fell} to 8 "
            f"fall, the last to {poor['last_round']:.2f} where {good['last_round']:.2f} was to be had."
        )


QUESTION = RatioAndHitRate()
