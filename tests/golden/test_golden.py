"""Decisions of the real HiRadixCache, recorded: every row of every case comes out the same."""

from pathlib import Path

import pytest

from .replay import mismatches, read

HERE = Path(__file__).parent
FILES = [("hiradix_v0.5.7.jsonl.gz", 120, 4), ("hiradix_l3_v0.5.7.jsonl.gz", 36, 8)]
PARTS = 4
CHECKED_EVERY = 6


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("name", "cases", "_"), FILES)
def test_decisions_are_upstreams(name, cases, part, _):
    """Of every sixth case, the laws are checked after each row too."""
    seen = 0
    for at, case in enumerate(read(str(HERE / name))):
        seen += 1
        if at % PARTS == part:
            assert list(mismatches(case, check=at % CHECKED_EVERY == part)) == []
    assert seen == cases
