"""Numbers as they are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_sim.report import units


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (units.COUNT, 0, "0"),
        (units.COUNT, 9_999, "9,999"),
        (units.COUNT, 12_345, "12.3 k"),
        (units.COUNT, 0.00396, "0.00396"),
        (units.TOKENS, 1_500_000, "1.5 M tok"),
        (units.BYTES, 0, "0 B"),
        (units.BYTES, 2.303e12, "2.3 TB"),
        (units.RATE, 5e9, "5 GB/s"),
        (units.SECONDS, 0.0312, "31.2 ms"),
        (units.SECONDS, 9_000, "9,000 s"),
        (units.SPAN, 439_698, "5.09 d"),
        (units.SHARE, 0.928, "92.8 %"),
        (units.SHARE, 1, "100 %"),
        (units.PLAIN, 20, "20"),
        (units.COUNT, None, "–"),
        (units.COUNT, math.nan, "–"),
    ],
)
def test_written(unit: units.Unit, value: float | None, text: str) -> None:
    assert unit(value).replace("\u202f", " ") == text


@given(st.floats(1e-9, 1e17))
def test_three_digits_are_never_lost(value: float) -> None:
    words = units.BYTES(value).replace(",", "").split("\u202f")
    size = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[words[1]]
    assert float(words[0]) * size == pytest.approx(value, rel=0.006, abs=1e-6)
