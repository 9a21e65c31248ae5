"""What every policy must keep to, as test suites to inherit.

    from hicache_ref.testing import EvictionContract

    class TestMine(EvictionContract):
        policy = staticmethod(MyPolicy)

Rules of this file
- A contract asks a policy what the control plane asks it, in lives of small caches that `fuzz` makes up, and compares
  the answers, and the nodes, before and after.
- The laws hold under any policy. One that keeps its contract cannot break them, however bad its taste.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

from ..control.policies import EvictionPolicy, PrefetchPolicy, WritePolicy
from ..control.tree import Node
from .machine import FOREVER_S
from .world import fuzz, life


class ContractBroken(AssertionError):
    """A policy does what no policy may."""


class EvictionContract(ABC):
    """A rank is a pure function of a node, orders all leaves, and falls only if `rises_only` is False."""

    seeds: ClassVar[range] = range(12)
    """The lives it is tried in."""

    @staticmethod
    @abstractmethod
    def policy() -> EvictionPolicy:
        """Makes the policy to be tested."""

    def test_says_what_it_is(self) -> None:
        _says(self.policy(), name=str, rises_only=bool, reads_future=bool)

    def test_is_pure(self) -> None:
        policy = self.policy()
        with_itself = deepcopy(_memory(policy))
        for seed in self.seeds[:4]:
            fuzz(seed, eviction=_Watched(policy))
        _require(_memory(policy) == with_itself, f"{policy.name} remembers: {with_itself} became {_memory(policy)}")

    def test_orders_all_nodes(self) -> None:
        """Of two ranks one is smaller, or they are equal; and sorting is never contradicted."""
        policy = self.policy()
        for seed in self.seeds[:4]:
            for at, machine in enumerate(life(seed, eviction=policy)):
                if at % 10 == 0:
                    ranks = sorted(map(policy.rank, machine.cache.tree.nodes()))
                    for low, high in combinations(ranks, 2):
                        _require((low < high) != (low == high), f"{policy.name}: {low} and {high} are not in order")
                        _require(not high < low, f"{policy.name}: {low}, sorted before {high}, is larger")

    def test_laws_hold(self) -> None:
        """Any life ends well, evictions are those of a walk of the whole tree, and `rises_only` is honest."""
        for seed in self.seeds:
            fuzz(seed, eviction=self.policy())


class WriteContract(ABC):
    """Whether a node is written is a pure function of it."""

    seeds: ClassVar[range] = range(12)
    """The lives it is tried in."""

    @staticmethod
    @abstractmethod
    def policy() -> WritePolicy:
        """Makes the policy to be tested."""

    def test_says_what_it_is(self) -> None:
        policy = self.policy()
        _says(policy, name=str, counts_hits=bool, copies_on_eviction=bool, exclusive=bool, reads_future=bool)
        _says(policy, unwritten_share=float)
        _require(0 <= policy.unwritten_share <= 1, f"{policy.name}: an unwritten share of {policy.unwritten_share}")

    def test_is_pure(self) -> None:
        policy = self.policy()
        with_itself = deepcopy(_memory(policy))
        for seed in self.seeds[:4]:
            fuzz(seed, write=_Watched(policy))
        _require(_memory(policy) == with_itself, f"{policy.name} remembers: {with_itself} became {_memory(policy)}")

    def test_laws_hold(self) -> None:
        for seed in self.seeds:
            fuzz(seed, write=self.policy())


@dataclass
class Fetch:
    """A prefetch as its policy sees it."""

    pages: int
    hit_pages: int | None
    good_pages: int
    started_s: float | None


FETCHES = [
    Fetch(pages, hits, good, started_s)
    for pages in (1, 64, 4096)
    for hits in (None, 0, 1, 64, 4096)
    for good in (0, 1, 63, 64, 4096)
    for started_s in (None, 0.0, 100.0)
    if good <= (hits or 0) <= pages
]


class PrefetchContract(ABC):
    """A request goes on at the latest when all is there, and by time alone exactly when `deadline_s` says so."""

    seeds: ClassVar[range] = range(12)
    """The lives it is tried in."""

    @staticmethod
    @abstractmethod
    def policy() -> PrefetchPolicy:
        """Makes the policy to be tested."""

    def test_says_what_it_is(self) -> None:
        _says(self.policy(), name=str)

    def test_goes_on_when_all_is_there(self) -> None:
        policy = self.policy()
        for fetch in FETCHES:
            if fetch.hit_pages and fetch.good_pages == fetch.hit_pages:
                _require(policy.may_stop(fetch, 100.0), f"{policy.name} waits although all is there: {fetch}")

    def test_keeps_its_deadline(self) -> None:
        policy = self.policy()
        for fetch in FETCHES:
            start_s = fetch.started_s or 0.0
            at_once, at_last = policy.may_stop(fetch, start_s), policy.may_stop(fetch, start_s + FOREVER_S)
            deadline_s = policy.deadline_s(fetch)
            if deadline_s is None:
                _require(at_once == at_last, f"{policy.name} stops by time alone without a deadline: {fetch}")
            elif not at_once:
                before = policy.may_stop(fetch, math.nextafter(deadline_s, -math.inf))
                after = policy.may_stop(fetch, deadline_s)
                _require(after and not before, f"{policy.name} does not stop at {deadline_s}: {fetch}")

    def test_is_pure(self) -> None:
        policy = self.policy()
        with_itself = deepcopy(_memory(policy))
        for fetch in FETCHES:
            twice = [(policy.may_stop(fetch, 101.0), policy.deadline_s(fetch)) for _ in range(2)]
            _require(twice[0] == twice[1], f"{policy.name} answers {twice} to the same question: {fetch}")
            _require(isinstance(twice[0][0], bool), f"{policy.name}: may_stop answers {twice[0][0]!r}")
        _require(_memory(policy) == with_itself, f"{policy.name} remembers: {with_itself} became {_memory(policy)}")

    def test_laws_hold(self) -> None:
        for seed in self.seeds:
            fuzz(seed, prefetch=self.policy())


class _Watched:
    """A policy each of whose answers is asked for twice, and may leave no trace on the node."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def rank(self, node: Node) -> Any:
        return self._ask(self._policy.rank, node)

    def wants_backup(self, node: Node) -> bool:
        answer = self._ask(self._policy.wants_backup, node)
        _require(isinstance(answer, bool), f"{self._policy.name}: wants_backup answers {answer!r}")
        return bool(answer)

    def _ask(self, question: Callable[[Node], Any], node: Node) -> Any:
        before = _traces(node)
        first, second = question(node), question(node)
        _require(first == second, f"{self._policy.name} answers {first}, then {second} to the same question")
        _require(_traces(node) == before, f"{self._policy.name} changes the node it is asked about")
        return first


def _memory(policy: Any) -> Any:
    """What a policy keeps, if it keeps anything."""
    return getattr(policy, "__dict__", {})


def _traces(node: Node) -> list[Any]:
    """All that is written on a node, in a form that later changes do not reach."""
    return [_frozen(getattr(node, slot)) for slot in Node.__slots__]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list):
        return list(value)
    return value.tobytes() if hasattr(value, "tobytes") else value


def _says(policy: Any, **fields: type) -> None:
    for name, kind in fields.items():
        value = getattr(policy, name, None)
        _require(isinstance(value, kind) and value != "", f"{policy!r} has no {kind.__name__} {name!r}, but {value!r}")


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise ContractBroken(words)
