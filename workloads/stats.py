"""What a trace holds, and how much of it any cache could hit.

Rules of this file
- A *block* is `block_tokens` tokens of a prompt, counted with the trace's own block size. Its key is the id of its
  last token, so equal keys mean equal prefixes. A partial last block is a block too where the trace names it; it is
  hit only by an identical partial block. Answers do not count: a prompt is looked up, then all its blocks are kept.
- "Hit ratio" has several definitions, apart by 5 points and more on one trace. All are given, each by its name.
- One pass, one table entry for each distinct block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from .errors import TraceError
from .request import Request


@dataclass
class TraceStats:
    """Counts of a trace, and hits under an infinite cache.

    full_blocks        blocks without the partial last ones. named_tails, unnamed_tails: prompts whose partial last
                       block has an id, or has none (so the format counts blocks by ceil, or by floor).
    distinct_blocks    different keys. once_blocks: keys that only one request uses.
    forked_blocks      keys seen behind two different blocks. Not 0: hashes of single blocks were read as if of
                       prefixes; read the trace with chain=True (--chain).
    instants           different arrival times. largest_tie: most requests on one of them.
    span_s             from the first arrival to the last.
    """

    block_tokens: int
    requests: int = 0
    sessions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    longest_input_tokens: int = 0
    span_s: float = 0.0
    instants: int = 0
    largest_tie: int = 0
    blocks: int = 0
    full_blocks: int = 0
    named_tails: int = 0
    unnamed_tails: int = 0
    distinct_blocks: int = 0
    once_blocks: int = 0
    forked_blocks: int = 0
    hit_blocks: int = 0
    hit_full_blocks: int = 0
    hit_tokens: int = 0
    summed_request_ratios: float = 0.0

    @property
    def hit_ratio_blocks(self) -> float:
        """Hit blocks / all blocks."""
        return _ratio(self.hit_blocks, self.blocks)

    @property
    def hit_ratio_tokens(self) -> float:
        """Hit tokens / input tokens."""
        return _ratio(self.hit_tokens, self.input_tokens)

    @property
    def hit_ratio_per_full_block(self) -> float:
        """Hit blocks / full blocks. Partial blocks are left out below, not above: this fits Mooncake's Table 2."""
        return _ratio(self.hit_blocks, self.full_blocks)

    @property
    def hit_ratio_full_blocks(self) -> float:
        """Hit full blocks / full blocks: what a cache of whole pages can do."""
        return _ratio(self.hit_full_blocks, self.full_blocks)

    @property
    def hit_ratio_requests(self) -> float:
        """Mean over requests of hit tokens / input tokens."""
        return _ratio(self.summed_request_ratios, self.requests)

    @property
    def hit_ratios(self) -> dict[str, float]:
        """Every hit ratio under the definition that belongs beside it in print."""
        return {
            "hit blocks / all blocks": self.hit_ratio_blocks,
            "hit tokens / input tokens": self.hit_ratio_tokens,
            "hit blocks / full blocks": self.hit_ratio_per_full_block,
            "hit full blocks / full blocks": self.hit_ratio_full_blocks,
            "mean over requests of hit tokens / input tokens": self.hit_ratio_requests,
        }

    @property
    def reuse_ceiling(self) -> float:
        """1 - distinct blocks / blocks: the block hit ratio that no order of requests can beat."""
        return 1 - _ratio(self.distinct_blocks, self.blocks) if self.blocks else 0.0

    @property
    def mean_input_tokens(self) -> float:
        return _ratio(self.input_tokens, self.requests)

    @property
    def mean_output_tokens(self) -> float:
        return _ratio(self.output_tokens, self.requests)


def trace_stats(requests: Iterable[Request], block_tokens: int) -> TraceStats:
    """Count a trace in blocks of `block_tokens` (a workload's own: `workload.block_tokens`)."""
    stats = TraceStats(block_tokens)
    before: dict[Hashable, Hashable] = {}
    once: set[Hashable] = set()
    sessions: set[int] = set()
    first_s = last_s = None
    tie = 0
    for request in requests:
        first_s = request.arrival_s if first_s is None else first_s
        tie = tie + 1 if request.arrival_s == last_s else 1
        stats.instants += tie == 1
        stats.largest_tie = max(stats.largest_tie, tie)
        last_s = request.arrival_s
        if request.session is not None:
            sessions.add(request.session)
        stats.requests += 1
        stats.input_tokens += request.input_tokens
        stats.output_tokens += request.output_tokens
        stats.longest_input_tokens = max(stats.longest_input_tokens, request.input_tokens)
        _count_blocks(stats, request, before, once)
    stats.sessions = len(sessions)
    stats.span_s = (last_s or 0.0) - (first_s or 0.0)
    stats.distinct_blocks, stats.once_blocks = len(before), len(once)
    return stats


