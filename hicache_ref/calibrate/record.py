"""From measurements to the file: the numbers of a machine, each with how it came about.

Rules of this file
- Names are those of `hicache_sim.hardware` and `hicache_sim.compute`. What was not measured is inherited from a base
  and not repeated here.
- The link's figure is the most that any operator carries over it, so that shares of it are at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..run.setup import DEFAULT_MODEL, DEFAULT_PARAMETERS, RealPlan, device_facts
from .compute import Curve
from .copies import Links, Operator
from .driver import Alone
from .machine import memory_bytes
from .samples import Spread
from .stores import StoreFigures
from .wake import Wake

FORMAT = "hicache calibration 1"
BASES = {"cpu": "dev-vm", "cuda": "h100-pcie5"}
"""The profile whose numbers stand where nothing was measured, by type of device."""
TYPICAL_PAGES = 32
"""Of a batch of the store's."""
STORE_BASES = {
    "file": "file-local",
    "mooncake": "mooncake-tcp",
    "hf3fs": "3fs-client",
    "nixl": "nixl-posix-nvme",
    "redis": "redis-local",
    "lmdb": "lmdb-local",
}
"""The profile whose numbers stand where nothing was measured and the store tells nothing."""
OTHER_STORE = "redis-local"


@dataclass(frozen=True)
class Found:
    """Everything that was measured."""

    operators: list[Operator]
    dram: Mapping[int, Spread]
    stores: Mapping[str, StoreFigures]
    links: Links
    prefill: Curve
    decode: Curve
    lost_to_copies: Spread
    lost_to_store: Spread | None
    wake: Wake
    between_batches: Spread
    alone: Alone


def content(about: Mapping[str, str], made: RealPlan, found: Found) -> dict[str, Any]:
    """The file."""
    return {
        "format": FORMAT,
        "about": dict(about),
        "model": _model(made),
        "device": _device(made),
        "hardware": _hardware(made, found),
        "copies": {f"{each.io_backend}/{each.layout}": each.record() for each in found.operators},
        "compute": {
            "layers": made.spec.shape.layers,
            "prefill": found.prefill.record(),
            "decode": found.decode.record(),
            "batch_overhead_s": _number(found.between_batches.median, found.between_batches.words()),
            "arrival_s": _number(found.alone.arrival.median, f"to admission, {found.alone.arrival.words()}"),
            "start_s": _number(found.alone.start.median, f"from admission at rest, {found.alone.start.words()}"),
            "wake": _wake(found.wake),
            "copy_share": _number(found.lost_to_copies.median, found.lost_to_copies.words()),
        },
        "stores": {name: _store(name, made, found, figures) for name, figures in found.stores.items()},
        "measurements": _measurements(found),
    }


def _number(value: float, source: str) -> dict[str, Any]:
    return {"value": value, "source": f"measured: {source}"}


def _wake(found: Wake) -> dict[str, Any]:
    measured = ", ".join(f"{extra * 1e3:.2f} ms after {pause:g} s" for pause, extra in found.extra_s.items())
    return {"most_s": found.most_s, "half_s": found.half_s, "source": f"measured: {measured}"}


def _model(made: RealPlan) -> dict[str, Any]:
    """Which shape was computed: the same words that made it make it again."""
    config = made.config
    factor: float | None = config.model_scale
    if factor is None and made.device.type == "cpu":
        factor = float(DEFAULT_PARAMETERS)
    return {
        "model_path": config.args.model_path or DEFAULT_MODEL,
        "model_scale": factor,
        "parameters": made.spec.shape.parameters,
        "layers": made.spec.shape.layers,
        "kv_bytes_per_token": made.resolved.token_bytes,
        "kv_cache_dtype": config.args.kv_cache_dtype or "auto",
        "page_tokens": made.page_tokens,
        "tp_size": made.resolved.attention_tp_size,
        "device": made.device.type,
        "dtype": str(made.dtype).removeprefix("torch."),
    }


def _device(made: RealPlan) -> dict[str, Any]:
    """What the rules were told of the device, so that flags resolve in a simulation as they do in a run."""
    facts, _ = device_facts(made.config, made.spec, made.config.args)
    return {
        "gpu_mem_bytes": facts.gpu_mem_bytes,
        "host_available_bytes": facts.host_available_bytes,
        "host_reserve_bytes": facts.host_reserve_bytes,
        "is_sm100": facts.is_sm100,
        "has_flashinfer": facts.has_flashinfer,
        "l1_bytes": None if made.device.type == "cuda" else made.config.device_memory_bytes,
    }


