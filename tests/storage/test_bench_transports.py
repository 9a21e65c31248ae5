"""The benchmark of transports: every side of a store brings back what it kept."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks import transports  # noqa: E402

from .bench import bring_back  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # SGLang's own reading


@pytest.mark.parametrize("name", ["nixl", "hf3fs", "aibrix"])
def test_all_sides_bring_back_what_they_kept(name, tmp_path):
    store = transports.TRANSPORTS[name]
    if lacks := store.lacks():
        pytest.skip(f"no {lacks} here")
    if not transports.upstream_is_here():
        store = transports.without_upstream(store)
    bring_back(store, tmp_path)


def test_without_the_wheel_its_classes_are_left_out():
    store = transports.without_upstream(transports.TRANSPORTS["hf3fs"])
    assert "upstream" not in store.sides and {"ours", "raw"} <= set(store.sides)
