"""Operations in flight: the only place that knows them.

Rules of this file
- One record an operation, from the moment it is decided until its completion has been acted on (law L4).
- Four tables, as upstream has them (article 3.7): writes to L2, loads from L2, prefetches, writes to L3. Writes and
  loads are acted on in the order they were issued, however their completions come in.
- A record knows what it holds; nothing about it is written on a node but the link back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .slots import Extent
from .tree import HostLock, Node
from .types import Completion, Indices, Progress


class Write:
    """L1 to L2. `fragments` are the nodes it covers, in the order of its pages: one, until a split."""

    __slots__ = ("done_pages", "fragments", "leaving", "locked", "op_id", "pages")

    def __init__(self, op_id: int, node: Node, locked: bool) -> None:
        self.op_id = op_id
        self.pages = node.pages
        self.fragments = [node]
        self.locked = locked
        self.leaving: Extent | None = None
        """write_back: device slots of the node that leaves L1 once the copy is done."""
        self.done_pages: int | None = None

    def cover(self, upper: Node, above: Node) -> None:
        """`above` was split; `upper` is its first part."""
        self.fragments.insert(self.fragments.index(above), upper)

    @property
    def node(self) -> Node:
        """The lowest fragment: the node that was written, which keeps its identity when split."""
        return self.fragments[-1]

    @property
    def good(self) -> bool:
        return self.done_pages == self.pages


class Load:
    """L2 to L1: one batch of chains, merged into one operation when the batch that needs them starts."""

    __slots__ = ("chains", "done_pages", "op_id", "pages")

    def __init__(self, op_id: int) -> None:
        self.op_id = op_id
        self.chains: list[Chain] = []
        self.pages = 0
        self.done_pages: int | None = None


class Chain:
    """The nodes one request loads back, root side first; locked on the device until the load is acknowledged."""

    __slots__ = ("host_lock", "node", "slots", "sources")

    def __init__(self, node: Node, sources: list[Indices], slots: Indices, host_lock: HostLock | None) -> None:
        self.node = node
        self.sources = sources
        """[pages] host slots, a node each."""
        self.slots = slots
        """[pages] device slots of all."""
        self.host_lock = host_lock


class Store:
    """L2 to L3 of one node."""

    __slots__ = ("hold", "op_id", "pages")

    def __init__(self, op_id: int, node: Node, pages: int) -> None:
        self.op_id = op_id
        self.hold = HostLock(node)
        self.pages = pages


class Prefetch:
    """L3 to L2 for one waiting request. Satisfies `policies.FetchState`."""

    __slots__ = (
        "anchor",
        "atoms",
        "cancelled",
        "deadline_s",
        "fetch_op",
        "good_pages",
        "hit_pages",
        "hold",
        "inserted_pages",
        "names",
        "namespace",
        "over",
        "pages",
        "probe_op",
        "promised_pages",
        "refused",
        "request",
        "slots",
        "started_s",
    )

    def __init__(
        self, request: Any, anchor: Node, namespace: str | None, atoms: bytes, pages: int, started_s: float | None
    ) -> None:
        self.request = request
        self.anchor = anchor
        self.hold: HostLock | None = None
        """Keeps the anchor on the host while the request waits."""
        self.refused: Any = None
        """A `counters.Refusal`, if L3 was not asked or its answer not worth a fetch."""
        self.namespace = namespace
        self.atoms = atoms
        self.pages = pages
        self.started_s = started_s
        self.deadline_s: float | None = None
        """What its policy said last."""
        self.slots: Extent | None = None
        """Host slots of the pages that have arrived and are not in the tree yet, and of those that still may."""
        self.names: Any = ()
        self.probe_op = -1
        self.fetch_op = -1
        self.hit_pages: int | None = None
        self.promised_pages = 0
        """Hits reported by the store."""
        self.good_pages = 0
        self.inserted_pages = 0
        self.cancelled = False
        """The request has gone on, or away: what arrives from now on is given back."""
        self.over = False
        """The transfer ended by itself, short of what the store had promised."""


class Ledger:
    """The four tables and the queues between workers and scheduler, drained once a tick."""

    def __init__(self) -> None:
        self._next_op = 1
        self.open: dict[int, Callable[[Completion | Progress], None]] = {}
        """Every operation without its completion: who is told of it."""
        self.writing: dict[int, Write] = {}
        self.loading: dict[int, Load] = {}
        self.storing: dict[int, Store] = {}
        self.prefetching: dict[Any, Prefetch] = {}
        """Prefetches that count against the limit and hold their anchor, by request."""
        self.prefetch_pages = 0
        """Their pages, in sum (article 3.6). Thousands may wait; the laws count them anew."""
        self.fetching: dict[int, Prefetch] = {}
        """Every prefetch with a PROBE or FETCH in flight, cancelled ones too, by operation."""
        self.clearing: set[int] = set()
        """CLEAR operations."""
        self.computing: set[int] = set()
        """COMPUTE operations, which are the engine's business."""
        self.revoked: list[Prefetch] = []
        self.stored: list[Store] = []
        self.answered: list[Prefetch] = []
        """Prefetches whose store has answered and whose L2 pages are yet to be allocated (0.5.23)."""
        self.detached: dict[int, Node] = {}
        """Nodes that have left the tree while somebody held them; their host slots are in transit until he lets go."""
        self.lingering: dict[int, Extent] = {}
        """Host slots into which a FETCH that was given up may still write, by operation."""
        self.lingering_stores: dict[int, Store] = {}
        """STOREs that were given up and may still read what they hold."""
        self.released: list[Extent] = []
        """Host slots on their way back to the pool."""

    def new_op(self) -> int:
        op_id = self._next_op
        self._next_op += 1
        return op_id

    @property
    def at_rest(self) -> bool:
        """Nothing in flight, nothing to drain. What lingers or is detached may stay for ever, and helps nobody."""
        return not (
            self.writing
            or self.loading
            or self.storing
            or self.prefetching
            or self.fetching
            or self.revoked
            or self.stored
            or self.answered
            or self.released
        )

    @property
    def loads_in_flight(self) -> int:
        """Chains whose load has started (in upstream's `ongoing_load_back`)."""
        return sum(len(load.chains) for load in self.loading.values())

    def begin_prefetch(self, prefetch: Prefetch) -> None:
        """`prefetch` counts against the limit from now on."""
        assert prefetch.request not in self.prefetching, f"request {prefetch.request} has a prefetch in flight"
        self.prefetching[prefetch.request] = prefetch
        self.prefetch_pages += prefetch.pages

    def end_prefetch(self, prefetch: Prefetch) -> None:
        del self.prefetching[prefetch.request]
        self.prefetch_pages -= prefetch.pages