def _count_blocks(stats: TraceStats, request: Request, before: dict[Hashable, Hashable], once: set[Hashable]) -> None:
    keys, tail_tokens = block_keys(request, stats.block_tokens)
    hits = tail_hits = 0
    previous: Hashable = None
    for key in keys:
        expected = before.setdefault(key, _NEW)
        if expected is _NEW:
            before[key] = previous
            once.add(key)
        else:
            hits += 1
            once.discard(key)
            stats.forked_blocks += expected != previous
        previous = key
    full = len(keys) - (tail_tokens > 0)
    if tail_tokens and expected is not _NEW:
        tail_hits = 1
    hit_tokens = (hits - tail_hits) * stats.block_tokens + tail_hits * tail_tokens
    stats.blocks += len(keys)
    stats.full_blocks += full
    stats.named_tails += tail_tokens > 0
    stats.unnamed_tails += not tail_tokens and full * stats.block_tokens < request.input_tokens
    stats.hit_blocks += hits
    stats.hit_full_blocks += hits - tail_hits
    stats.hit_tokens += hit_tokens
    stats.summed_request_ratios += hit_tokens / request.input_tokens


def block_keys(request: Request, block_tokens: int) -> tuple[list[Hashable], int]:
    """Keys of a prompt's named blocks, and the length of the partial last one (0: none, or unnamed)."""
    full = min(request.input_tokens, request.content_tokens) // block_tokens
    keys: list[Hashable] = [*_atoms(request, block_tokens, full)]
    tail = request.input_tokens - full * block_tokens
    tail = tail if 0 < tail < block_tokens and request.content_tokens >= request.input_tokens else 0
    if tail:
        # A page as long as the prompt ends with the prompt's last token, whose id names it all.
        keys += _atoms(request, request.input_tokens, 1)
    if request.extra_key is not None:
        keys = [(request.extra_key, key) for key in keys]
    return keys, tail


def _atoms(request: Request, page_tokens: int, pages: int) -> list[int]:
    return memoryview(request.content.atoms(page_tokens, pages)).cast("q").tolist() if pages else []


@dataclass
class PoolHits:
    """Hits of a bounded pool, as ratios of all blocks and of all input tokens."""

    capacity_tokens: float
    capacity_blocks: int
    hit_ratio_blocks: float
    hit_ratio_tokens: float


def lru_hits(requests: Iterable[Request], capacities_tokens: Sequence[float], block_tokens: int) -> list[PoolHits]:
    """One global LRU pool of blocks for each capacity, all in one pass over the trace.

    Each request is looked up, block by block; then all its blocks are touched, the deepest first, so that the head of
    a prompt is the last of it to go. TraceError: a capacity below one block.
    """
    limits = [int(capacity // block_tokens) for capacity in capacities_tokens]
    if min(limits, default=1) < 1:
        raise TraceError("a capacity below one block", do=f"give at least {block_tokens} tokens")
    pools: list[OrderedDict[Hashable, None]] = [OrderedDict() for _ in limits]
    hit_blocks, hit_tokens = [0] * len(limits), [0] * len(limits)
    blocks = input_tokens = 0
    for request in requests:
        keys, tail = block_keys(request, block_tokens)
        blocks += len(keys)
        input_tokens += request.input_tokens
        for number, (pool, limit) in enumerate(zip(pools, limits, strict=True)):
            hits = sum(map(pool.__contains__, keys))
            hit_blocks[number] += hits
            hit_tokens[number] += hits * block_tokens - (block_tokens - tail if tail and keys[-1] in pool else 0)
            _touch(pool, limit, keys)
    return [
        PoolHits(capacity, limit, _ratio(hit, blocks), _ratio(tokens, input_tokens))
        for capacity, limit, hit, tokens in zip(capacities_tokens, limits, hit_blocks, hit_tokens, strict=True)
    ]


def _touch(pool: OrderedDict[Hashable, None], limit: int, keys: list[Hashable]) -> None:
    for key in reversed(keys):
        pool[key] = None
        pool.move_to_end(key)
    for _ in range(len(pool) - limit):
        pool.popitem(last=False)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_NEW = object()
