"""Every registered policy, and the odd ones of the fuzzer, keep their contract; and a contract can be broken."""

from functools import partial

import pytest

import hicache_sim
from hicache_ref.control.tree import Node
from hicache_ref.policy.eviction import EVICTION, Lru
from hicache_ref.policy.prefetch import PREFETCH, Timeout, complete
from hicache_ref.policy.write import WRITE, WriteBack
from hicache_ref.testing import ContractBroken, EvictionContract, FuzzFailure, PrefetchContract, WriteContract
from hicache_ref.testing.contracts import Fetch
from hicache_ref.testing.odd import ODD_EVICTION, ODD_PREFETCH, ODD_WRITE


def suite(contract, name, policy):
    """A contract's suite for one policy."""
    return type(f"Test_{name}", (contract,), {"policy": staticmethod(policy), "seeds": range(8)})


for name in EVICTION:
    globals()[f"TestEviction_{name}"] = suite(EvictionContract, name, partial(EVICTION.make, name))
for odd in ODD_EVICTION:
    globals()[f"TestEviction_{odd.name}"] = suite(EvictionContract, odd.name, type(odd))
for name in WRITE:
    globals()[f"TestWrite_{name}"] = suite(WriteContract, name, partial(WRITE.make, name))
for odd_write in ODD_WRITE:
    globals()[f"TestWrite_{odd_write.name}"] = suite(WriteContract, odd_write.name, type(odd_write))
for name in PREFETCH:
    globals()[f"TestPrefetch_{name}"] = suite(PrefetchContract, name, partial(PREFETCH.make, name))
for odd_prefetch in ODD_PREFETCH:
    globals()[f"TestPrefetch_{odd_prefetch.name}"] = suite(PrefetchContract, odd_prefetch.name, type(odd_prefetch))
TestPrefetch_timeout_of_request = suite(
    PrefetchContract, "timeout_of_request", partial(Timeout, base_s=0.5, per_page_s=0.125, of_request=True)
)


# Contracts broken, one by one


class Dishonest(Lru):
    """mru that says its ranks only rise."""

    def rank(self, node):
        return -node.last_access


class Meddling(Lru):
    def rank(self, node):
        node.hits += 1
        return node.last_access


class Remembering(Lru):
    def __init__(self):
        self.seen = {}

    def rank(self, node):
        return self.seen.setdefault(node.id, node.last_access)


class Counting(Lru):
    def __init__(self):
        self.asked = 0

    def rank(self, node):
        self.asked += 1
        return self.asked


class Undecided(Lru):
    def rank(self, node):
        return float("nan") if node.pages == 1 else float(node.last_access)


class Nameless(Lru):
    name = ""


@pytest.mark.parametrize(
    ("policy", "test", "error", "words"),
    [
        (Dishonest, "test_laws_hold", FuzzFailure, "rises_only"),
        (Meddling, "test_is_pure", FuzzFailure, "changes the node"),
        (Remembering, "test_is_pure", ContractBroken, "lru remembers"),
        (Counting, "test_is_pure", FuzzFailure, "to the same question"),
        (Undecided, "test_orders_all_nodes", ContractBroken, "not in order"),
        (Nameless, "test_says_what_it_is", ContractBroken, "no str 'name'"),
    ],
)
def test_a_bad_eviction_policy_is_found(policy, test, error, words):
    with pytest.raises(error, match=words):
        getattr(suite(EvictionContract, "bad", policy)(), test)()


class Greedy(WriteBack):
    """Says maybe."""

    counts_hits = True

    def wants_backup(self, node):
        return node.hits


class Whimsical(WriteBack):
    counts_hits = True

    def __init__(self):
        self.asked = 0

    def wants_backup(self, node):
        self.asked += 1
        return self.asked % 2 == 0


@pytest.mark.parametrize(
    ("policy", "words"), [(Greedy, "wants_backup answers 1"), (Whimsical, "answers False, then True")]
)
def test_a_bad_write_policy_is_found(policy, words):
    with pytest.raises(FuzzFailure, match=words):
        suite(WriteContract, "bad", policy)().test_is_pure()


