"""A calibration as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def show(found: Mapping[str, Any], console: Console) -> None:
    """The machine's numbers with how they came about, and the prices of copies and compute."""
    console.print(", ".join(found["about"][name] for name in ("machine", "device", "versions")))
    table = Table("number", "value", "how", title=None, box=None, pad_edge=False)
    for name, number in _numbers(found):
        table.add_row(name, _text(name, number["value"]), _how(number["source"]))
    console.print(table)
    woken = found["compute"]["wake"]
    console.print(
        f"after a pause: up to {_us(woken['most_s'])}, half of it after {_us(woken['half_s'])}; {woken['source']}"
    )
    prices = Table("copies", "way", "a call", "a piece", "GB/s", "off by", box=None, pad_edge=False)
    for name, ways in found["copies"].items():
        for way, price in ways.items():
            speed = f"{1e-9 / price['byte_s']:.2f}" if price["byte_s"] else "–"
            cells = _us(price["launch_s"]), _us(price["segment_s"]), speed, f"{price['error']['median']:.0%}"
            prices.add_row(name, way, *cells)
    console.print(prices)
    for kind, terms in TERMS.items():
        curve = found["compute"][kind]
        costs = ", ".join(f"{_us(curve[key])} {what}" for key, what in terms.items() if curve[key])
        error = curve["error"]
        console.print(f"{kind}: {costs}; off by {error['median']:.0%} in the median, {error['worst']:.0%} at worst")


TERMS = {
    "prefill": {"a": "a batch", "b": "a new token", "c": "a (query, key) pair", "d": "a token read", "e": "a sequence"},
    "decode": {"a": "a step", "b": "a sequence", "c": "a token of context"},
}


def _numbers(found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    groups = [("", found["hardware"]), ("", found["compute"])]
    groups += [(f"{name}: ", store) for name, store in found["stores"].items()]
    return [
        (prefix + name, number)
        for prefix, group in groups
        for name, number in group.items()
        if isinstance(number, Mapping) and "value" in number
    ]


def _text(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:.2f} GB/s"
    if name.endswith("bytes"):
        return f"{value / 2**30:.1f} GiB"
    return _us(value) if name.endswith("_s") else f"{value:.3g}"


def _how(source: str) -> str:
    return source.removeprefix("measured: ").removeprefix("told: ")


def _us(seconds: float) -> str:
    """Six orders of magnitude, readably."""
    return f"{seconds * 1e6:.3g} µs"
