"""Policies that read the future, to see how near to the bound HiCache's own mechanics can come.

Rules of this file
- Each declares `reads_future`, and runs only in a cache made with `oracle=True` (law L8). None is in a registry of
  policies: nothing online can ask for one.
- The future belongs to one workload. `Future.served` keeps it in step with the replay.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from hicache_ref.control.keys import ATOM_BYTES
from hicache_ref.control.tree import Node
from hicache_ref.policy.strategy import Strategy
from hicache_ref.policy.write import Writing
from workloads.request import Request

from .references import References


class Future:
    """When each page will be needed, by number of request."""

    def __init__(self, references: References) -> None:
        self.now = -1
        self.never = len(references.starts) - 1
        self._needs: dict[tuple[str | None, int], list[int]] = {}
        space = references.space[references.request].tolist()
        atoms, requests = references.atoms.tolist(), references.request.tolist()
        for atom, number, request in zip(atoms, space, requests, strict=True):
            self._needs.setdefault((references.spaces[number], atom), []).append(request)

    def served(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The requests, one by one; the clock is that of the one given last."""
        for number, request in enumerate(requests):
            self.now = number
            yield request

    def next_need(self, node: Node, last_page: bool = False) -> int:
        """The next request, after the one being served, that needs the node: its first page, and perhaps no more; or
        its last page, and so all of it."""
        atom = node.key[-ATOM_BYTES:] if last_page else node.key[:ATOM_BYTES]
        needs = self._needs.get((node.namespace, int.from_bytes(atom, sys.byteorder, signed=True)), [])
        at = bisect_right(needs, self.now)
        return needs[at] if at < len(needs) else self.never


class NeededLast(Strategy):
    """Evict what is needed last (Belady): of a node, its last page, which is what goes first if pages go one by one."""

    name = "belady"
    rises_only = False
    reads_future = True

    def __init__(self, future: Future) -> None:
        self.future = future

    def rank(self, node: Node) -> Any:
        return -self.future.next_need(node, last_page=True)


class WriteWhatIsRead(Writing):
    """Copy to L2 at the first insert, but only what will be needed again."""

    name = "write_what_is_read"
    reads_future = True

    def __init__(self, future: Future) -> None:
        self.future = future

    def wants_backup(self, node: Node) -> bool:
        return self.future.next_need(node) < self.future.never
