"""Statistics: the published figures of the shipped traces, to every printed digit, and small cases by hand."""

import gzip
import json

import numpy as np
import pytest

from workloads import Blocks, Request, TraceError, lru_hits, open_trace, sample, trace_stats

# (requests, blocks, tokens, per full block, mean over requests)
INFINITE = {
    "conversation": ("0.3664", "0.3736", "0.3823", "0.4094"),
    "synthetic": ("0.6396", "0.6512", "0.6612", "0.4315"),
}
LRU = {
    "conversation": """
        0.01 19 0.0417 0.0425 | 0.1 195 0.0419 0.0427 | 0.512 1000 0.0445 0.0454 | 1 1953 0.0533 0.0543
        3 5859 0.1361 0.1387 | 5.12 10000 0.2116 0.2157 | 10 19531 0.2852 0.2908 | 15.36 30000 0.3257 0.3322
        20 39062 0.3513 0.3582 | 50 97656 0.3635 0.3707 | 1000000 1953125000 0.3664 0.3736""",
    "synthetic": """
        0.01 19 0.0018 0.0018 | 0.1 195 0.0168 0.0171 | 0.512 1000 0.0841 0.0857 | 1 1953 0.1424 0.1451
        3 5859 0.3094 0.3151 | 5.12 10000 0.4239 0.4318 | 10 19531 0.5666 0.5770 | 15.36 30000 0.6242 0.6356
        20 39062 0.6393 0.6510 | 50 97656 0.6396 0.6512 | 1000000 1953125000 0.6396 0.6512""",
}


@pytest.fixture(scope="module")
def stats():
    return {name: trace_stats(open_trace(name).requests(), open_trace(name).block_tokens) for name in INFINITE}


@pytest.mark.parametrize("name", INFINITE)
def test_the_four_hit_ratios(stats, name):
    found = stats[name]
    ratios = (
        found.hit_ratio_blocks,
        found.hit_ratio_tokens,
        found.hit_ratio_per_full_block,
        found.hit_ratio_requests,
    )
    assert tuple(f"{ratio:.4f}" for ratio in ratios) == INFINITE[name]
    assert {*ratios, found.hit_ratio_full_blocks} == {*found.hit_ratios.values()}
    assert f"{found.reuse_ceiling:.4f}" == INFINITE[name][0], "in an infinite cache every repeat is a hit"
    assert found.forked_blocks == 0


def test_whole_pages_leave_the_hit_tails_out(stats):
    """118 and 213 partial tails are hit by identical ones; an engine of whole pages gets none of them."""
    for name, tails, ratio in (("conversation", 118, "0.3819"), ("synthetic", 213, "0.6594")):
        found = stats[name]
        assert found.hit_blocks - found.hit_full_blocks == tails
        assert f"{found.hit_ratio_full_blocks:.4f}" == ratio


def test_counts_of_the_mooncake_traces(stats):
    conversation, synthetic = stats["conversation"], stats["synthetic"]
    assert (conversation.requests, synthetic.requests) == (12_031, 3_993)
    assert (round(conversation.mean_input_tokens), round(conversation.mean_output_tokens)) == (12_035, 343)
    assert (round(synthetic.mean_input_tokens), round(synthetic.mean_output_tokens)) == (15_325, 149)
    assert (round(conversation.span_s), round(synthetic.span_s)) == (3_537, 1_022)
    assert (conversation.instants, conversation.largest_tie) == (1_180, 28)
    assert f"{conversation.once_blocks / conversation.distinct_blocks:.3f}" == "0.758"
    assert (conversation.unnamed_tails, conversation.sessions) == (0, 0)
    assert conversation.named_tails == conversation.blocks - conversation.full_blocks


@pytest.mark.parametrize("name", LRU)
def test_bounded_lru_pools(name):
    rows = [row.split() for row in LRU[name].replace("\n", "|").split("|") if row.strip()]
    pools = lru_hits(open_trace(name).requests(), [float(row[0]) * 1e6 for row in rows], 512)
    found = [[str(p.capacity_blocks), f"{p.hit_ratio_blocks:.4f}", f"{p.hit_ratio_tokens:.4f}"] for p in pools]
    assert found == [row[1:] for row in rows]


