"""What `tree.json` shows of a tree: the most used stretches, closed under ancestors, the rest counted."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.account.prefixes import STRETCH_SCHEMA, TREE_SCHEMA, shared_prefixes
from hicache_ref.control.slots import Extent, Owner
from hicache_ref.control.tree import Node, RadixTree

PAGE = 16


def key(*atoms: int) -> bytes:
    return array("q", atoms).tobytes()


def grow(tree: RadixTree, *atoms: int, namespace: str | None = None) -> None:
    """Insert a prompt on the device, as the cache does: every node on its way is hit."""
    whole = key(*atoms)
    match = tree.walk(namespace, whole)
    node: Node = match.node
    if match.device_pages < len(atoms):
        node = tree.add(node, namespace, whole[match.device_pages * 8 :], 0)
        pages = len(atoms) - match.device_pages
        tree.put_on_device(node, Extent(np.arange(pages), pages, Owner.TREE))
        node.names = list(atoms[match.device_pages :])
    while node.parent is not None:
        node.hits += 1
        node = node.parent


def test_a_shared_prompt_and_its_continuations() -> None:
    tree = RadixTree()
    grow(tree, 1, 2, 3, 4)
    grow(tree, 1, 2, 5)
    grow(tree, 1, 2, 3, 4, 6)
    drawn = shared_prefixes(tree, PAGE, stored={1, 3}.__contains__)
    assert set(drawn) == set(TREE_SCHEMA)
    assert (drawn["nodes"], drawn["tokens"]) == (4, 6 * PAGE)
    first, second, *leaves = drawn["shown"]
    assert set(first) == set(STRETCH_SCHEMA)
    assert (first["parent"], first["start_tokens"], first["tokens"], first["hits"], first["leaves"]) == (
        -1,
        0,
        32,
        3,
        2,
    )
    assert (first["l1"], first["l2"]) == (True, False)
    assert (second["parent"], second["start_tokens"], second["tokens"], second["hits"]) == (0, 32, 32, 2)
    assert [row["tokens"] for row in leaves] == [PAGE, PAGE]
    # Names go with pages when a node is split.
    assert [row["l3_tokens"] for row in drawn["shown"]] == [PAGE, PAGE, 0, 0]


def test_where_chunks_ended_is_no_news() -> None:
    tree = RadixTree()
    grow(tree, 1, 2)
    for node in tree.nodes():
        tree.split(node, 1)
        break
    (row,) = shared_prefixes(tree, PAGE)["shown"]
    assert (row["nodes"], row["tokens"], row["l3_tokens"]) == (2, 2 * PAGE, None)


def test_namespaces_do_not_meet() -> None:
    tree = RadixTree()
    grow(tree, 1, 2)
    grow(tree, 1, 2, namespace="tenant")
    assert [row["namespace"] for row in shared_prefixes(tree, PAGE)["shown"]] == [None, "tenant"]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=25), st.integers(1, 12))
def test_nothing_is_lost_and_ancestors_are_there(prompts: list[list[int]], most: int) -> None:
    tree = RadixTree()
    for prompt in prompts:
        grow(tree, *prompt)
    drawn = shared_prefixes(tree, PAGE, most=most)
    shown: list[dict[str, Any]] = drawn["shown"]
    assert 0 < len(shown) <= most
    for at, row in enumerate(shown):
        assert row["parent"] < at
        above = shown[row["parent"]] if row["parent"] >= 0 else {"start_tokens": 0, "tokens": 0, "leaves": 10**9}
        assert row["start_tokens"] == above["start_tokens"] + above["tokens"]
        assert row["leaves"] <= above["leaves"]
    # What hangs below a root that is not shown is in no row.
    counted = sum(row["nodes"] + row["rest_nodes"] for row in shown)
    assert counted <= drawn["nodes"]
    if most >= 12 and all(prompt[0] == 0 for prompt in prompts):
        assert counted == drawn["nodes"]
        assert sum(row["tokens"] + row["rest_tokens"] for row in shown) == drawn["tokens"]