class Stubborn(Timeout):
    """Waits although all is there."""

    def may_stop(self, fetch, now_s):
        return False


class Late(Timeout):
    """Stops a second after the deadline it names."""

    def may_stop(self, fetch, now_s):
        deadline_s = self.deadline_s(fetch)
        return complete(fetch) or (deadline_s is not None and now_s >= deadline_s + 1.0)


class Silent(Timeout):
    """Stops by time, and never says when: the engine would sleep through it."""

    def may_stop(self, fetch, now_s):
        return complete(fetch) or now_s > 1000.0

    def deadline_s(self, fetch):
        return None


class Drifting(Timeout):
    def deadline_s(self, fetch):
        self.base_s += 1.0
        return super().deadline_s(fetch)


@pytest.mark.parametrize(
    ("policy", "test", "words"),
    [
        (Stubborn, "test_goes_on_when_all_is_there", "waits although all is there"),
        (Late, "test_keeps_its_deadline", "does not stop at"),
        (Silent, "test_keeps_its_deadline", "by time alone without a deadline"),
        (Drifting, "test_is_pure", "to the same question"),
    ],
)
def test_a_bad_prefetch_policy_is_found(policy, test, words):
    with pytest.raises(ContractBroken, match=words):
        getattr(suite(PrefetchContract, "bad", policy)(), test)()


# Single answers


def a_node(node_id: int, **fields: int) -> Node:
    node = Node(node_id, None, None, b"", 0)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", [3, 1, 2, 4]),
        ("lfu", [4, 1, 3, 2]),
        ("fifo", [2, 1, 4, 3]),
        ("mru", [4, 2, 1, 3]),
        ("filo", [3, 4, 1, 2]),
        ("priority", [1, 2, 3, 4]),
        ("slru", [1, 4, 3, 2]),
    ],
)
def test_who_goes_first(policy, order):
    nodes = [
        a_node(1, last_access=2, hits=1, created=7, priority=0),
        a_node(2, last_access=3, hits=2, created=6, priority=0),
        a_node(3, last_access=1, hits=2, created=9, priority=5),
        a_node(4, last_access=4, hits=0, created=8, priority=5),
    ]
    assert [node.id for node in sorted(nodes, key=EVICTION.make(policy).rank)] == order


def test_timeout_grows_with_the_hit_or_with_the_request():
    fetch = Fetch(pages=100, hit_pages=10, good_pages=0, started_s=5.0)
    assert Timeout(base_s=1.0, per_page_s=0.5).deadline_s(fetch) == 11.0
    assert Timeout(base_s=1.0, per_page_s=0.5, of_request=True).deadline_s(fetch) == 56.0
    assert Timeout(base_s=1.0, per_page_s=0.5).deadline_s(Fetch(100, None, 0, 5.0)) == 6.0


def test_nothing_is_complete_before_the_store_has_answered():
    """Not even nothing of nothing: upstream's rule."""
    assert not complete(Fetch(pages=4, hit_pages=None, good_pages=0, started_s=0.0))
    assert not complete(Fetch(pages=4, hit_pages=0, good_pages=0, started_s=0.0))
    assert complete(Fetch(pages=4, hit_pages=2, good_pages=2, started_s=0.0))


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="unknown eviction policy 'belady': known are lru, lfu"):
        EVICTION.make("belady")


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="'lru' is registered twice"):
        EVICTION.register("lru")(Lru)


def test_a_registered_policy_is_a_choice() -> None:
    """What a user registers can be asked for by SGLang's flag, and is refused before."""
    with pytest.raises(ValueError, match="radix-eviction-policy newcomer"):
        hicache_sim.replay("synthetic", options=hicache_sim.Options(limit=5), radix_eviction_policy="newcomer")
    EVICTION.register("newcomer")(EVICTION._makers["lru"])
    try:
        result = hicache_sim.replay("synthetic", options=hicache_sim.Options(limit=5), radix_eviction_policy="newcomer")
    finally:
        del EVICTION._makers["newcomer"]
    assert result.summary["config"]["flags"]["radix_eviction_policy"] == "newcomer"
