"""Files: gzip or plain by their bytes, one document a line or one a file, and every way in which they are broken."""

import gzip
import json

import pytest

from workloads import TraceError, open_trace
from workloads.source import Source


def documents(path):
    return [document for _, _, document in Source(path).documents()]


def test_gzip_is_found_by_its_bytes_not_by_its_name(trace_file, mooncake_row):
    plain = trace_file([mooncake_row()], "plain.jsonl")
    misnamed = plain.with_name("also.jsonl")
    misnamed.write_bytes(gzip.compress(plain.read_bytes()))
    plain_but_gz = plain.with_name("plain.gz")
    plain_but_gz.write_bytes(plain.read_bytes())
    assert documents(plain) == documents(misnamed) == documents(plain_but_gz) == [mooncake_row()]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n  \n"])
def test_line_ends_and_blank_lines_do_not_matter(trace_file, end):
    assert documents(trace_file(['{"a": 1}\n\n', '  {"a": 2}' + end])) == [{"a": 1}, {"a": 2}]


def test_a_byte_order_mark_is_skipped(trace_file):
    assert documents(trace_file(['\ufeff{"a": 1}\n'])) == [{"a": 1}]


def test_documents_know_their_file_and_line(trace_file):
    path = trace_file(['{"a": 1}\n', "\n", '{"a": 2}\n'])
    assert [(file, line) for file, line, _ in Source(path).documents()] == [(str(path), 1), (str(path), 3)]


def test_one_indented_document_is_one_document(trace_file):
    document = {"requests": [{"t": 0}], "block_size": 64}
    assert documents(trace_file([json.dumps(document, indent=2)], "session.json")) == [document]


def test_a_folder_is_read_in_order_of_names(trace_file):
    trace_file(['{"a": 2}'], "sessions/b.json")
    trace_file(['{"a": 1}'], "sessions/a.json.gz")
    folder = trace_file(["not a trace"], "sessions/SESSIONS.txt").parent
    assert documents(folder) == [{"a": 1}, {"a": 2}]


BROKEN = {
    "empty": (b"", "empty file"),
    "blank": (b"\n \n", "no rows"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
    "zstd": (b"\x28\xb5\x2f\xfd....", "zstd"),
    "zip": (b"PK\x03\x04....", "zip"),
    "parquet": (b"PAR1....", "Parquet"),
    "utf-16": ('{"a": 1}\n'.encode("utf-16"), "UTF-16"),
    "array": (b'[\n{"a": 1}\n]\n', "JSONL"),
    "row of another kind": (b"[1, 2]\n", "a row is an object"),
    "number": (b"17\n", "a row is an object"),
    "not JSON": (b"TIMESTAMP,ContextTokens\n1,2\n", ":1: not a JSON row"),
    "two on a line": (b'{"a": 1} {"a": 2}\n', ":1: not a JSON row"),
    "bad byte": (b'{"a": "\xff\xfe"}\n{"a": }\n', ":2: not a JSON row"),
    "bad second row": (b'{"a": 1}\n{"a": }\n{"a": 3}\n', ":2: not a JSON row"),
    "cut in the last row": (b'{"a": 1}\n{"a": 1', ":2: the last row is cut off"),
    "indented, not complete": (b'{\n  "a": [1,\n', "is the file complete?"),
    "too deep": (b'{"a": ' + b"[" * 100_000 + b"\n", ":1: not a JSON row"),
    "number too long": (b'{"a": ' + b"1" * 5000 + b"}\n", ":1: "),
    "damaged gzip": (b"\x1f\x8b" + b"\x00" * 30, "gzip data is cut short or damaged"),
    "cut gzip": (gzip.compress(b'{"a": 1}\n' * 50_000)[:-20], "gzip data is cut short or damaged"),
}


@pytest.mark.parametrize(("content", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_files_are_named_in_one_line(tmp_path, content, said):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        documents(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bad_byte_inside_a_string_is_the_only_damage_forgiven(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n')
    assert documents(path) == [{"a": "\ufffd"}]


def test_missing_files_and_folders_without_traces(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        open_trace(tmp_path / "nothing.jsonl")
    with pytest.raises(TraceError, match=r"without .json files"):
        open_trace(tmp_path)


def test_reading_holds_one_row_at_a_time(trace_file, mooncake_row):
    """A damaged row at the end does not keep the ones before it from being read."""
    rows = [mooncake_row(timestamp) for timestamp in range(2000)]
    requests = open_trace(trace_file([*rows, "{"])).requests()
    assert [next(requests).id for _ in range(2000)] == list(range(2000))
    with pytest.raises(TraceError, match=r":2001: the last row is cut off"):
        next(requests)
