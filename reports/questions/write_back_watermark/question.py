"""SGLang PR #40576: at which share of unwritten pages should write_back begin to write?"""

from __future__ import annotations

from typing import Any, ClassVar

from matplotlib.figure import Figure

from hicache_sim.report.inks import series_ink
from hicache_sim.sweeps.ask import Ask

from ..question import Found, Question

THRESHOLDS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
TRACES = ("claude-code", "conversation")
MORE: dict[str, dict[str, Any]] = {"claude-code": {"schedule": "closed"}, "conversation": {"limit": 3000, "speed": 0.2}}
BUSY = ("device_busy_share", "claude-code, watermark 1")


def _case(trace: str, policy: str) -> str:
    return f"{trace}, {policy}"


def _watermark(trace: str, threshold: float) -> str:
    return _case(trace, f"watermark {threshold:g}")


def _ask(trace: str, policy: str, **flags: Any) -> Ask:
    given = {"page_size": 64, "hicache_write_policy": policy, **flags}
    return Ask(trace, given, profile="v0.5.23", **MORE[trace])


class WriteBackWatermark(Question):
    name = "write_back_watermark"
    title = "Which write-back watermark?"
    asked = (
        "[SGLang PR #40576](https://github.com/sgl-project/sglang/pull/40576), `--hicache-write-back-threshold`: 1 is "
        "write_back, 0 writes eagerly; no value is argued for, and no speed test given."
    )
    setting = (
        "the shipped `claude-code` sessions, whole, each turn sent when the answer before is there; and the first "
        "3,000 requests of `conversation` at a fifth of its speed. Llama-3.1-8B on an H100 (L1 of 422,000 tokens), "
        "ratio 2, no L3, rules of v0.5.23. The watermark is this project's (`write_back_watermark`): of L1 and L2 only."
    )
    cases: ClassVar = {
        **{_case(trace, policy): _ask(trace, policy) for trace in TRACES for policy in ("write_through", "write_back")},
        **{
            _watermark(trace, each): _ask(trace, "write_back_watermark", hicache_write_back_threshold=each)
            for trace in TRACES
            for each in THRESHOLDS
        },
    }
    cheap = (_watermark("claude-code", 0.7),)
    columns: ClassVar = {
        "hit_rate": ("hit rate", "{:.4f}"),
        "write_back_wait": ("scheduler blocked, s", "{:.1f}"),
        "backed_up_bytes": ("written to L2, bytes", "{:.3g}"),
        "ttft_mean": ("TTFT, mean s", "{:.2f}"),
        "ttft_p90": ("p90 s", "{:.2f}"),
        "makespan": ("makespan, s", "{:,.0f}"),
        "device_busy_share": ("GPU busy", "{:.1%}"),
    }

    def draw(self, found: Found, canvas: Figure) -> None:
        panels = {
            "write_back_wait": ("Evictions block the scheduler", "s, whole run"),
            "ttft_mean": ("Time to first token", "mean, s"),
        }
        for axes, (figure, (title, unit)) in zip(canvas.subplots(1, 2), panels.items(), strict=True):
            for at, trace in enumerate(TRACES):
                ink = series_ink(at)
                values = [found[_watermark(trace, each)][figure] for each in THRESHOLDS]
                style: dict[str, Any] = {"color": ink.light, "linestyle": ink.line_style, "marker": ink.marker, "ms": 4}
                axes.plot(THRESHOLDS, values, label=trace, **style)
                through = found[_case(trace, "write_through")][figure]
                axes.axhline(through, color=ink.light, lw=1, ls=":", label=f"{trace}, write_through")
            axes.set(title=title, xlabel="watermark: share of L1 that may be unwritten", ylabel=unit)
            axes.set_ylim(bottom=0)
            axes.margins(y=0.3)
        canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)

    def answer(self, found: Found) -> str:
        def figure(name: str, case: str) -> float:
            value: float = found[case][name]
            return value

        spread = {trace: [figure("ttft_mean", _watermark(trace, each)) for each in THRESHOLDS] for trace in TRACES}
        waits = [figure("write_back_wait", _watermark("claude-code", each)) for each in THRESHOLDS]
        least = min(range(len(THRESHOLDS)), key=waits.__getitem__)
        mean = {case: figure("ttft_mean", case) for case in found}
        back, through = (mean[_case("claude-code", each)] for each in ("write_back", "write_through"))
        busy = [mean[_case("conversation", each)] for each in ("write_back", "write_through")]
        assert busy[1] < busy[0]
        assert figure("write_back_wait", _watermark("claude-code", 1.0)) == figure(
            "write_back_wait", "claude-code, write_back"
        )
        assert max(spread["claude-code"]) < through
        share = waits[-1] / (figure("makespan", _watermark("claude-code", 1.0)) * figure(*BUSY))
        return (
            f"It matters little here: on claude-code a watermark of {THRESHOLDS[least]:g} cuts the time that "
            f"evictions block the scheduler from {waits[-1]:.0f} to {waits[least]:.0f} s, but that is "
            f"{100 * share:.1f} % of the time the GPU is busy, and mean TTFT stays between "
            f"{min(spread['claude-code']):.2f} and {max(spread['claude-code']):.2f} s at all thresholds "
            f"({min(spread['conversation']):.2f} to {max(spread['conversation']):.2f} s on conversation) without a "
            "trend. Leave it high: 0.9 shortens the waits and otherwise is write_back, and whether that is right at "
            f"all matters more: {back:.2f} s against {through:.2f} s under write_through on claude-code, where not "
            f"holding pages twice pays, but {busy[0]:.2f} against {busy[1]:.2f} s on conversation, where few pages "
            "come back and each eviction still waits."
        )


QUESTION = WriteBackWatermark()
