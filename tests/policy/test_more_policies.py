"""What the policies beyond SGLang's do, each in the smallest cache that shows it."""

from __future__ import annotations

import pytest

from hicache_ref.control.cache import CacheShape, HiCache
from hicache_ref.control.evictable import EvictableLeaves
from hicache_ref.control.keys import AtomKeys
from hicache_ref.control.rules import rules_for
from hicache_ref.control.storage import PrefetchLimits
from hicache_ref.control.tree import Node
from hicache_ref.policy.eviction import EVICTION
from hicache_ref.policy.prefetch import PREFETCH
from hicache_ref.policy.queues import S3FifoLeaves, SieveLeaves
from hicache_ref.policy.write import WRITE
from hicache_sim.untimed import replay
from tests.curve.prompts import workload


def cache_of(l1: int, l2: int = 0, write: str = "none", eviction: str = "lru", **options: float) -> HiCache:
    made = WRITE.make(write, **options)
    return HiCache(CacheShape(16, l1, l2), EVICTION.make(eviction), made, rules_for("v0.5.23"), AtomKeys())


def a_node(node_id: int, pages: int = 1, **fields: object) -> Node:
    node = Node(node_id, None, None, bytes(8 * pages), 0)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


# Ranks


@pytest.mark.parametrize(("policy", "order"), [("hpt", [3, 2, 1, 4]), ("ttl", [3, 4, 1, 2])])
def test_who_goes_first(policy: str, order: list[int]) -> None:
    nodes = [
        a_node(1, pages=2, hits=2, last_access=500),
        a_node(2, pages=8, hits=4, last_access=400),
        a_node(3, pages=8, hits=1, last_access=300),
        a_node(4, pages=1, hits=1, last_access=600),
    ]
    assert [node.id for node in sorted(nodes, key=EVICTION.make(policy).rank)] == order


def test_equal_lives_are_lru() -> None:
    nodes = [a_node(at, hits=7 - at, last_access=stamp) for at, stamp in enumerate((30, 10, 20))]
    ttl = EVICTION.make("ttl", reused=0.0)
    assert sorted(nodes, key=ttl.rank) == sorted(nodes, key=EVICTION.make("lru").rank)


def test_long_conversations_end_later() -> None:
    """A leaf three turns deep outlives one that nobody has continued, though that was used later; not for ever."""
    root = Node(0, None, None, b"", 0)
    first = Node(1, root, None, bytes(8), 1)
    second = Node(2, first, None, bytes(8), 2)
    leaf, other = Node(3, second, None, bytes(8), 100), Node(4, root, None, bytes(8), 150)
    rank = EVICTION.make("session", patience=50).rank
    assert rank(leaf) > rank(other)
    other.last_access = 201
    assert rank(leaf) < rank(other)


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        (EVICTION, "ttl", {"ttl": -1}),
        (EVICTION, "session", {"patience": -1}),
        (EVICTION, "s3fifo", {"small_share": 2}),
        (WRITE, "boundary", {"zone": 2}),
        (WRITE, "write_back_watermark", {"threshold": -0.1}),
    ],
)
def test_parameters_out_of_range(kind, name, options) -> None:
    with pytest.raises(ValueError, match=name):
        kind.make(name, **options)


# Queues


def leaves_of(make, *nodes: Node):
    queue = make(lambda node: node.device is not None)
    for node in nodes:
        queue.offer(node)
    return queue


def resident(count: int) -> list[Node]:
    return [
        a_node(at, device=[0], created=at, last_access=at, key=at.to_bytes(8, "little")) for at in range(1, count + 1)
    ]


def drained(queue) -> list[int]:
    ids = []
    while (node := queue.pop()) is not None:
        node.device = None
        ids.append(node.id)
    return ids


def test_sieve_spares_what_was_visited_and_its_hand_goes_on() -> None:
    nodes = resident(4)
    queue = leaves_of(SieveLeaves, *nodes)
    nodes[0].last_access = nodes[2].last_access = 10
    assert queue.pop() is nodes[1]
    nodes[1].device = None
    newest = a_node(9, device=[0], created=9, last_access=9)
    queue.offer(newest)
    # The hand stands behind 2: it spares 3, takes 4 and the new one, and only then comes back to 1 and 3.
    assert drained(queue) == [4, 9, 1, 3]


def test_s3fifo_keeps_what_is_seen_twice_and_lets_ghosts_in() -> None:
    nodes = resident(4)
    queue = leaves_of(lambda is_leaf: S3FifoLeaves(is_leaf, 0.1), *nodes)
    nodes[0].last_access = 10
    assert queue.pop() is nodes[1]
    nodes[1].device = None
    back = a_node(8, device=[0], created=11, last_access=11, key=nodes[1].key)
    stranger = a_node(9, device=[0], created=12, last_access=12, key=b"stranger")
    queue.offer(back)
    queue.offer(stranger)
    # 1 was seen again, 8 is 2 come back: both are in the main queue, behind what is new.
    assert drained(queue) == [3, 4, 9, 1, 8]


