"""Mooncake rows, Dynamo's further fields, and every check of a row."""

import gzip
import json
import tracemalloc
from itertools import islice

import numpy as np
import pytest

from workloads import ClosedLoop, OpenLoop, TraceError, open_trace


def test_a_row_becomes_a_request(trace_file, mooncake_row):
    rows = [mooncake_row(5000, 1000, 7, [0, 1]), mooncake_row(8000, 1024, 8, [0, 2])]
    trace = open_trace(trace_file(rows, "tiny.jsonl.gz"))
    assert (trace.name, trace.format, trace.verdict, trace.block_tokens) == ("tiny.jsonl.gz", "mooncake", "ceil", 512)
    first, second = trace.requests()
    assert (first.id, first.arrival_s, first.input_tokens, first.output_tokens) == (0, 0.0, 1000, 7)
    assert (second.id, second.arrival_s, second.input_tokens, second.content_tokens) == (1, 3.0, 1024, 1024)
    assert first.content_tokens == 1000
    assert np.frombuffer(first.content.atoms(512, 1), np.int64).tolist() == [511]
    assert (first.session, first.parent, first.priority) == (None, None, 0)


def test_a_trace_can_be_read_again(trace_file, mooncake_row, fingerprint):
    trace = open_trace(trace_file([mooncake_row(), mooncake_row(3)]))
    assert [*map(fingerprint, trace.requests())] == [*map(fingerprint, trace.requests())]


def test_the_unnamed_tail_of_a_floor_trace_is_unique(trace_file, mooncake_row):
    trace = open_trace(trace_file([mooncake_row(input_length=1100, hash_ids=[1, 2])]))
    assert trace.verdict == "floor"
    assert next(trace.requests()).content_tokens == 1024


@pytest.mark.parametrize(
    ("lengths", "verdict"),
    [([512, 1024], "exact"), ([512, 1000], "ceil"), ([1024, 1100], "floor"), ([1000, 1100], "mixed")],
)
def test_verdicts(trace_file, mooncake_row, lengths, verdict):
    blocks = {512: 1, 1000: 2, 1024: 2, 1100: 2}
    rows = [mooncake_row(input_length=length, hash_ids=range(blocks[length])) for length in lengths]
    assert open_trace(trace_file(rows)).verdict == verdict


def test_a_wrong_block_size_fails_on_row_one_and_names_one_that_fits(trace_file, mooncake_row):
    path = trace_file([mooncake_row(input_length=1000, hash_ids=range(63))])
    with pytest.raises(TraceError, match=r":1: 63 block ids for 1000 tokens is neither ceil nor floor .* 16 would fit"):
        open_trace(path)
    assert open_trace(path, block_tokens=16).verdict == "ceil"


def test_dynamo_rows_are_linked(trace_file, mooncake_row):
    rows = [
        mooncake_row(0, hash_ids=[1, 2], session_id="a", request_id="r1", priority=3),
        mooncake_row(10, hash_ids=[7, 8], session_id="b"),
        mooncake_row(20, hash_ids=[1, 3], session_id="a", delay=1500),
    ]
    trace = open_trace(trace_file(rows))
    assert trace.linked
    first, other, second = trace.requests(ClosedLoop())
    assert (first.session, first.parent, first.priority) == (0, None, 3)
    assert (other.session, other.parent) == (1, None)
    assert (second.session, second.parent, second.think_s, second.arrival_s) == (0, 0, 1.5, 0.02)
    assert [request.parent for request in trace.requests(OpenLoop())] == [None] * 3


def test_derived_traces_name_their_session_so(trace_file, mooncake_row):
    trace = open_trace(trace_file([mooncake_row(0, session=4), mooncake_row(1, session=4)]))
    assert [request.parent for request in trace.requests(ClosedLoop())] == [None, 0]


def test_an_empty_answer_is_one_token(trace_file, mooncake_row):
    assert next(open_trace(trace_file([mooncake_row(output_length=0)])).requests()).output_tokens == 1


def test_large_negative_and_text_ids_are_folded_the_same_everywhere(trace_file, mooncake_row):
    ids = [0, 2**63 + 5, -(2**62), "9f86d081884c7d65", 10**30]
    rows = [mooncake_row(0, 512 * 5, 1, ids), mooncake_row(1, 512 * 4, 1, ids[:4]), mooncake_row(2, 512, 1, [1])]
    long, short, plain = open_trace(trace_file(rows)).requests()
    assert long.content.atoms(512, 4) == short.content.atoms(512, 4)
    atoms = np.frombuffer(long.content.atoms(1, 512 * 5), np.int64)
    assert len(set(atoms.tolist())) == 512 * 5
    assert atoms.min() >= 0
    assert plain.content.atoms(512, 1) == np.array([1023]).tobytes()


