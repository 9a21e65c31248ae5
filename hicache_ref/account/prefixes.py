"""The largest shared prefixes at the end of a run: a small picture of the radix tree, for `tree.json`.

Rules of this file
- A look: nothing in the tree is touched, and one pass over it is all the time it takes.
- Nodes that follow each other without a branch, used and resident alike, are one stretch of the prompt: where a chunk
  of prefill ended is no news.
- What is shown is closed under ancestors, so that it is a tree again; the rest is counted where it hangs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from ..control.tree import Node, RadixTree

MOST_STRETCHES = 200

TREE_SCHEMA: dict[str, str] = {
    "page_tokens": "tokens of a page",
    "nodes": "nodes of the whole tree",
    "tokens": "tokens of the whole tree",
    "shown": "the stretches with the most tokens x uses, and what is above them, parents first",
}
"""Keys of `tree.json`."""

STRETCH_SCHEMA: dict[str, str] = {
    "parent": "position of the parent in `shown`; -1: none",
    "namespace": "the request's extra key; null: none",
    "start_tokens": "where in the prompt the stretch starts",
    "tokens": "its length",
    "nodes": "of the tree, one behind the other",
    "hits": "how often an insertion ran over it: about twice a request, after its prefill and at its end. "
    "0 under write_back, which does not count",
    "leaves": "different continuations below it; 1 for a leaf",
    "uses": "the larger of hits and leaves",
    "l1": "whether it is in device memory",
    "l2": "whether it is in host memory",
    "l3_tokens": "how much of it is in the store; null where nobody can tell",
    "rest_nodes": "nodes below it that are not shown, and not below another one shown",
    "rest_tokens": "tokens of those",
}
"""Keys of what is in `shown`."""


def shared_prefixes(
    tree: RadixTree, page_tokens: int, stored: Callable[[Any], bool] | None = None, most: int = MOST_STRETCHES
) -> dict[str, Any]:
    """What `tree.json` holds. Keys: `TREE_SCHEMA`, `STRETCH_SCHEMA`.

    stored: whether the store has the page of a name (`Node.names`); None where that is not known.
    """
    stretches = _stretches(tree)
    shown = _choose(stretches, most)
    place = {id(stretch): at for at, stretch in enumerate(shown)}
    for stretch in stretches:
        stretch.hang(place)
    nodes = sum(len(stretch.nodes) for stretch in stretches)
    pages = sum(stretch.pages for stretch in stretches)
    rows = [stretch.row(place, page_tokens, stored) for stretch in shown]
    return {"page_tokens": page_tokens, "nodes": nodes, "tokens": pages * page_tokens, "shown": rows}


class _Stretch:
    """Nodes one behind the other, alike."""

    __slots__ = ("above", "leaves", "nodes", "pages", "rest_nodes", "rest_pages", "start", "under")

    def __init__(self, node: Node, above: _Stretch | None) -> None:
        self.nodes = [node]
        self.above = above
        self.start: int = above.start + above.pages if above is not None else 0
        self.pages: int = node.pages
        self.leaves = 0
        self.under: _Stretch | None = None
        """The nearest one that is shown: itself, or above it."""
        self.rest_nodes = self.rest_pages = 0

    @property
    def uses(self) -> int:
        return max(self.nodes[0].hits, self.leaves)

    def takes(self, node: Node) -> bool:
        """Whether `node`, right below, is more of the same."""
        last = self.nodes[-1]
        alike = node.hits == last.hits and (node.device is None, node.host is None) == (
            last.device is None,
            last.host is None,
        )
        return alike and len(last.children) == 1

    def hang(self, place: dict[int, int]) -> None:
        """Count what is not shown where it hangs. Parents first."""
        self.under = self if id(self) in place else self.above.under if self.above is not None else None
        if self.under is not None and self.under is not self:
            self.under.rest_nodes += len(self.nodes)
            self.under.rest_pages += self.pages

    def row(self, place: dict[int, int], page_tokens: int, stored: Callable[[Any], bool] | None) -> dict[str, Any]:
        first = self.nodes[0]
        in_store = None
        if stored is not None and first.names is not None:
            in_store = sum(stored(name) for node in self.nodes for name in node.names) * page_tokens
        return {
            "parent": place[id(self.above)] if self.above is not None else -1,
            "namespace": first.namespace,
            "start_tokens": self.start * page_tokens,
            "tokens": self.pages * page_tokens,
            "nodes": len(self.nodes),
            "hits": first.hits,
            "leaves": self.leaves,
            "uses": self.uses,
            "l1": first.device is not None,
            "l2": first.host is not None,
            "l3_tokens": in_store,
            "rest_nodes": self.rest_nodes,
            "rest_tokens": self.rest_pages * page_tokens,
        }


def _stretches(tree: RadixTree) -> list[_Stretch]:
    """The whole tree in stretches, parents first."""
    of: dict[int, _Stretch] = {}
    stretches = []
    for node in tree.nodes():
        assert node.parent is not None
        above = of.get(node.parent.id)
        if above is not None and above.takes(node):
            above.nodes.append(node)
            above.pages += node.pages
            of[node.id] = above
        else:
            of[node.id] = stretch = _Stretch(node, above)
            stretches.append(stretch)
    for stretch in reversed(stretches):
        stretch.leaves = max(stretch.leaves, 1)
        if stretch.above is not None:
            stretch.above.leaves += stretch.leaves
    return stretches


def _choose(stretches: list[_Stretch], most: int) -> list[_Stretch]:
    """The best with what is above them, from the root down as far as there is room; parents first."""
    chosen: set[int] = set()
    for best in heapq.nlargest(most, stretches, key=lambda stretch: stretch.uses * stretch.pages):
        path = []
        above: _Stretch | None = best
        while above is not None and id(above) not in chosen:
            path.append(id(above))
            above = above.above
        chosen.update(path[::-1][: most - len(chosen)])
    return [stretch for stretch in stretches if id(stretch) in chosen]
