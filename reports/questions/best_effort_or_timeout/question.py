"""best_effort, timeout or wait_complete, by how fast the store is."""

from __future__ import annotations

from typing import Any, ClassVar

from matplotlib.figure import Figure

from hicache_sim.report.inks import series_ink
from hicache_sim.sweeps.ask import Ask

from ..question import Found, Question

SPEEDS_GB = (0.25, 0.5, 1.0, 2.0, 8.0, 32.0)
POLICIES = ("best_effort", "timeout", "wait_complete")


def _case(policy: str, speed_gb: float) -> str:
    return f"{policy}, {speed_gb:g} GB/s"


def _ask(policy: str, speed_gb: float) -> Ask:
    speed = speed_gb * 1e9
    return Ask(
        "conversation",
        {
            "page_size": 64,
            "max_total_tokens": 200_000,
            "hicache_storage_backend": "mooncake",
            "hicache_storage_prefetch_policy": policy,
        },
        profile="v0.5.23",
        store_numbers={"capacity_bytes": 8e12, "read_bytes_per_s": speed, "write_bytes_per_s": speed},
        limit=3000,
        speed=0.2,
    )


class BestEffortOrTimeout(Question):
    name = "best_effort_or_timeout"
    title = "Prefetch policy: best_effort or timeout?"
    asked = (
        "[SGLang #12092](https://github.com/sgl-project/sglang/issues/12092), where pages are written to Mooncake and "
        "never read back, and best_effort, or a timeout that is too short, are among the causes named."
    )
    setting = (
        "the first 3,000 requests of `conversation` at a fifth of its speed, so that the GPU is busy 70 % of the "
        "time and not all of it; Llama-3.1-8B on an H100 with an L1 of 200,000 tokens, ratio 2, write_through, rules "
        "of v0.5.23. The store holds everything (8 TB), and reads and writes at the speed given."
    )
    cases: ClassVar = {_case(policy, speed): _ask(policy, speed) for policy in POLICIES for speed in SPEEDS_GB}
    cheap = (_case("best_effort", 2.0),)
    columns: ClassVar = {
        "hit_rate": ("hit rate", "{:.3f}"),
        "hit_rate_storage": ("from L3", "{:.3f}"),
        "miss_prefetch_late": ("tokens that came late", "{:,}"),
        "miss_prefetch_refused": ("prefetch refused", "{:,}"),
        "ttft_mean": ("TTFT, mean s", "{:.2f}"),
        "ttft_p90": ("p90 s", "{:.2f}"),
        "ttft_p99": ("p99 s", "{:.2f}"),
    }

    def draw(self, found: Found, canvas: Figure) -> None:
        panels = {"hit_rate": ("Hit rate", "share of prompt tokens"), "ttft_mean": ("Time to first token", "mean, s")}
        for axes, (figure, (title, unit)) in zip(canvas.subplots(1, 2), panels.items(), strict=True):
            for at, policy in enumerate(POLICIES):
                ink = series_ink(at)
                values = [found[_case(policy, speed)][figure] for speed in SPEEDS_GB]
                style: dict[str, Any] = {"color": ink.light, "linestyle": ink.line_style, "marker": ink.marker, "ms": 4}
                axes.plot(SPEEDS_GB, values, label=policy, **style)
            axes.set(title=title, xlabel="the store's speed, GB/s", ylabel=unit, xscale="log")
            axes.set_xticks(SPEEDS_GB, [f"{speed:g}" for speed in SPEEDS_GB])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.legend(loc="lower right")

    def answer(self, found: Found) -> str:
        def figure(name: str, policy: str, speed: float) -> float:
            value: float = found[_case(policy, speed)][name]
            return value

        fast = SPEEDS_GB[-1]
        assert all(
            figure(name, "timeout", speed) * sign > figure(name, "best_effort", speed) * sign
            for name, sign in (("hit_rate", 1), ("ttft_mean", -1))
            for speed in SPEEDS_GB
        )
        slow = SPEEDS_GB[0]
        assert figure("hit_rate", "wait_complete", 2.0) < 1.05 * figure("hit_rate", "timeout", 2.0)
        assert figure("ttft_mean", "wait_complete", slow) > figure("ttft_mean", "best_effort", slow)
        return (
            "timeout: at every speed tried it hits more and answers sooner than best_effort, which goes on at the "
            f"next chance and so leaves behind most of what was on its way, even from a store of {fast:g} GB/s (hit "
            f"rate {figure('hit_rate', 'best_effort', fast):.3f} against {figure('hit_rate', 'timeout', fast):.3f}, "
            f"mean TTFT {figure('ttft_mean', 'best_effort', fast):.2f} s against "
            f"{figure('ttft_mean', 'timeout', fast):.2f} s). wait_complete is nearly timeout from 2 "
            f"GB/s on, and below hits more but makes requests wait for it: at {slow:g} GB/s its mean TTFT is "
            f"{figure('ttft_mean', 'wait_complete', slow):.2f} s, worse than the "
            f"{figure('ttft_mean', 'best_effort', slow):.2f} s of not waiting at all, so the limit is what one pays "
            "a slow store for."
        )


QUESTION = BestEffortOrTimeout()