@pytest.mark.parametrize("name", ["sieve", "s3fifo"])
def test_a_scan_does_not_wash_out_what_is_used(name: str) -> None:
    """One prompt comes again and again among prompts that never do: LRU of this size loses it, these keep it."""
    prompts = [[0] * 4]
    for turn in range(12):
        prompts += [[0] * 4] + [[100 + 10 * turn + at] * 4 for at in range(5)]
    lru, other = (cache_of(20, eviction=each) for each in ("lru", name))
    before, after = replay(workload(prompts), lru), replay(workload(prompts), other)
    assert before.device_hit == 4 * 16
    assert after.device_hit >= 10 * 4 * 16


@pytest.mark.parametrize("make", [SieveLeaves, lambda is_leaf: S3FifoLeaves(is_leaf, 0.1)])
def test_queues_forget_who_has_gone(make) -> None:
    queue = make(lambda node: node.device is not None)
    for node in resident(2000):
        queue.offer(node)
        if node.id > 10:
            victim = queue.pop()
            assert victim is not None
            victim.device = None
    assert len(queue.known()) == 10
    assert len(queue._seen) <= 100


# Writing


def test_a_watermark_of_nothing_writes_everything_and_of_all_nothing_ahead() -> None:
    prompts = [[at] * 4 for at in range(4)]
    for threshold, written in ((0.0, 16), (0.5, 8), (0.75, 4), (1.0, 0)):
        cache = cache_of(16, 64, "write_back_watermark", threshold=threshold)
        replay(workload(prompts), cache)
        assert cache.tree.unwritten == 16 - written
        assert cache.counters.backed_up == written


def test_what_was_written_ahead_leaves_without_a_wait() -> None:
    """The oldest is written first, so the next prompt's room costs no copy."""
    cache = cache_of(16, 64, "write_back_watermark", threshold=0.5)
    replay(workload([[at] * 4 for at in range(5)]), cache)
    assert cache.counters.demoted == 4
    assert cache.match(None, workload([[0] * 4])[0].content.atoms(16, 4)).host_pages == 4


def test_boundary_holds_the_sum_of_both_levels() -> None:
    """Six prompts in turn: L1 has room for two, L2 for four and one that moves. write_through keeps copies of L1's in
    L2 and always misses; with the boundary, all six are there."""
    prompts = [[at] * 4 for at in range(6)] * 4
    hits = {}
    for write in ("write_through", "boundary"):
        cache = cache_of(8, 21, write)
        totals = replay(workload(prompts), cache)
        hits[write] = totals.device_hit + totals.loaded
    assert hits == {"write_through": 0, "boundary": 18 * 4 * 16}


def test_boundary_gives_the_copy_back_when_l1_uses_it() -> None:
    cache = cache_of(8, 16, "boundary", zone=0.0)
    replay(workload([[1] * 4, [2] * 4, [3] * 4, [1] * 4]), cache)
    assert cache.counters.loaded == 4
    assert cache.tree.doubled == 0


# Prefetch


def limits(**options: float):
    policy = PREFETCH.make("learned", **options)
    return policy.limits(PrefetchLimits(threshold_tokens=256, capacity_tokens=1000))


def test_everything_is_asked_for_until_it_is_known_not_to_come() -> None:
    learned = limits(memory=0.5)
    assert learned.asks(1, 16) and not learned.asks(0, 0)
    for _ in range(5):
        learned.ended(1, 0)
    learned.ended(40, 40)
    assert not learned.asks(1, 16)
    assert learned.asks(40, 640)
    assert learned.worth(16) and not learned.worth(0)


def test_now_and_then_it_tries_again_and_changes_its_mind() -> None:
    learned = limits(worth_pages=0.6, memory=0.5, tries=4)
    learned.ended(1, 0)
    assert [learned.asks(1, 16) for _ in range(8)] == [False, False, False, True] * 2
    learned.ended(1, 1)
    assert all(learned.asks(1, 16) for _ in range(8))


def test_each_cache_learns_for_itself() -> None:
    policy = PREFETCH.make("learned")
    one, other = (policy.limits(PrefetchLimits(256, 1000)) for _ in range(2))
    one.ended(1, 0)
    assert not one.asks(1, 16) and other.asks(1, 16)


def test_a_ranked_policy_gets_the_common_queue() -> None:
    assert isinstance(cache_of(8).device_leaves, EvictableLeaves)
    assert isinstance(cache_of(8, eviction="sieve").device_leaves, SieveLeaves)
