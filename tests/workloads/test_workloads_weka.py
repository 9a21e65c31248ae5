"""kv-cache-tester sessions: local ids, sub-agents on their own clock, who waits for whom."""

import gzip
import json
from itertools import pairwise

import pytest

from workloads import ClosedLoop, OpenLoop, Poisson, Spaced, TraceError, open_trace, sample


def call(t, tokens, ids, **more):
    return {"t": t, "type": "n", "in": tokens, "out": 10, "hash_ids": ids, **more}


def session(requests, **more):
    return {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": requests, **more}


# The main agent asks at 0 (answered at 10), waits for sub-agents spawned at 11 that end at 31 and 41, goes on at 45.
WITH_SUB_AGENTS = session(
    [
        call(0.0, 130, [1, 2], api_time=10.0, think_time=0.0),
        {
            "t": 31.0,
            "type": "subagent",
            "duration_ms": 20_000,
            "requests": [
                call(0.0, 64, [3], api_time=2.0, think_time=0.0),
                call(5.0, 128, [3, 4], api_time=14.0, think_time=3.0),
            ],
        },
        {"t": 41.0, "type": "subagent", "duration_ms": 30_000, "requests": [call(0.0, 64, [3], api_time=29.0)]},
        call(45.0, 200, [1, 2, 5], api_time=1.0, think_time=35.0),
        call(50.0, 200, [1, 2, 5], api_time=1.0, think_time=4.0),
    ]
)


def test_sub_agents_run_on_their_own_clock_from_their_start(trace_file):
    trace = open_trace(trace_file([WITH_SUB_AGENTS]))
    assert (trace.format, trace.verdict, trace.block_tokens, trace.linked) == ("weka", "floor", 64, True)
    requests = list(trace.requests(OpenLoop()))
    assert [request.arrival_s for request in requests] == [0.0, 11.0, 11.0, 16.0, 45.0, 50.0]
    assert [request.input_tokens for request in requests] == [130, 64, 64, 128, 200, 200]
    assert [request.content_tokens for request in requests] == [128, 64, 64, 128, 192, 192]
    assert {request.session for request in requests} == {0}


def test_a_turn_follows_the_answer_that_ended_last_before_it(trace_file):
    requests = list(open_trace(trace_file([WITH_SUB_AGENTS])).requests(ClosedLoop()))
    main, slow, quick, quick_2, join, last = sorted(requests, key=lambda r: (r.input_tokens == 200, r.id))
    assert (main.parent, main.arrival_s) == (None, 0.0)
    assert (quick.parent, quick.think_s) == (main.id, 1.0)
    assert (slow.parent, slow.think_s) == (main.id, 1.0)
    assert (quick_2.parent, quick_2.think_s) in [(quick.id, 3.0), (slow.id, 3.0)]
    assert (join.parent, join.think_s) in [(slow.id, 5.0), (quick.id, 5.0)]
    assert join.parent != quick_2.parent
    assert (last.parent, last.think_s) == (join.id, 4.0)


def test_times_that_are_missing_fall_back_to_the_recorded_gap(trace_file):
    document = session([call(0.0, 64, [1]), call(7.0, 64, [1]), call(9.5, 64, [1], think_time=0.5)])
    requests = list(open_trace(trace_file([document])).requests(ClosedLoop()))
    assert [request.think_s for request in requests] == [0.0, 7.0, 0.5]
    assert [request.arrival_s for request in requests] == [0.0, 7.0, 7.5]


def test_ids_are_local_to_their_session_unless_global(trace_file, token_ids):
    one, two = session([call(0, 128, [1, 2])]), session([call(1, 64, [1])])
    first, second = map(token_ids, open_trace(trace_file([one, two])).requests())
    assert not set(first) & set(second)
    shared = [document | {"hash_id_scope": "global"} for document in (one, two)]
    first, second = map(token_ids, open_trace(trace_file(shared)).requests())
    assert first[:64] == second


def test_sub_agents_share_their_sessions_ids(trace_file, token_ids):
    requests = list(open_trace(trace_file([WITH_SUB_AGENTS])).requests(OpenLoop()))
    assert token_ids(requests[1]) == token_ids(requests[2]) == token_ids(requests[3])[:64]


def test_the_original_files_and_folders_of_them_are_read_too(trace_file, fingerprint):
    packed = open_trace(trace_file([WITH_SUB_AGENTS, WITH_SUB_AGENTS]))
    for name in ("folder/b.json", "folder/a.json"):
        single = trace_file([json.dumps(WITH_SUB_AGENTS, indent=2)], name)
    folder = open_trace(single.parent)
    assert open_trace(single).format == folder.format == "weka"
    assert [*map(fingerprint, packed.requests())] == [*map(fingerprint, folder.requests())]
    assert len(list(open_trace(single).requests())) == 6


def test_sessions_start_by_a_law(trace_file):
    trace = open_trace(trace_file([session([call(0, 64, [1]), call(3, 64, [1])])] * 3))
    spaced = [(r.session, r.arrival_s) for r in trace.requests(OpenLoop(arrivals=Spaced(2.0)))]
    assert spaced == [(0, 0.0), (1, 2.0), (0, 3.0), (2, 4.0), (1, 5.0), (2, 7.0)]
    merged = [(r.session, r.arrival_s) for r in trace.requests(OpenLoop(speed=3))]
    assert merged == [(0, 0.0), (1, 0.0), (2, 0.0), (0, 1.0), (1, 1.0), (2, 1.0)]
    poisson = [r.arrival_s for r in trace.requests(OpenLoop(arrivals=Poisson(0.01, seed=5))) if r.parent is None]
    assert poisson == [r.arrival_s for r in trace.requests(OpenLoop(arrivals=Poisson(0.01, seed=5)))]
    assert poisson != [r.arrival_s for r in trace.requests(OpenLoop(arrivals=Poisson(0.01, seed=6)))]


BAD = {
    "no requests": (session([]), "a session without requests"),
    "requests no list": (session({}), "a session without requests"),
    "a request of another kind": (session([3]), "a request is an object"),
    "no time": (session([{"in": 64, "out": 1, "hash_ids": [1]}]), "no t"),
    "time goes back": (session([call(5, 64, [1]), call(4, 64, [1])]), "times go back"),
    "zero input": (session([call(0, 0, [])]), "in is 0"),
    "negative output": (session([call(0, 64, [1], out=-1)]), "out is -1"),
    "wrong count": (session([call(0, 64, [1, 2, 3])]), "neither ceil nor floor"),
    "id too large": (session([call(0, 64, [2**40])]), "an id that is too large"),
    "ids unreadable": (session([call(0, 64, [None])]), "hash_ids cannot be read"),
    "ids no list": (session([call(0, 64, 7)]), "hash_ids is not a list"),
    "unknown scope": (session([call(0, 64, [1])], hash_id_scope=["x"]), "known: local, global"),
    "sub-agent of nothing": (session([{"t": 1, "type": "subagent", "requests": 5}]), "not a list"),
    "sub-agent of numbers": (session([{"t": 1, "type": "subagent", "requests": [5]}]), "a request is an object"),
    "block size": (session([call(0, 64, [1])], block_size="64"), "block_size is '64'"),
}


@pytest.mark.parametrize(("document", "said"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
def test_bad_sessions_are_named(trace_file, document, said, before):
    path = trace_file([WITH_SUB_AGENTS] * before + [document])
    with pytest.raises(TraceError) as error:
        list(open_trace(path, format="weka").requests())
    assert said in str(error.value)
    assert f"{path}:{before + 1}" in str(error.value)


def test_hashes_of_single_blocks_are_caught_in_the_first_session(trace_file):
    document = session([call(0, 128, [1, 2]), call(1, 128, [3, 2])])
    with pytest.raises(TraceError, match=":1 request 1: id 2 follows 1 and 3: hashes of blocks, not of prefixes"):
        open_trace(trace_file([document]))


def test_chain_is_refused(trace_file):
    with pytest.raises(TraceError, match="prefix ids already"):
        open_trace(trace_file([WITH_SUB_AGENTS]), chain=True)


def test_the_sample_keeps_its_order_in_both_loops():
    trace = open_trace("claude-code")
    for schedule in (OpenLoop(), ClosedLoop(), ClosedLoop(arrivals=Spaced(100))):
        requests = list(trace.requests(schedule))
        assert [request.id for request in requests] == list(range(1742))
        assert all(one.arrival_s <= two.arrival_s for one, two in pairwise(requests))
        assert all(request.parent is None or request.parent < request.id for request in requests)
        assert all(request.think_s >= 0 for request in requests)
    roots = [request for request in trace.requests(ClosedLoop()) if request.parent is None]
    assert len(roots) == 12, "only a session's first request follows nothing"


def test_recorded_sub_agents_start_right_behind_an_answer():
    """What the reading of a sub-agent's `t` as its end rests on: all 34 start 0.05 to 1.2 s behind one, but two."""
    gaps = []
    with gzip.open(sample("claude-code")) as file:
        for document in map(json.loads, file):
            ended = [-1.0]
            for entry in document["requests"]:
                if entry["type"] == "subagent":
                    gaps.append(entry["t"] - entry["duration_ms"] / 1000 - ended[-1])
                else:
                    ended.append(entry["t"] + entry["api_time"])
    assert len(gaps) == 34
    assert sum(0.05 < gap < 1.2 for gap in gaps) == 32
