"""The page table of 3FS where upstream's loses pages: writers of the same key, writers that die, a clear meanwhile."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from hicache_ref.data.storage.threefs.table import NO_PAGE, PATIENCE_S, PageTable, Place

KEYS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3, unique=True)


class Writers(RuleBasedStateMachine):
    """Several writers at a time. No page is lost, and none is anybody's twice."""

    reservations = Bundle("reservations")

    @initialize(pages=st.integers(1, 5))
    def start(self, pages):
        self.now_s = 0.0
        self.table = PageTable(pages, lambda: self.now_s)

    @rule(keys=KEYS, target=reservations)
    def reserve(self, keys):
        return list(zip(keys, self.table.reserve(keys), strict=True))

    @rule(reserved=consumes(reservations), fails=st.booleans())
    def confirm(self, reserved, fails):
        new = [(key, page) for key, (known, page) in reserved if not known and page != NO_PAGE]
        written, released = ([], [page for _, page in new]) if fails else ([(k, Place(p)) for k, p in new], [])
        self.table.confirm(written, released)

    @rule(keys=KEYS)
    def delete(self, keys):
        self.table.delete(keys)
        assert not any(self.table.exists(keys))

    @rule()
    def clear(self):
        self.table.clear()

    @rule()
    def wait(self):
        self.now_s += PATIENCE_S + 1

    @rule()
    def restart(self):
        self.table = PageTable.restored(json.loads(json.dumps(self.table.state())))
        self.table._clock = lambda: self.now_s

    @invariant()
    def pages_are_one_each(self):
        state = self.table.state()
        pages = [*state["free_pages"], *(page for _, page in state["key_to_index"])]
        assert sorted(pages) == list(range(state["num_pages"]))


TestWriters = Writers.TestCase
TestWriters.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_without_any_page_there_is_none():
    now_s = [0.0]
    table = PageTable(2, lambda: now_s[0])
    assert table.reserve(["a", "b", "c"]) == [(False, 1), (False, 0), (False, NO_PAGE)]
    now_s[0] = PATIENCE_S + 1
    assert table.reserve(["c"]) == [(False, 1)]  # its writer has died
    table.confirm([("a", Place(1)), ("c", Place(1))], [])
    assert table.exists(["a", "b", "c"]) == [True, False, False]  # or had not: the page is its own again


@given(KEYS)
def test_a_seal_goes_with_its_key(keys):
    table = PageTable(4)
    for key, (_, page) in zip(keys, table.reserve(keys), strict=True):
        table.confirm([(key, Place(page, f"seal of {key}"))], [])
    restored = PageTable.restored(json.loads(json.dumps(table.state())))
    assert [place.seal for place in restored.find(keys)] == [f"seal of {key}" for key in keys]
