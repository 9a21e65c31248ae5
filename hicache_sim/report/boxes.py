"""Where the stretches of `tree.json` stand in their figure: prompt runs to the right, uses downwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .kinds import Box
from .units import COUNT, TOKENS

Stretches = Sequence[Mapping[str, Any]]
"""`shown` of `tree.json`: parents first, keys as in `hicache_ref.account.prefixes.STRETCH_SCHEMA`."""


def boxes_of(shown: Stretches) -> list[Box]:
    heights = _heights(shown)
    low = [0.0] * len(shown)
    filled: dict[int, float] = {}
    boxes = []
    for at, node in enumerate(shown):
        parent = node["parent"]
        low[at] = filled.get(parent, low[parent] if parent >= 0 else 0.0)
        filled[parent] = low[at] + heights[at]
        start = float(node["start_tokens"])
        words = _words_of(node)
        boxes.append(Box(start, start + node["tokens"], low[at], low[at] + heights[at], _place(node), words))
    return boxes


def _heights(shown: Stretches) -> list[float]:
    """Uses of each node, or of its children together where those are more. Parents come first in `shown`."""
    heights = [float(node["uses"]) for node in shown]
    below = [0.0] * len(shown)
    for at in range(len(shown) - 1, -1, -1):
        heights[at] = max(heights[at], below[at], 1.0)
        parent = shown[at]["parent"]
        if parent >= 0:
            below[parent] += heights[at]
    return heights


def _place(node: Mapping[str, Any]) -> str:
    names = [name for name, there in (("L1", node["l1"]), ("L2", node["l2"])) if there]
    return " and ".join(names) or "gone"


def _words_of(node: Mapping[str, Any]) -> tuple[str, ...]:
    stored = "not known" if node["l3_tokens"] is None else TOKENS(node["l3_tokens"])
    rest = f"{node['rest_nodes']:,} nodes, {TOKENS(node['rest_tokens'])}" if node["rest_nodes"] else "–"
    size = f"{TOKENS(node['tokens'])} × {COUNT(node['uses'])}"
    start = f"{node['start_tokens']:,}" + (f" in {node['namespace']}" if node["namespace"] else "")
    return size, start, _place(node), stored, f"{node['hits']:,}", f"{node['leaves']:,}", rest
