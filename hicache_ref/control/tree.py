"""The compressed radix tree: nodes, where each is resident, who holds it.

Rules of this file
- A node is a run of pages that was inserted, split off, locked, backed up, evicted and loaded as one (article 1).
- Residency is two extents of page slots, one a level; a node that has neither is not in the tree.
- On a path from the root, nodes on the device come first (law L2): `device_children` tells a device leaf at once.
- This file keeps the structure and its sums. It takes no decision and owns no pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from .keys import ATOM_BYTES, common_pages
from .slots import Extent, Owner, nothing

if TYPE_CHECKING:
    from .ledger import Load, Write

LOWEST_PRIORITY: Final = -(2**63 - 1)


class Node:
    """One run of pages. Policies may read everything and write nothing."""

    __slots__ = (
        "children",
        "created",
        "device",
        "device_children",
        "hits",
        "host",
        "host_locks",
        "id",
        "key",
        "last_access",
        "load",
        "lock",
        "names",
        "namespace",
        "pages",
        "parent",
        "priority",
        "write",
    )

    def __init__(self, node_id: int, parent: Node | None, namespace: str | None, key: bytes, stamp: int) -> None:
        self.id = node_id
        self.parent = parent
        self.namespace = namespace
        self.key = key
        self.pages = len(key) // ATOM_BYTES
        self.children: dict[Any, Node] = {}
        self.device: Extent | None = None
        self.host: Extent | None = None
        self.device_children = 0
        self.lock = 0
        """Users of the device slots: running requests, transfers. Counted on every node up to the root."""
        self.host_locks: tuple[HostLock, ...] = ()
        self.hits = 0
        self.priority = 0
        self.last_access = stamp
        self.created = stamp
        self.names: Any = None
        """Names of the pages in L3, where there is one."""
        self.write: Write | None = None
        """The write to L2 in flight that covers this node."""
        self.load: Load | None = None
        """The load from L2 in flight that covers this node."""

    def is_device_leaf(self) -> bool:
        """On the device, nothing below it there, nobody uses it."""
        return self.device is not None and not self.device_children and not self.lock

    def is_unwritten_leaf(self) -> bool:
        """The same, without a host copy."""
        return self.device is not None and self.host is None and not self.device_children and not self.lock

    def is_host_leaf(self) -> bool:
        """On the host only and settled there, nothing below it, nobody uses it."""
        return (
            self.device is None
            and self.host is not None
            and self.write is None
            and not self.children
            and not self.lock
            and not self.host_locks
        )

    def child_key(self) -> Any:
        """Under which name its parent knows it. Only the root tells namespaces apart: below, they cannot mix."""
        first = self.key[:ATOM_BYTES]
        assert self.parent is not None
        return (self.namespace, first) if self.parent.parent is None else first


class HostLock:
    """A hold on host copies that survives splits: whoever was held stays held in both halves."""

    __slots__ = ("nodes",)

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)
        for node in nodes:
            node.host_locks += (self,)

    def release(self) -> list[Node]:
        """Let go; the nodes that were held."""
        for node in self.nodes:
            node.host_locks = tuple(lock for lock in node.host_locks if lock is not self)
        return self.nodes


class Match:
    """How far a prompt is known: `device_pages` on the device, then `host_pages` on the host only."""

    __slots__ = ("device_node", "device_pages", "host_node", "host_pages", "node")

    def __init__(self, device_pages: int, host_pages: int, device_node: Node, host_node: Node, node: Node) -> None:
        self.device_pages = device_pages
        self.host_pages = host_pages
        self.device_node = device_node
        """Last node on the device along the match (the root if none)."""
        self.host_node = host_node
        """Last node with a host copy along the match; the root counts as having one."""
        self.node = node
        """Last node of the match."""


class RadixTree:
    """The tree, its clock of recency, and the pages it keeps on the device."""

    def __init__(
        self,
        split_keeps_creation: bool = False,
        on_split: Callable[[Node, Node], None] = lambda upper, lower: None,
        split_refreshes_lower: bool = True,
    ) -> None:
        self._split_keeps_creation = split_keeps_creation
        self._split_refreshes_lower = split_refreshes_lower
        self._on_split = on_split
        """Told of both halves, wherever a split comes from."""
        self._stamp = 0
        self._next_id = 1
        self.root = Node(0, None, None, b"", 0)
        # The root holds nothing and counts as resident everywhere, so that walks upwards end at it.
        self.root.device = self.root.host = nothing(Owner.TREE)
        self.root.lock = 1
        self.root.priority = LOWEST_PRIORITY
        self.evictable = 0
        """Pages of nodes on the device that nobody holds."""
        self.protected = 0
        """Pages of nodes on the device that somebody holds."""
        self.doubled = 0
        """Pages of nodes on the device that have a host copy as well, or are getting one."""

    # Looking and walking

    def peek(self, namespace: str | None, key: bytes) -> tuple[int, int]:
        """Pages of `key` on the device, and behind them on the host only. A look: nothing is split or touched."""
        device = host = at = 0
        child = self.root.children.get((namespace, key[:ATOM_BYTES]))
        while child is not None:
            pages = child.pages if key.startswith(child.key, at) else common_pages(child.key, 0, key, at)
            if child.device is None:
                host += pages
            else:
                device += pages
            at += pages * ATOM_BYTES
            if pages < child.pages:
                break
            child = child.children.get(key[at : at + ATOM_BYTES])
        return device, host

    def walk(self, namespace: str | None, key: bytes) -> Match:
        """The longest known prefix of `key`: splits where it ends inside a node, and refreshes recency on the path,
        deepest newest."""
        root = node = self.root
        stamp = self._stamp
        at = host = device = 0
        device_node = root
        child = root.children.get((namespace, key[:ATOM_BYTES]))
        while child is not None:
            stamp += 1
            before = child.last_access
            child.last_access = stamp
            if not key.startswith(child.key, at):
                self._stamp = stamp
                child = self.split(child, common_pages(child.key, 0, key, at), before)
                stamp = self._stamp
                node = child
                if child.device is None:
                    host += child.pages
                else:
                    device += child.pages
                    device_node = child
                break
            node = child
            at += child.pages * ATOM_BYTES
            if child.device is None:
                host += child.pages
            else:
                device += child.pages
                device_node = child
            child = node.children.get(key[at : at + ATOM_BYTES])
        self._stamp = stamp
        host_node = node
        while host_node.host is None:
            host_node = host_node.parent  # type: ignore[assignment]
        return Match(device, host, device_node, host_node, node)

    def touch(self, node: Node) -> int:
        """Make `node` the most recently used; when it was used before."""
        before = node.last_access
        self._stamp += 1
        node.last_access = self._stamp
        return before

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, depth first, children in the order they were inserted."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    # Structure

    def add(self, parent: Node, namespace: str | None, key: bytes, priority: int) -> Node:
        """A new node below `parent`, resident nowhere yet: the caller gives it slots before the next walk."""
        self._stamp += 1
        node = Node(self._next_id, parent, namespace, key, self._stamp)
        self._next_id += 1
        node.priority = priority
        parent.children[node.child_key()] = node
        return node

    def split(self, lower: Node, pages: int, before: int = -1) -> Node:
        """Cut the first `pages` pages off `lower` into a new node above it, which is returned.

        before: when `lower` was last used before the caller touched it for the sake of its first pages.

        `lower` keeps its identity: what is in flight for it, or hangs below it, ends where it ended before.
        """
        parent = lower.parent
        assert parent is not None and 0 < pages < lower.pages
        cut = pages * ATOM_BYTES
        self._stamp += 1
        upper = Node(self._next_id, parent, lower.namespace, lower.key[:cut], self._stamp)
        self._next_id += 1
        if self._split_keeps_creation:
            upper.created = lower.created
        upper.lock, upper.hits, upper.priority = lower.lock, lower.hits, lower.priority
        if before >= 0 and not self._split_refreshes_lower:
            lower.last_access = before
        parent.children[upper.child_key()] = upper
        lower.parent, lower.key = upper, lower.key[cut:]
        lower.pages -= pages
        upper.children[lower.key[:ATOM_BYTES]] = lower
        if lower.device is not None:
            upper.device = lower.device.cut(pages)
            upper.device_children = 1
        if lower.host is not None:
            upper.host = lower.host.cut(pages)
        if lower.names is not None:
            upper.names, lower.names = lower.names[:pages], lower.names[pages:]
        for lock in lower.host_locks:
            lock.nodes.append(upper)
        upper.host_locks = lower.host_locks
        if lower.write is not None:
            upper.write = lower.write
            lower.write.cover(upper, above=lower)
        upper.load = lower.load
        self._on_split(upper, lower)
        return upper

    def remove(self, node: Node) -> None:
        """Take a node without children, resident nowhere any more, off the tree."""
        parent = node.parent
        assert parent is not None and not node.children
        del parent.children[node.child_key()]

    # Residency and locks: the sums

    def put_on_device(self, node: Node, slots: Extent) -> None:
        """`node` is on the device from now on, in `slots` ([node.pages])."""
        node.device = slots
        parent = node.parent
        assert parent is not None
        parent.device_children += 1
        if node.host is not None:
            self.doubled += node.pages
        if node.lock:
            self.protected += node.pages
        else:
            self.evictable += node.pages

    def take_off_device(self, node: Node) -> Extent:
        """`node`, held by nobody, is no longer on the device; the slots it had."""
        slots = node.device
        assert slots is not None and not node.lock
        node.device = None
        parent = node.parent
        assert parent is not None
        parent.device_children -= 1
        if node.host is not None:
            self.doubled -= node.pages
        self.evictable -= node.pages
        return slots

    def put_on_host(self, node: Node, slots: Extent) -> None:
        """`node` has, or is getting, a host copy in `slots` ([node.pages])."""
        node.host = slots
        if node.device is not None:
            self.doubled += node.pages

    def take_off_host(self, node: Node) -> Extent:
        """`node` has no host copy any more; the slots it had."""
        slots = node.host
        assert slots is not None
        node.host = None
        if node.device is not None:
            self.doubled -= node.pages
        return slots

    @property
    def unwritten(self) -> int:
        """Pages on the device without a host copy."""
        return self.evictable + self.protected - self.doubled

    def lock(self, node: Node) -> int:
        """Hold `node` and all above it on the device; the pages that ceased to be evictable."""
        moved = 0
        while node.parent is not None:
            if not node.lock and node.device is not None:
                moved += node.pages
            node.lock += 1
            node = node.parent
        self.evictable -= moved
        self.protected += moved
        return moved

    def unlock(self, node: Node) -> int:
        """Undo one `lock`; the pages that became evictable. The caller offers `node` if it is a leaf now."""
        moved = 0
        while node.parent is not None:
            if node.lock == 1 and node.device is not None:
                moved += node.pages
            assert node.lock > 0, f"node {node.id} unlocked more often than locked"
            node.lock -= 1
            node = node.parent
        self.evictable += moved
        self.protected -= moved
        return moved
