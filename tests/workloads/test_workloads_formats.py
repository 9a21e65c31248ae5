"""Formats are recognised by content; samples, generators and paths are found by one name."""

import pytest

from workloads import FORMATS, GENERATORS, SAMPLES, TraceError, open_trace, open_workload, sample


def test_samples_are_shipped_with_their_licence():
    for name in SAMPLES:
        assert sample(name).is_file()
    assert "Apache-2.0" in sample("conversation").with_name("README.md").read_text()
    assert "Apache License" in sample("conversation").with_name("LICENSE.Apache-2.0.txt").read_text()


@pytest.mark.parametrize(("name", "format"), [("conversation", "mooncake"), ("claude-code", "weka")])
def test_samples_open_by_name(name, format):
    assert open_trace(name).format == format


def test_the_name_of_a_file_says_nothing(trace_file, mooncake_row):
    assert open_trace(trace_file([mooncake_row()], "claude.weka.csv")).format == "mooncake"


def test_a_file_goes_before_the_sample_of_its_name(trace_file, mooncake_row, monkeypatch):
    path = trace_file([mooncake_row()], "conversation")
    monkeypatch.chdir(path.parent)
    assert len(list(open_trace("conversation").requests())) == 1


def test_unknown_fields_list_the_formats(trace_file):
    with pytest.raises(TraceError, match=r"fields provider, project fit no known format; .*weka.*mooncake"):
        open_trace(trace_file([{"provider": 1, "project": 2}]))


def test_an_unknown_format_lists_the_known_ones(trace_file, mooncake_row):
    with pytest.raises(TraceError, match="unknown trace format 'csv'; known: weka, bailian, mooncake-delta, mooncake"):
        open_trace(trace_file([mooncake_row()]), format="csv")


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_that_is_not_the_files_says_so(trace_file, format):
    with pytest.raises(TraceError):
        list(open_trace(trace_file([{"provider": 1}]), format=format).requests())


@pytest.mark.parametrize("block_tokens", [0, -1, 1 << 30])
def test_bad_block_sizes(block_tokens):
    with pytest.raises(TraceError, match="block_tokens is"):
        open_trace("conversation", block_tokens=block_tokens)


def test_an_unknown_sample():
    with pytest.raises(TraceError, match="unknown sample 'x'; known: conversation, synthetic, claude-code"):
        sample("x")


def test_open_workload_takes_any_name(trace_file, mooncake_row):
    assert open_workload("synthetic").name == "synthetic_trace.jsonl.gz"
    assert open_workload("chat", {"count": "3"}).count == 3
    assert open_workload(str(trace_file([mooncake_row()])), block_tokens=512).format == "mooncake"
    with pytest.raises(TraceError, match=r"no file, sample or generator 'nothing'; .*conversation.*bench-multiturn"):
        open_workload("nothing")
    with pytest.raises(TraceError, match="chat is a generator"):
        open_workload("chat", block_tokens=64)
    with pytest.raises(TraceError, match="conversation is no generator"):
        open_workload("conversation", {"count": 1})


def test_every_workload_says_what_it_is():
    for workload in [*GENERATORS.values(), *map(open_trace, SAMPLES)]:
        assert workload.name
        assert workload.format in (*FORMATS, "generated")
        assert workload.verdict in ("ceil", "floor", "tokens")
        assert workload.block_tokens > 0
