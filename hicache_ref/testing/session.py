"""A cache with its storage side and leases, every call to it logged, so that a run can be had again (law L6).

Rules of this file
- The log holds what comes in from outside: calls, reports, times. What the control plane decides follows from it.
- A call that has to wait stops at a `Wait`; reports come in, then `resume`. So the log is flat.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from ..control import lease
from ..control.cache import CacheShape, HiCache
from ..control.keys import ATOM_BYTES, AtomKeys, Keyspace, TokenPages
from ..control.ledger import Prefetch
from ..control.policies import EvictionPolicy, PrefetchPolicy, WritePolicy
from ..control.rules import rules_for
from ..control.storage import PrefetchLimits, StorageSide
from ..control.types import Op, Report, Wait
from ..policy.eviction import EVICTION
from ..policy.prefetch import PREFETCH
from ..policy.write import WRITE


@dataclass(frozen=True)
class Setup:
    """A small cache. Policies are named as SGLang's flags name them, or are objects of one's own."""

    profile: str = "v0.5.7"
    changes: dict[str, Any] = field(default_factory=dict)
    """Single knobs set otherwise than the profile has them."""
    write: str | WritePolicy = "write_through"
    eviction: str | EvictionPolicy = "lru"
    prefetch: str | PrefetchPolicy | None = None
    """None: no L3."""
    page_tokens: int = 1
    l1_pages: int = 16
    l2_pages: int = 32
    load_back_threshold_tokens: int = 1
    prefetch_threshold_tokens: int = 1
    prefetch_capacity_tokens: int = 1 << 30
    keyspace: str = "tokens"
    """`tokens`: token ids. `pairs`: EAGLE's. `atoms`: prefix-unique ids, as simulation has them."""

    def cache(self) -> HiCache:
        """A new, empty cache, its storage side attached."""
        shape = CacheShape(self.page_tokens, self.l1_pages, self.l2_pages, self.load_back_threshold_tokens)
        eviction = EVICTION.make(self.eviction) if isinstance(self.eviction, str) else self.eviction
        write = WRITE.make(self.write) if isinstance(self.write, str) else self.write
        rules = rules_for(self.profile, **self.changes)
        cache = HiCache(shape, eviction, write, rules, self.keys())
        if self.prefetch is not None:
            prefetch = PREFETCH.make(self.prefetch) if isinstance(self.prefetch, str) else self.prefetch
            StorageSide(cache, prefetch, PrefetchLimits(self.prefetch_threshold_tokens, self.prefetch_capacity_tokens))
        return cache

    def keys(self) -> Keyspace:
        return AtomKeys() if self.keyspace == "atoms" else TokenPages(self.page_tokens, self.keyspace == "pairs")


class Session:
    """The calls an engine makes, by name. `log` is what came in, `ops` what was decided."""

    def __init__(self, setup: Setup, keys: Keyspace | None = None) -> None:
        """`keys`: a keyspace that knows the prompts already; needed to replay where pages are interned."""
        self.cache = setup.cache()
        if keys is not None:
            self.cache.keys = keys
        self.leases: dict[int, lease.Lease] = {}
        self.log: list[tuple[Any, ...]] = []
        self.ops: list[tuple[Any, ...]] = []
        self._steps: Generator[Wait, None, Any] | None = None

    def call(self, name: str, *args: Any) -> Any:
        """One call: its result, or the `Wait` it stands at."""
        self.log.append((name, *args))
        answer = getattr(self, f"_{name}")(*args)
        if not isinstance(answer, Generator):
            return answer
        self._steps = answer
        return self._advance()

    def on(self, event: Report) -> None:
        """A plane's report."""
        self.call("on", event)

    def take_ops(self) -> list[Any]:
        """What has been decided since the last time. Not part of the log: when a driver asks changes nothing."""
        ops = self.cache.take_ops()
        self.ops.extend(map(plain, ops))
        return ops

    def _advance(self) -> Any:
        assert self._steps is not None
        try:
            return next(self._steps)
        except StopIteration as stop:
            self._steps = None
            return stop.value

    # The calls

    def _resume(self) -> Any:
        return self._advance()

    def _on(self, event: Report) -> None:
        self.cache.on(event)

    def _tick(self, now_s: float) -> None:
        self.cache.tick(now_s)

    def _admit(self, rid: int, namespace: str | None, key: bytes) -> Generator[Wait, None, lease.Admission]:
        admission = yield from lease.acquire(self.cache, namespace, key)
        if admission.lease is not None:
            self.leases[rid] = admission.lease
        return admission

    def _start_loading(self) -> int | None:
        return self.cache.start_loading()

    def _extend(self, rid: int, key: bytes) -> Generator[Wait, None, bool]:
        return lease.extend(self.cache, self.leases[rid], key)

    def _commit(self, rid: int, priority: int, chunked: bool) -> int:
        return lease.commit(self.cache, self.leases[rid], priority, chunked)

    def _release(self, rid: int, priority: int) -> int:
        return lease.release(self.cache, self.leases.pop(rid), priority)

    def _discard(self, rid: int) -> None:
        lease.discard(self.cache, self.leases.pop(rid))

    def _prefetch(self, rid: int, namespace: str | None, key: bytes, now_s: float) -> Prefetch | None:
        match = self.cache.match(namespace, key)
        if self.cache.storage is None:
            return None
        rest = key[(match.device_pages + match.host_pages) * ATOM_BYTES :]
        return self.cache.storage.prefetch(rid, match, namespace, rest, now_s)

    def _poll(self, rid: int, now_s: float) -> bool:
        return self.cache.storage is None or self.cache.storage.poll(rid, now_s)

    def _abort(self, rid: int) -> None:
        if self.cache.storage is not None:
            self.cache.storage.abort(rid)


def replay(setup: Setup, log: list[tuple[Any, ...]], keys: Keyspace | None = None) -> Session:
    """The run again, from its log."""
    session = Session(setup, keys)
    for name, *args in log:
        session.call(name, *args)
        session.take_ops()
    return session


def plain(op: Any) -> tuple[Any, ...]:
    """An operation, or a cancellation, in a form that compares."""
    if not isinstance(op, Op):
        return ("cancel", op.op_id)
    src = None if op.src is None else tuple(op.src.tolist())
    dst = None if op.dst is None else tuple(op.dst.tolist())
    return (op.kind.name, op.id, op.pages, src, dst, tuple(op.keys))


def words(op: Any) -> str:
    """An operation for the reader of a story."""
    if not isinstance(op, Op):
        return f"CANCEL #{op.op_id}"
    source = f" from {op.src.tolist()}" if op.src is not None else ""
    target = f" to {op.dst.tolist()}" if op.dst is not None else ""
    names = f" names {' '.join(str(name)[:5] for name in op.keys)}" if len(op.keys) else ""
    return f"{op.kind.name} #{op.id}, {op.pages} pages{source}{target}{names}"
