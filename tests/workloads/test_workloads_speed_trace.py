"""The speed trace is the same, byte for byte, for ever."""

import hashlib
import json
from itertools import islice

from workloads import SpeedTrace, open_trace
from workloads.speed_trace import SHA256


def test_the_bytes_are_fixed(tmp_path):
    path = tmp_path / "speed.jsonl"
    SpeedTrace().write(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    assert SHA256 == "c763c1d63daec2037fbc133d0ce8d6f422110d0193531edf22bd2c95648498dc"


def test_a_longer_trace_begins_with_the_shorter():
    longer = list(islice(SpeedTrace(count=1_000_000).rows(), 3000))
    assert longer == list(SpeedTrace(count=3000).rows())


def test_the_workload_is_the_file(tmp_path, fingerprint):
    SpeedTrace(count=500).write(tmp_path / "speed.jsonl")
    read = open_trace(tmp_path / "speed.jsonl")
    assert (read.verdict, read.format) == ("ceil", "mooncake")
    assert [*map(fingerprint, read.requests())] == [*map(fingerprint, SpeedTrace(count=500).requests())]


def test_seeds_differ():
    rows = [json.dumps(list(SpeedTrace(count=50, seed=seed).rows())) for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]