BAD_ROWS = {
    "no hash_ids": ({"hash_ids": None}, "hash_ids is not a list"),
    "ids of no kind": ({"hash_ids": [1, 2.5]}, "hash_ids cannot be read"),
    "ids in lists": ({"hash_ids": [[1], [2]]}, "hash_ids cannot be read"),
    "true is no id": ({"hash_ids": [True, False]}, "hash_ids cannot be read"),
    "zero input": ({"input_length": 0, "hash_ids": []}, "input_length is 0"),
    "negative input": ({"input_length": -5}, "input_length is -5"),
    "input no number": ({"input_length": "1000"}, "input_length is '1000'"),
    "input a float": ({"input_length": 1000.0}, "input_length is 1000.0"),
    "negative output": ({"output_length": -1}, "output_length is -1"),
    "output too large": ({"output_length": 10**30}, "output_length is 1000"),
    "time no number": ({"timestamp": "now"}, "timestamp is 'now'"),
    "time not a number": ({"timestamp": float("nan")}, "timestamp is nan"),
    "time without end": ({"timestamp": float("inf")}, "timestamp is inf"),
    "time beyond floats": ({"timestamp": 10**400}, "timestamp is 1000"),
    "time goes back": ({"timestamp": -1}, "timestamp -1 comes after 0: times go back"),
    "wrong count": ({"hash_ids": [1, 2, 3, 4]}, "4 block ids for 1000 tokens is neither ceil nor floor"),
    "priority no number": ({"priority": "high"}, "a field beside the prompt's is bad"),
}


@pytest.mark.parametrize(("changes", "said"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
@pytest.mark.parametrize("before", [1, 300], ids=["in the head", "behind the head"])
def test_a_bad_row_is_named_by_its_line(trace_file, mooncake_row, changes, said, before):
    path = trace_file([mooncake_row()] * before + [mooncake_row() | changes])
    with pytest.raises(TraceError) as error:
        list(open_trace(path).requests())
    assert f"{path}:{before + 1}: {said}" in str(error.value)


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_missing_field_is_named(trace_file, mooncake_row, key):
    row = mooncake_row()
    del row[key]
    with pytest.raises(TraceError, match=f":2: no {key}"):
        list(open_trace(trace_file([mooncake_row(), row])).requests())


def test_ids_with_two_predecessors_are_hashes_of_blocks(trace_file, mooncake_row):
    rows = [mooncake_row(0, 1024, 1, [1, 2]), mooncake_row(1, 1024, 1, [3, 2]), mooncake_row(2, 1024, 1, [1, 2])]
    path = trace_file(rows)
    with pytest.raises(TraceError, match=r":2: id 2 follows 1 and 3: .* chain=True"):
        list(open_trace(path).requests())
    first, other, again = (request.content.atoms(512, 2) for request in open_trace(path, chain=True).requests())
    assert first == again
    assert first[8:] != other[8:]


def test_an_id_twice_in_a_prompt_has_two_predecessors(trace_file, mooncake_row):
    with pytest.raises(TraceError, match="id 1 follows the start and 1"):
        list(open_trace(trace_file([mooncake_row(0, 1024, 1, [1, 1])])).requests())


def test_a_closed_loop_needs_links(trace_file, mooncake_row):
    with pytest.raises(TraceError, match="no row names its session"):
        open_trace(trace_file([mooncake_row()])).requests(ClosedLoop())


def test_a_long_file_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "long.jsonl.gz"
    row = '{"timestamp": %d, "input_length": 1000, "output_length": 5, "hash_ids": [%d, %d]}\n'
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(row % (number, 2 * number, 2 * number + 1) for number in range(40_000))
    requests = open_trace(path).requests(OpenLoop(spread=True))
    for _ in islice(requests, 2_000):
        pass
    tracemalloc.start()
    assert sum(1 for _ in requests) == 38_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000, "the buffers of the file, not 38,000 requests"


def test_rows_of_the_sample_are_as_published():
    trace = open_trace("conversation")
    requests = list(trace.requests())
    assert (len(requests), trace.verdict, trace.linked) == (12_031, "ceil", False)
    assert all(request.content_tokens == request.input_tokens for request in requests)
    assert {len(request.content.ids) - -(-request.input_tokens // 512) for request in requests} == {0}


def test_json_written_by_others_is_read_the_same(trace_file, mooncake_row, fingerprint):
    """Order of fields and white space are free."""
    row = mooncake_row()
    rows = [json.dumps(row, separators=(",", ":")) + "\n", "  " + json.dumps(dict(reversed(row.items()))) + " \n"]
    first, second = open_trace(trace_file(rows)).requests()
    assert fingerprint(first)[1:] == fingerprint(second)[1:]
