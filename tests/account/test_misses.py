"""What became of pages: both tables against a dict, and what they forget."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_ref.account.misses import DenseFates, SparseFates
from hicache_ref.config.server_args import ServerArgs
from hicache_sim.api import Options, replay
from hicache_sim.build import RunConfig

STORED = 128
ids = st.lists(st.integers(-3, 200_000), max_size=8)
notes = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(-3, 200_000), st.integers(1, 2)), max_size=8), ids), max_size=12
)


def atoms(numbers: list[int]) -> bytes:
    return array("q", numbers).tobytes()


class Plain:
    """The last code of a page, and whether it has been stored. Pages of nobody else are not kept."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.stored: set[int] = set()

    def code(self, page: int) -> int:
        return 0 if page < 0 else self.codes.get(page, 0) | (STORED if page in self.stored else 0)


@pytest.mark.parametrize("kind", [DenseFates, SparseFates])
@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(story=notes, asked=st.lists(st.integers(-3, 300_000), min_size=1, max_size=6))
def test_codes_are_the_last_that_were_noted(kind: Any, story, asked):
    fates, plain = kind(), Plain()
    for lost, stored in story:
        if not lost and not stored:
            continue
        fates.note(atoms([page for page, _ in lost]), bytes(code for _, code in lost), atoms(stored))
        plain.codes |= dict(lost)
        plain.stored |= set(stored)
        for pages in (asked, [page for page, _ in lost] + asked, stored + asked):
            codes = [plain.code(page) for page in pages]
            answer = list(fates.get(atoms(pages)))
            known = codes.index(0) if 0 in codes else len(codes)
            assert answer[:known] == codes[:known]
            assert known == len(codes) or answer[known] == 0


def test_old_pages_are_forgotten_at_last():
    fates = DenseFates(most=1 << 17)
    fates.note(atoms([5, 70_000]), b"\1\2", atoms([6]))
    assert [fates.get(atoms([page])) for page in (5, 6, 70_000)] == [b"\1", b"\x80", b"\2"]
    fates.note(atoms([140_000]), b"\1", b"")
    assert [fates.get(atoms([page])) for page in (5, 6)] == [b"\0", b"\0"]
    assert fates.get(atoms([70_000, 140_000])) == b"\2\1"
    fates.note(atoms([10]), b"\1", atoms([11]))
    assert [fates.get(atoms([page])) for page in (10, 11)] == [b"\0", b"\0"]


@pytest.mark.parametrize(
    ("policy", "why"), [("write_through", "write to L3 unfinished"), ("write_back", "evicted from L2")]
)
def test_where_nothing_goes_to_the_store_no_write_is_unfinished(policy: str, why: str):
    """v0.5.7 forgets what write_back has copied; elsewhere it may be the store that did not take it."""
    args = ServerArgs(
        page_size=64, max_total_tokens=20_000, hicache_write_policy=policy, hicache_storage_backend="file"
    )
    result = replay("chat", None, Options(limit=150), RunConfig(args, faults=("refuse:0:1000000",)))
    reasons = ("write to L3 unfinished", "evicted from L2")
    assert [each for each in reasons if result.summary["misses"][each]] == [why]
