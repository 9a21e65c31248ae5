"""Written Mooncake traces read back as the workload they came from."""

import json

import pytest

from workloads import GENERATORS, OpenLoop, TraceError, generator, open_trace, trace_stats, write_mooncake


def sharing(requests, block_tokens=512):
    """Lengths, and for every pair how many leading blocks they share, by the first request that has each block."""
    first = {}
    rows = []
    for request in requests:
        atoms = request.content.atoms(block_tokens, request.input_tokens // block_tokens)
        blocks = [first.setdefault(atoms[i : i + 8], (request.id, i)) for i in range(0, len(atoms), 8)]
        rows.append((round(request.arrival_s, 3), request.input_tokens, request.output_tokens, blocks))
    return rows


@pytest.mark.parametrize("name", ["chat", "agents", "rag", "documents", "shared-prompts", "bench-multiturn"])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_round_trip(tmp_path, name, suffix):
    small = {"clients": 10} if name == "bench-multiturn" else {"count": 20}
    workload = generator(name, **small)
    path = tmp_path / ("trace" + suffix)
    rows = write_mooncake(workload.requests(OpenLoop()), path)
    back = open_trace(path)
    wrote = sharing(workload.requests(OpenLoop()))
    start_s = wrote[0][0]
    read = sharing(back.requests())
    assert rows == len(read) == len(wrote)
    assert back.verdict in ("ceil", "exact")
    assert [row[1:] for row in read] == [row[1:] for row in wrote]
    assert [row[0] for row in read] == pytest.approx([row[0] - start_s for row in wrote], abs=0.0011)
    stats = [trace_stats(w.requests(OpenLoop()), 512) for w in (workload, back)]
    assert stats[0].hit_tokens == stats[1].hit_tokens


def test_the_shipped_trace_is_written_as_it_was(tmp_path):
    """Ids are renumbered in first-seen order, which is how Mooncake numbered them."""
    write_mooncake(open_trace("synthetic").requests(), tmp_path / "again.jsonl")
    source = open_trace("synthetic").source.head(5_000)
    first = source[0]["timestamp"]
    with open(tmp_path / "again.jsonl") as again:
        for old, new in zip(source, map(json.loads, again), strict=True):
            assert new == old | {"timestamp": old["timestamp"] - first}


def test_unnamed_tails_get_ids_of_their_own(tmp_path):
    path = tmp_path / "claude.jsonl"
    write_mooncake(open_trace("claude-code").requests(OpenLoop()), path, block_tokens=64)
    back = open_trace(path, block_tokens=64)
    assert back.verdict == "ceil"
    before = trace_stats(open_trace("claude-code").requests(), 64)
    after = trace_stats(back.requests(), 64)
    assert before.hit_tokens == after.hit_tokens


def test_the_same_requests_give_the_same_bytes(tmp_path):
    for name in ("one.gz", "two.gz"):
        write_mooncake(generator("chat", count=5).requests(OpenLoop()), tmp_path / name)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_a_closed_loop_is_refused(tmp_path):
    with pytest.raises(TraceError, match="waits for an answer, which Mooncake's format cannot say"):
        write_mooncake(GENERATORS["bench-multiturn"].requests(), tmp_path / "trace.jsonl")


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(TraceError, match="cannot be written"):
        write_mooncake([], tmp_path / "no" / "folder.jsonl")
