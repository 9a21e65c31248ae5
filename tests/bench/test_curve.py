"""The curve benchmark answers what it compares, and notices when answers differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import curve
from benchmarks.measure import Table, Usage, run
from benchmarks.scale import Scale


def test_our_side_answers_for_every_size(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 1024, "output_length": 1, "hash_ids": [at % 3 * 2, at % 3 * 2 + 1]}
        for at in range(12)
    ]
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = run([sys.executable, str(curve.SIDES / "curves.py"), str(trace), "4,6"]).json
    assert found["blocks"] == 24
    # Three prompts in turn: two of them never find each other again, all three always do.
    assert found["hits"]["tree"] == {"4": 0, "6": 18}
    assert found["hits"]["flat"] == {"4": 0, "6": 18}
    assert found["hits"]["last half"] == {"4": 0, "6": 12}
    assert found["hits"]["best of the last half"]["6"] == 12


def test_a_difference_is_no_row() -> None:
    usages = {
        curve.OURS: [Usage(1, 1, 1, json.dumps({"hits": {"tree": {}, "flat": {"16": 5}}}))],
        curve.FLAT: [Usage(1, 1, 1, json.dumps({"hits": {"16": 4}}))],
    }
    with pytest.raises(RuntimeError, match="do not agree"):
        curve._agree(usages, Scale(requests=10), Table("curve", ""))
