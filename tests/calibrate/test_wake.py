"""What a pause costs: the curve that made the figures comes back, and nothing costs nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.calibrate.wake import HALVES_S, PAUSES_S, fitted

PAUSES = [pause for pause in PAUSES_S if pause]


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-4, 0.1), st.floats(HALVES_S[0], HALVES_S[-1]))
def test_the_curve_comes_back(most_s, half_s):
    extra = {pause: most_s * pause / (pause + half_s) for pause in PAUSES}
    found = fitted(extra)
    assert [found.at(pause) for pause in PAUSES] == pytest.approx(list(extra.values()), rel=0.1)
    assert found.at(0.0) == 0.0


def test_a_device_that_never_sleeps():
    found = fitted(dict.fromkeys(PAUSES, 0.0))
    assert found.most_s == 0.0 and found.at(10.0) == 0.0