def _hardware(made: RealPlan, found: Found) -> dict[str, Any]:
    carried = found.links
    fastest = {
        way: max((each.speeds[way] for each in found.operators), key=lambda s: s.median) for way in ("load", "backup")
    }
    h2d = max(carried.h2d, fastest["load"], key=lambda s: s.median)
    d2h = max(carried.d2h, fastest["backup"], key=lambda s: s.median)
    numbers = {
        "h2d_bytes_per_s": (h2d.median, f"the fastest operator, {h2d.words()}"),
        "d2h_bytes_per_s": (d2h.median, f"the fastest operator, {d2h.words()}"),
        "h2d_duplex_bytes_per_s": _busy(h2d, carried.h2d_duplex, carried.h2d),
        "d2h_duplex_bytes_per_s": _busy(d2h, carried.d2h_duplex, carried.d2h),
        "dram_bytes_per_s": (found.dram[2].median, f"numpy copyto, 2 threads, {found.dram[2].words()}"),
        "dram_bytes": (float(memory_bytes()), "physical memory"),
    }
    head = {"base": BASES[made.device.type], "description": "measured by hicache calibrate"}
    return head | {name: _number(value, source) for name, (value, source) in numbers.items()}


def _busy(link: Spread, duplex: Spread, alone: Spread) -> tuple[float, str]:
    """What the link has left while the other way is busy."""
    share = min(1.0, duplex.median / alone.median)
    return link.median * share, f"{share:.0%} of it while the other way is busy, {duplex.words()}"


def _store(name: str, made: RealPlan, found: Found, figures: StoreFigures) -> dict[str, Any]:
    read, write = figures.read.prices, figures.write.prices
    numbers = {
        "read_bytes_per_s": (_rate(read["byte"]), figures.read.words()),
        "write_bytes_per_s": (_rate(write["byte"]), figures.write.words()),
        "concurrency": (1.0, "in the time of a page"),
        "batch_latency_s": (read["batch"], f"of a read, {figures.read.words()}"),
        "object_latency_s": (read["object"], f"of a read, {figures.read.words()}"),
        "write_times": (_calls(write) / _calls(read), f"batches of {TYPICAL_PAGES} pages"),
        "probe_latency_s": (figures.probe.median, f"128 names, {figures.probe.words()}"),
        "p99_over_p50": (figures.tail, "300 reads of 8 pages"),
    }
    if found.lost_to_store is not None:
        numbers["compute_share"] = (
            found.lost_to_store.median,
            f"reads and writes of {made.config.args.hicache_storage_backend} in turn, {found.lost_to_store.words()}",
        )
    head = {"base": STORE_BASES.get(name, OTHER_STORE), "description": f"{name}, measured by hicache calibrate"}
    told = {number: _as(known.value, f"told: {known.source}") for number, known in figures.keeps.items()}
    measured = {number: _number(value, source) for number, (value, source) in numbers.items()}
    return {**head, "backend": _as(name, "SGLang's name"), **_ANSWERS, **told, **measured}


def _as(value: float | str, source: str) -> dict[str, Any]:
    """As a file has it: JSON knows no number without end."""
    return {"value": "inf" if value == math.inf else value, "source": source}


_ANSWERS = {
    "objects": _as("page", "measured a page, whatever it is made of"),
    "partial_get": _as("per_page", "the client's leading pages are good"),
    "partial_set": _as("per_page", "the client's leading pages are stored"),
}


def _calls(prices: Mapping[str, float]) -> float:
    """Of a typical batch, all but the bytes."""
    return max(prices["batch"] + TYPICAL_PAGES * prices["object"], 1e-9)


def _rate(byte_s: float) -> float:
    """Bytes per second; where bytes cost nothing that could be measured, more than any link carries."""
    return 1 / byte_s if byte_s > 0 else 1e12


def _spread(found: Spread) -> dict[str, float]:
    return {"median": found.median, "low": found.low, "high": found.high, "count": found.times}


def _measurements(found: Found) -> dict[str, Any]:
    """What the numbers above were made of."""
    return {
        "dram_bytes_per_s": {f"{count} threads": _spread(each) for count, each in found.dram.items()},
        "links_bytes_per_s": {name: _spread(each) for name, each in vars(found.links).items()},
        "operators_bytes_per_s": {
            f"{each.io_backend}/{each.layout}": {way: _spread(speed) for way, speed in each.speeds.items()}
            for each in found.operators
        },
        "stores": {
            name: {
                "read_bytes_per_s": figures.read_bytes_per_s,
                "write_bytes_per_s": figures.write_bytes_per_s,
                "throughput of two readers over one": figures.side_by_side,
            }
            for name, figures in found.stores.items()
        },
        "prefill_s": [{**point.terms, **_spread(point.time)} for point in found.prefill.points],
        "decode_step_s": [{**point.terms, **_spread(point.time)} for point in found.decode.points],
    }
