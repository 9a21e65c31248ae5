"""What a page size costs in hits, and what it saves in IO."""

from __future__ import annotations

from typing import Any, ClassVar

from matplotlib.figure import Figure

from hicache_sim.report.inks import series_ink
from hicache_sim.sweeps.ask import Ask

from ..question import Found, Question

PAGES = (1, 4, 16, 32, 64, 128, 256, 512)
LAYOUTS = {"kernel": "page_first", "direct": "page_first_direct"}


def _case(backend: str, page: int) -> str:
    return f"{backend}, page {page}"


def _ask(backend: str, page: int) -> Ask:
    return Ask(
        "chat",
        {
            "page_size": page,
            "max_total_tokens": 32_768,
            "hicache_io_backend": backend,
            "hicache_mem_layout": LAYOUTS[backend],
            "hicache_storage_backend": "mooncake",
            "hicache_storage_prefetch_policy": "timeout",
        },
        profile="v0.5.23",
        store="mooncake-tcp",
        limit=3000,
        parameters={"rate_per_s": 2},
    )


class PageSize(Question):
    name = "page_size"
    title = "Which page size: hit rate against IO?"
    asked = "whoever sets `--page-size`: SGLang's default is 1, and its guide to HiCache takes 64."
    setting = (
        "3,000 requests of the generator `chat` (seed of its own, 2 a second), whose content is known to the token; "
        "the shipped traces know it by blocks of 64 and 512 and cannot tell. Llama-3.1-8B on an H100, L1 of only "
        "32,768 tokens, so that half of the hits come from L2 and L3; ratio 2, Mooncake over TCP, timeout, rules of "
        "v0.5.23."
    )
    cases: ClassVar = {_case(backend, page): _ask(backend, page) for backend in LAYOUTS for page in PAGES}
    cheap = (_case("kernel", 64), _case("direct", 64))
    columns: ClassVar = {
        "hit_rate": ("hit rate", "{:.4f}"),
        "miss_page_tail": ("tokens lost to the last page", "{:,}"),
        "device_waited_for_loads": ("device waited for loads, s", "{:.1f}"),
        "store_bytes": ("to and from L3, bytes", "{:.3g}"),
        "ttft_mean": ("TTFT, mean s", "{:.4f}"),
        "ttft_p90": ("p90 s", "{:.4f}"),
    }
    size_in = (11.5, 3.8)

    def draw(self, found: Found, canvas: Figure) -> None:
        panels = {
            "hit_rate": ("Hit rate", "share of prompt tokens", "linear"),
            "device_waited_for_loads": ("GPU waits for loads from L2", "s, all requests", "log"),
            "ttft_mean": ("Time to first token", "mean, s", "log"),
        }
        for axes, (figure, (title, unit, scale)) in zip(canvas.subplots(1, 3), panels.items(), strict=True):
            for at, backend in enumerate(LAYOUTS):
                ink = series_ink(at)
                values = [found[_case(backend, page)][figure] for page in PAGES]
                style: dict[str, Any] = {"color": ink.light, "linestyle": ink.line_style, "marker": ink.marker, "ms": 4}
                axes.plot(PAGES, values, label=f"{backend} copies", **style)
            axes.set(title=title, xlabel="page, tokens", ylabel=unit, xscale="log", yscale=scale)
            axes.set_xticks(PAGES, [str(page) for page in PAGES])
            axes.minorticks_off()
            axes.yaxis.set_major_formatter("{x:g}")
            axes.legend()
        canvas.axes[0].set_ylim(0.7, 0.95)

    def answer(self, found: Found) -> str:
        def figure(name: str, backend: str, page: int) -> float:
            value: float = found[_case(backend, page)][name]
            return value

        hits = [figure("hit_rate", "kernel", page) for page in PAGES]
        assert hits == sorted(hits, reverse=True)
        least = {backend: min(figure("ttft_mean", backend, page) for page in PAGES) for backend in LAYOUTS}
        assert figure("ttft_mean", "kernel", 64) < 1.01 * least["kernel"]
        assert figure("ttft_mean", "direct", 256) < 1.01 * least["direct"] < figure("ttft_mean", "direct", 64)
        return (
            f"Only whole pages are hit, so the hit rate goes from {hits[0]:.3f} at 1 token to "
            f"{figure('hit_rate', 'kernel', 64):.3f} at 64 and {hits[-1]:.3f} at 512. What it saves is calls and "
            "objects: copy kernels do not mind small pages much (mean TTFT "
            f"{1000 * figure('ttft_mean', 'kernel', 1):.0f} ms at 1, {1000 * figure('ttft_mean', 'kernel', 64):.0f} "
            "at 64), but with the direct backend, which pays for each call, "
            f"{1000 * figure('ttft_mean', 'direct', 1):,.0f} ms at 1 and "
            f"{1000 * figure('ttft_mean', 'direct', 16):.0f} at 16 become "
            f"{1000 * figure('ttft_mean', 'direct', 64):.0f} at 64, so take 64, smaller only with kernel copies and "
            f"larger only with direct ones ({1000 * figure('ttft_mean', 'direct', 256):.0f} ms at 256)."
        )


QUESTION = PageSize()
