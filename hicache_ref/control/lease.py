"""What a running request holds of L1: a locked prefix in the tree, and slots of its own behind it.

Rules of this file
- A lease is taken whole or not at all, and ends in `release` or `discard`, which leave nothing behind.
- The request's slots become the tree's by `commit`, when they have been computed (upstream's `cache_unfinished_req`),
  and by `release`, when the request has ended (`cache_finished_req`). Slots behind the last whole page stay its own.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from .cache import HiCache
from .keys import ATOM_BYTES
from .slots import Extent
from .tree import Match, Node
from .types import Slots, Wait


class Lease:
    """`held` pages of `key` are locked in the tree up to `node`; the pages after them are in slots of its own."""

    __slots__ = ("counted", "held", "key", "namespace", "node", "own")

    def __init__(self, namespace: str | None, key: bytes, held: int, node: Node, own: Extent) -> None:
        self.namespace = namespace
        self.key = key
        self.held = held
        self.node = node
        self.own = own
        self.counted = 0
        """Pages of which this request has counted the hits (0.5.23)."""

    @property
    def slots(self) -> Slots:
        """[pages] device slots behind the locked prefix."""
        return np.asarray(self.own.indices)

    def device_pages(self) -> Slots:
        """[pages] device slots of everything this request has computed or will, from its first page on."""
        parts, node = [self.own.indices], self.node
        while node.parent is not None:
            assert node.device is not None, "L3: a locked node is on the device"
            parts.append(node.device.indices)
            node = node.parent
        return np.concatenate(parts[::-1])

    def grow(self, slots: Extent) -> None:
        """More slots behind those it has."""
        self.own.absorb(slots)

    def shrink(self, pages: int) -> Extent:
        """Take the last `pages` slots off it."""
        last = self.own
        self.own = last.cut(last.pages - pages)
        return last

    def give(self, pages: int) -> Extent:
        """The tree gets all pages up to `pages`: their slots, while the rest stays."""
        given = self.own.cut(pages - self.held)
        self.held = pages
        return given


class Admission:
    """How a request got on: what it found, what was loaded back, and its lease if there was room."""

    __slots__ = ("lease", "loaded", "match")

    def __init__(self, match: Match, loaded: int, lease: Lease | None) -> None:
        self.match = match
        self.loaded = loaded
        self.lease = lease


def acquire(cache: HiCache, namespace: str | None, key: bytes) -> Generator[Wait, None, Admission]:
    """Match, load back, lock, and take slots for the rest of `key`, evicting what is missing."""
    match = cache.match(namespace, key)
    loaded = (yield from cache.load_back(match)) if match.host_pages else 0
    node = match.node if loaded else match.device_node
    cache.lock(node)
    held = match.device_pages + loaded
    slots = yield from cache.take(len(key) // ATOM_BYTES - held)
    if slots is None:
        cache.unlock(node)
        return Admission(match, loaded, None)
    return Admission(match, loaded, Lease(namespace, key, held, node, slots))


def extend(cache: HiCache, lease: Lease, key: bytes) -> Generator[Wait, None, bool]:
    """Take slots for the pages by which `key` goes beyond the lease's; False leaves the lease as it was."""
    slots = yield from cache.take((len(key) - len(lease.key)) // ATOM_BYTES)
    if slots is None:
        return False
    lease.key = key
    lease.grow(slots)
    return True


def commit(cache: HiCache, lease: Lease, priority: int = 0, chunked: bool = False) -> int:
    """Give the pages of the key to the tree and hold them there; the pages that were on the device before."""
    prefix = _insert(cache, lease, priority, chunked)
    match = cache.match(lease.namespace, lease.key)
    cache.unlock(lease.node)
    cache.lock(match.device_node)
    lease.node = match.device_node
    return prefix


def release(cache: HiCache, lease: Lease, priority: int = 0) -> int:
    """Give the pages of the key to the tree and let go; the pages that were on the device before."""
    prefix = _insert(cache, lease, priority, chunked=False)
    discard(cache, lease)
    return prefix


def discard(cache: HiCache, lease: Lease) -> None:
    """Let go without giving anything to the tree: a request retracted or aborted."""
    cache.free_request_slots(lease.own)
    cache.unlock(lease.node)


def _insert(cache: HiCache, lease: Lease, priority: int, chunked: bool) -> int:
    pages, start, counted = len(lease.key) // ATOM_BYTES, lease.held, lease.counted
    if not pages:
        return 0
    lease.counted = pages
    return cache.insert(lease.namespace, lease.key, start, lease.give(pages), priority, chunked, counted)