def test_counts_of_the_claude_code_sessions():
    found = trace_stats(open_trace("claude-code").requests(), 64)
    assert (found.requests, found.sessions) == (1_742, 12)
    assert (round(found.mean_input_tokens), round(found.mean_output_tokens)) == (90_548, 465)
    assert f"{found.hit_ratio_tokens:.4f}" == "0.9471"
    assert (found.named_tails, found.blocks) == (0, found.full_blocks)


def claude_code_lru(path):
    pools = lru_hits(open_trace(path).requests(), [0.25e6, 1e6, 2e6, 4e6], 64)
    return [f"{pool.hit_ratio_tokens:.4f}" for pool in pools]


def test_lru_over_claude_code_sessions():
    assert claude_code_lru("claude-code") == ["0.7778", "0.9344", "0.9434", "0.9469"]


def test_lru_over_claude_code_sessions_as_published(tmp_path):
    """The published row merged sub-agents as if their clock were the session's; so does a copy edited to say that."""
    path = tmp_path / "raw.jsonl"
    with gzip.open(sample("claude-code")) as file, open(path, "w") as copy:
        for document in map(json.loads, file):
            for entry in document["requests"]:
                if entry["type"] == "subagent":
                    entry["t"] = entry["duration_ms"] / 1000
            # The sub-agents' own order in the document is kept; only their start moves to 0.
            copy.write(json.dumps(document) + "\n")
    assert claude_code_lru(path) == ["0.7291", "0.8886", "0.9407", "0.9471"]


# --- By hand ---------------------------------------------------------------------------------------------------------


def request(ids, tokens, content_tokens=None, **more):
    named = tokens if content_tokens is None else content_tokens
    return Request(0, 0.0, Blocks(np.array(ids, dtype=np.int64), 4), tokens, 1, named, **more)


def test_a_small_case_by_hand():
    requests = [request([1, 2, 3], 10), request([1, 2, 3], 10), request([1, 2, 4], 11), request([5], 3, 0)]
    found = trace_stats(requests, 4)
    assert (found.blocks, found.full_blocks, found.named_tails, found.unnamed_tails) == (9, 6, 3, 1)
    assert (found.hit_blocks, found.hit_full_blocks, found.hit_tokens) == (5, 4, 18)
    assert (found.distinct_blocks, found.once_blocks) == (4, 1)
    assert found.hit_ratio_requests == pytest.approx((0 + 1 + 8 / 11 + 0) / 4)
    assert found.longest_input_tokens == 11


def test_other_page_sizes_than_the_traces():
    """Counting in pages of 2 sees the same tokens."""
    found = trace_stats([request([1, 2, 3], 10), request([1, 2, 4], 11)], 2)
    assert (found.blocks, found.hit_tokens) == (5 + 6, 8)


def test_keys_of_different_namespaces_are_different():
    plain = [request([1], 4), request([1], 4)]
    lora = [request([1], 4, extra_key="a"), request([1], 4, extra_key="b"), request([1], 4, extra_key="a")]
    assert trace_stats(plain, 4).hit_blocks == 1
    assert trace_stats([*plain, *lora], 4).hit_blocks == 2


def test_hashes_of_single_blocks_show_as_forks():
    assert trace_stats([request([1, 2], 8), request([3, 2], 8)], 4).forked_blocks == 1


def test_a_floor_trace_counts_its_unnamed_tails():
    found = trace_stats([request([1, 2], 10, 8), request([1, 2], 8)], 4)
    assert (found.unnamed_tails, found.named_tails, found.blocks) == (1, 0, 4)


def test_no_requests():
    found = trace_stats([], 4)
    assert (found.requests, found.hit_ratio_tokens, found.reuse_ceiling, found.span_s) == (0, 0.0, 0.0, 0.0)


def test_a_pool_evicts_the_tail_before_the_head():
    """Three blocks of room: [1 2 3] then [4] pushes out 3, the deepest of the oldest."""
    requests = [request([1, 2, 3], 12), request([4], 4), request([1, 2, 3], 12)]
    (pool,) = lru_hits(requests, [12], 4)
    assert pool.hit_ratio_blocks == pytest.approx(2 / 7)


def test_a_pool_below_one_block_is_refused():
    with pytest.raises(TraceError, match="a capacity below one block; give at least 64 tokens"):
        lru_hits([], [1e6, 63], 64)
