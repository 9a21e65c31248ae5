"""The largest shared prefixes at the end of a run: a small picture of the radix tree, for `tree.json`.

Rules of this file
- A look: nothing in the tree is touched, and one pass over it is all the time it takes.
- What is shown is closed under ancestors, so that it is a tree again; the rest is counted where it hangs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from ..control.tree import Node, RadixTree

MOST_NODES = 200

TREE_SCHEMA: dict[str, str] = {
    "page_tokens": "tokens of a page",
    "nodes": "nodes of the whole tree",
    "tokens": "tokens of the whole tree",
    "shown": "the nodes with the most tokens x uses, and what is above them, parents first",
}
"""Keys of `tree.json`."""

NODE_SCHEMA: dict[str, str] = {
    "parent": "position of the parent in `shown`; -1: none",
    "namespace": "the request's extra key; null: none",
    "start_tokens": "where in the prompt the run of tokens starts",
    "tokens": "its length",
    "hits": "how often an insertion ran over it: about twice a request, after its prefill and at its end. "
    "0 under write_back, which does not count",
    "leaves": "different continuations below it; 1 for a leaf",
    "uses": "the larger of hits and leaves",
    "l1": "whether it is in device memory",
    "l2": "whether it is in host memory",
    "l3_tokens": "how much of it is in the store; null where nobody can tell",
    "rest_nodes": "nodes right below it, and below those, that are not shown",
    "rest_tokens": "tokens of those",
}
"""Keys of a node in `shown`."""


def shared_prefixes(
    tree: RadixTree, page_tokens: int, stored: Callable[[Any], bool] | None = None, most: int = MOST_NODES
) -> dict[str, Any]:
    """What `tree.json` holds. Keys: `TREE_SCHEMA`, `NODE_SCHEMA`.

    stored: whether the store has the page of a name (`Node.names`); None where that is not known.
    """
    nodes = list(tree.nodes())
    leaves = _leaves(nodes)
    uses = {node.id: max(node.hits, leaves[node.id]) for node in nodes}
    place = _choose(tree.root, heapq.nlargest(most, nodes, key=lambda node: uses[node.id] * node.pages), most)
    start = {tree.root.id: 0}
    shown = []
    rest_nodes, rest_pages = [0] * len(place), [0] * len(place)
    nearest = {tree.root.id: -1}
    for node in nodes:
        parent = node.parent
        assert parent is not None
        at = place.get(node.id)
        if at is None:
            above = nearest[node.id] = nearest[parent.id]
            if above >= 0:
                rest_nodes[above] += 1
                rest_pages[above] += node.pages
            continue
        nearest[node.id] = at
        start[node.id] = start[parent.id] + (parent.pages if parent.parent is not None else 0) * page_tokens
        shown.append(
            {
                "parent": place.get(parent.id, -1),
                "namespace": node.namespace,
                "start_tokens": start[node.id],
                "tokens": node.pages * page_tokens,
                "hits": node.hits,
                "leaves": leaves[node.id],
                "uses": uses[node.id],
                "l1": node.device is not None,
                "l2": node.host is not None,
                "l3_tokens": _stored_tokens(node, page_tokens, stored),
            }
        )
    for at, row in enumerate(shown):
        row["rest_nodes"], row["rest_tokens"] = rest_nodes[at], rest_pages[at] * page_tokens
    pages = sum(node.pages for node in nodes)
    return {"page_tokens": page_tokens, "nodes": len(nodes), "tokens": pages * page_tokens, "shown": shown}


def _leaves(nodes: list[Node]) -> dict[int, int]:
    """How many leaves each node has below it. `nodes`: parents first."""
    leaves = dict.fromkeys((node.id for node in nodes), 0)
    for node in reversed(nodes):
        if not node.children:
            leaves[node.id] = 1
        parent = node.parent
        if parent is not None and parent.parent is not None:
            leaves[parent.id] += leaves[node.id]
    return leaves


def _choose(root: Node, ranked: list[Node], most: int) -> dict[int, int]:
    """Positions of the chosen nodes by id, parents first as `RadixTree.nodes` walks: the best with all their ancestors,
    as long as there is room."""
    chosen: set[int] = set()
    for node in ranked:
        path = []
        above: Node | None = node
        while above is not None and above is not root and above.id not in chosen:
            path.append(above.id)
            above = above.parent
        if len(chosen) + len(path) <= most:
            chosen.update(path)
    place: dict[int, int] = {}
    stack = list(reversed(root.children.values()))
    while stack:
        node = stack.pop()
        if node.id in chosen:
            place[node.id] = len(place)
            stack.extend(reversed(node.children.values()))
    return place


def _stored_tokens(node: Node, page_tokens: int, stored: Callable[[Any], bool] | None) -> int | None:
    if stored is None or node.names is None:
        return None
    return sum(map(stored, node.names)) * page_tokens
