"""Decisions of the real HiRadixCache, recorded: every row of every case comes out the same."""

import gzip
import json
from pathlib import Path

import pytest

from .replay import mismatches

HERE = Path(__file__).parent
PARTS = 4
CHECKED_EVERY = 6


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("name", "cases"), [("hiradix_v0.5.7.jsonl.gz", 120), ("hiradix_l3_v0.5.7.jsonl.gz", 36)])
def test_decisions_are_upstreams(name, cases, part):
    """In every sixth case, the laws are checked after each row too."""
    with gzip.open(HERE / name, "rt") as lines:
        recorded = list(lines)
    assert len(recorded) == cases
    for at in range(part, cases, PARTS):
        assert list(mismatches(json.loads(recorded[at]), check=at // PARTS % CHECKED_EVERY == 0)) == []
