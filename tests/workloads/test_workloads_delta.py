"""Delta traces: found, refused as whole prompts, and read by adding up."""

import pytest

from workloads import ClosedLoop, OpenLoop, TraceError, open_trace

DYNAMO = [
    {"request_id": "d1", "session_id": "s", "timestamp": 0, "input_length": 16, "output_length": 4, "hash_ids": [201]},
    {
        "request_id": "d2",
        "session_id": "s",
        "timestamp": 10,
        "delay": 5,
        "input_length": 8,
        "output_length": 4,
        "hash_ids": [202],
    },
]


def turn(session, new, output, ids, **times):
    return {"session_id": session, "input_length": new, "output_length": output, "hash_ids": ids, **times}


TWO_TALKS = [
    turn("a", 1024, 512, [1, 2], timestamp=2000),
    turn("a", 512, 100, [3], delay=4000),
    turn("b", 1024, 512, [1, 2], timestamp=1000),
    turn("b", 512, 100, [3], delay=500),
    turn("a", 100, 7, [4], delay=1000),
]


def test_prompts_are_all_that_came_before(trace_file, token_ids):
    trace = open_trace(trace_file(TWO_TALKS))
    assert (trace.format, trace.verdict, trace.linked) == ("mooncake-delta", "ceil", True)
    requests = sorted(trace.requests(), key=lambda request: (request.session, request.id))
    b1, b2, a1, a2, a3 = requests
    assert [request.input_tokens for request in (a1, a2, a3)] == [1024, 1024 + 512 + 512, 2048 + 100 + 100]
    assert [request.content_tokens - request.input_tokens for request in (a1, a2, a3)] == [512, 100, 7]
    assert token_ids(a2)[: a1.content_tokens] == token_ids(a1)
    assert token_ids(a3)[: a2.content_tokens] == token_ids(a2)
    assert token_ids(a1)[:1024] == token_ids(b1)[:1024], "equal first turns are equal content"
    shared = set(token_ids(a3)) & set(token_ids(b2))
    assert shared == set(token_ids(a1)[:1024]), "answers differ, and so does everything behind them"


def test_closed_loop_is_the_default_and_waits_its_delay(trace_file):
    trace = open_trace(trace_file(TWO_TALKS))
    requests = list(trace.requests())
    assert [(r.session, r.arrival_s, r.parent, r.think_s) for r in requests] == [
        (0, 0.0, None, 0.0),
        (0, 0.5, 0, 0.5),
        (1, 1.0, None, 0.0),
        (1, 5.0, 2, 4.0),
        (1, 6.0, 3, 1.0),
    ]
    assert [request.arrival_s for request in trace.requests(ClosedLoop(speed=2))] == [0.0, 0.25, 0.5, 2.5, 3.0]
    assert [request.parent for request in trace.requests(OpenLoop())] == [None] * 5


def test_dynamos_own_example_has_both_times(trace_file):
    trace = open_trace(trace_file(DYNAMO))
    assert trace.format == "mooncake-delta"
    first, second = trace.requests(OpenLoop())
    assert (first.input_tokens, second.input_tokens, second.arrival_s) == (16, 28, 0.01)


def test_whole_prompts_with_delays_are_not_deltas(trace_file):
    rows = [turn("a", 1000, 5, [1, 2], timestamp=0), turn("a", 1500, 5, [1, 2, 3], timestamp=10, delay=5)]
    assert open_trace(trace_file(rows)).format == "mooncake"


@pytest.mark.parametrize("rows", [DYNAMO, TWO_TALKS], ids=["with timestamps", "without"])
def test_deltas_are_refused_as_whole_prompts(trace_file, rows):
    with pytest.raises(TraceError, match=r"only their new tokens .* mooncake-delta"):
        open_trace(trace_file(rows), format="mooncake")


def test_a_delta_behind_the_head_is_refused(trace_file):
    rows = [turn(f"s{number}", 1024, 5, [number * 2, number * 2 + 1], timestamp=number) for number in range(300)]
    with pytest.raises(TraceError, match=r":301: a delay but no timestamp: a delta trace"):
        list(open_trace(trace_file([*rows, turn("s1", 10, 5, [999], delay=3)])).requests())


BAD = {
    "no session": ({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}, "no session_id"),
    "first turn without time": (turn("c", 5, 1, [1]), "no timestamp"),
    "neither time": (turn("a", 5, 1, [1]), "no timestamp"),
    "negative delay": (turn("a", 5, 1, [1], delay=-1), "times go back"),
    "goes back": (turn("a", 5, 1, [1], timestamp=0), "times go back"),
    "wrong block size": (turn("a", 5000, 1, [1], delay=1), "neither ceil nor floor"),
    "bad ids": (turn("a", 5, 1, [1.5], delay=1), "hash_ids cannot be read"),
    "zero tokens": (turn("a", 0, 1, [], delay=1), "input_length is 0"),
}


@pytest.mark.parametrize(("row", "said"), BAD.values(), ids=BAD.keys())
def test_bad_rows_are_named(trace_file, row, said):
    with pytest.raises(TraceError, match=said) as error:
        open_trace(trace_file([*TWO_TALKS, row]), format="mooncake-delta")
    assert ":6: " in str(error.value)


def test_chain_is_refused(trace_file):
    with pytest.raises(TraceError, match="always chained"):
        open_trace(trace_file(TWO_TALKS), chain=True)
