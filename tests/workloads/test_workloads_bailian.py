"""Bailian rows: seconds, blocks of 16, hashes of single blocks that are chained, chats that follow each other."""

import pytest

from workloads import ClosedLoop, OpenLoop, TraceError, open_trace
from workloads.stats import trace_stats


def chat(chat_id, parent, timestamp, length, ids, output=9):
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": timestamp,
        "input_length": length,
        "output_length": output,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    }


ROWS = [
    chat(10, -1, 61.5, 32, [100, 200]),
    chat(11, -1, 62.0, 32, [300, 200]),
    chat(12, 10, 65.25, 50, [100, 200, 400, 500]),
    chat(13, 99, 70.0, 32, [100, 200]),
]


def test_fields_and_links(trace_file):
    trace = open_trace(trace_file(ROWS))
    assert (trace.format, trace.block_tokens, trace.verdict, trace.linked) == ("bailian", 16, "ceil", True)
    requests = list(trace.requests(ClosedLoop()))
    assert [request.arrival_s for request in requests] == [0.0, 0.5, 3.75, 8.5]
    assert [(request.session, request.parent) for request in requests] == [(0, None), (1, None), (0, 0), (2, None)]
    assert [request.parent for request in trace.requests(OpenLoop())] == [None] * 4


def test_equal_blocks_behind_different_prefixes_are_different(trace_file, token_ids):
    first, other, child, again = map(token_ids, open_trace(trace_file(ROWS)).requests())
    assert first == again
    assert not set(first) & set(other)
    assert child[:32] == first


def test_the_padded_tail_is_dropped(trace_file):
    child = list(open_trace(trace_file(ROWS)).requests())[2]
    assert (child.input_tokens, child.content_tokens) == (50, 48)


def test_hits_are_those_of_chained_blocks(trace_file):
    stats = trace_stats(open_trace(trace_file(ROWS)).requests(), 16)
    assert (stats.blocks, stats.hit_blocks, stats.forked_blocks) == (9, 4, 0)


def test_unchained_reading_is_caught(trace_file):
    with pytest.raises(TraceError, match=r":2: id 200 follows 100 and 300"):
        list(open_trace(trace_file(ROWS), chain=False).requests())


def test_old_chats_are_forgotten(trace_file, monkeypatch):
    monkeypatch.setattr("workloads.bailian.REMEMBERED_CHATS", 2)
    requests = list(open_trace(trace_file(ROWS)).requests(ClosedLoop()))
    assert requests[2].parent == 0
    late = [*ROWS, chat(14, 10, 80, 32, [100, 200])]
    assert list(open_trace(trace_file(late)).requests(ClosedLoop()))[4].parent is None


def test_bad_links_are_named(trace_file):
    with pytest.raises(TraceError, match=r":2: a field beside the prompt's is bad"):
        list(open_trace(trace_file([ROWS[0], ROWS[1] | {"parent_chat_id": {}}])).requests())
