"""Whatever happens to a trace, it is read or a TraceError says what is wrong: no other exception comes out."""

import copy
import gzip
import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads import ClosedLoop, OpenLoop, TraceError, open_trace

GOOD = {
    "mooncake": [
        {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1], "session_id": "a", "priority": 1},
        {
            "timestamp": 9,
            "input_length": 1500,
            "output_length": 3,
            "hash_ids": [0, 2, 3],
            "session_id": "a",
            "delay": 5,
        },
    ],
    "mooncake-delta": [
        {"session_id": "a", "timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]},
        {"session_id": "a", "delay": 5, "input_length": 20, "output_length": 3, "hash_ids": [2]},
    ],
    "bailian": [
        {
            "chat_id": 1,
            "parent_chat_id": -1,
            "timestamp": 0.5,
            "input_length": 20,
            "output_length": 3,
            "hash_ids": [0, 1],
        },
        {
            "chat_id": 2,
            "parent_chat_id": 1,
            "timestamp": 0.9,
            "input_length": 40,
            "output_length": 3,
            "hash_ids": [0, 2, 3],
        },
    ],
    "weka": [
        {
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [
                {"t": 0.0, "type": "n", "in": 70, "out": 3, "hash_ids": [1], "api_time": 2.0, "think_time": 0.0},
                {
                    "t": 9.0,
                    "type": "subagent",
                    "duration_ms": 5000,
                    "requests": [{"t": 0.0, "in": 64, "out": 2, "hash_ids": [2], "api_time": 1.0}],
                },
                {"t": 10.0, "type": "n", "in": 130, "out": 3, "hash_ids": [1, 3], "think_time": 1.0},
            ],
        }
    ],
}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([0, -1, 10**400, "", [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def read(path, format):
    with suppress(TraceError):
        trace = open_trace(path, format=format)
        for schedule in (OpenLoop(spread=True), ClosedLoop()):
            for request in trace.requests(schedule):
                assert request.input_tokens >= 1
                assert request.output_tokens >= 1
                request.content.atoms(64, request.content_tokens // 64)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("format", GOOD)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_value_that_does_not_belong(tmp_path, format, data):
    rows = copy.deepcopy(GOOD[format])
    *way, last = data.draw(st.sampled_from([place for place in places(rows) if place]))
    target = rows
    for key in way:
        target = target[key]
    if data.draw(st.booleans()):
        target[last] = data.draw(json_values)
    else:
        del target[last]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for chosen in (None, format):
        read(path, chosen)


@pytest.mark.parametrize("format", GOOD)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_that_are_lost_or_changed(tmp_path, format, data):
    text = "".join(json.dumps(row) + "\n" for row in GOOD[format]).encode()
    content = bytearray(gzip.compress(text) if data.draw(st.booleans()) else text)
    where = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[where] = data.draw(st.integers(0, 255))
    else:
        del content[where:]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    for chosen in (None, format):
        read(path, chosen)


@pytest.mark.parametrize("format", GOOD)
def test_undamaged_they_are_read(tmp_path, format):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in GOOD[format]))
    trace = open_trace(path)
    assert trace.format == format
    assert len(list(trace.requests(OpenLoop()))) >= 2
