"""Reports of several ranks as one plane's, in any interleaving: the rules of planes hold for what is agreed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.control.types import Completion, Progress, Released
from hicache_ref.ranks.agreement import Agreement
from hicache_ref.ranks.council import Council

PAGES = 8


@st.composite
def one_ranks_reports(draw, ops: list[int]):
    """What one rank says of `ops`, which end in that order; where a call hangs, the pages are let go at some time."""
    said, later = [], []
    for op in ops:
        steps = sorted(draw(st.lists(st.integers(1, PAGES), max_size=3, unique=True)))
        said += [Progress(op, pages) for pages in steps]
        good = draw(st.integers(steps[-1] if steps else 0, PAGES))
        lingers = draw(st.booleans())
        said.append(Completion(op, good, lingers or draw(st.booleans()), lingers))
        if lingers:
            later.append(Released(op))
        if later and draw(st.booleans()):
            said.append(later.pop())
    return said + later


@st.composite
def interleavings(draw):
    """(ranks, ops, [(rank, report)]): each rank's reports in its order."""
    size, ops = draw(st.integers(2, 4)), list(range(draw(st.integers(1, 4))))
    streams = {rank: draw(one_ranks_reports(ops)) for rank in range(size)}
    said = []
    while streams:
        rank = draw(st.sampled_from(sorted(streams)))
        said.append((rank, streams[rank].pop(0)))
        if not streams[rank]:
            del streams[rank]
    return size, ops, said


@settings(max_examples=50)
@given(interleavings())
def test_agreed_reports_keep_the_rules_of_planes(case):
    size, ops, said = case
    agreement = Agreement(size)
    told: dict[int, list] = {op: [] for op in ops}
    order = []
    for rank, report in said:
        agreed = agreement.tell(rank, report)
        if agreed is not None:
            told[agreed.op_id].append(agreed)
            order += [agreed.op_id] if agreed.ends else []
    assert order == ops, "all ranks have ended them in this order"
    assert agreement.open == 0
    for op in ops:
        ends = [report for _, report in said if isinstance(report, Completion) and report.op_id == op]
        (end,) = [report for report in told[op] if report.ends]
        assert end.pages_ok == min(each.pages_ok for each in ends)
        assert end.failed == any(each.failed for each in ends)
        before, after = told[op][: told[op].index(end)], told[op][told[op].index(end) + 1 :]
        assert after == ([Released(op)] if end.lingers else [])
        pages = [report.pages_ok for report in before]
        assert all(isinstance(report, Progress) for report in before)
        assert pages == sorted(set(pages)) and all(each <= end.pages_ok for each in pages)


@settings(max_examples=50)
@given(interleavings())
def test_nothing_is_agreed_before_all_have_said_it(case):
    size, _, said = case
    agreement, ended, good = Agreement(size), {}, {}
    for rank, report in said:
        if isinstance(report, Completion):
            ended.setdefault(report.op_id, set()).add(rank)
        if not isinstance(report, Released):
            good.setdefault(report.op_id, [0] * size)[rank] = report.pages_ok
        agreed = agreement.tell(rank, report)
        if isinstance(agreed, Completion):
            assert len(ended[report.op_id]) == size
        if isinstance(agreed, Progress):
            assert agreed.pages_ok <= min(good[report.op_id])


def council(size: int = 3) -> Council:
    return Council(size, lambda rank: f"rank {rank}")


def test_ranks_that_part_are_named():
    """Law L9."""
    ours = council()
    for rank in (2, 0, 1):
        ours.hear(rank, "mark", 0, "same") if rank else ours.mark(0, 0, "same")
    assert ours.failure is None
    ours.hear(1, "mark", 64, "this")
    ours.mark(0, 64, "that")
    assert ours.failure == "rank 1: has decided otherwise than rank 0 by round 64 (L9)"


def test_a_death_explains_what_it_made_others_say():
    ours = council()
    ours.hear(1, "report", Completion(5, 0, True), "COMPUTE 5 has failed: connection lost")
    assert ours.failure == "rank 1: COMPUTE 5 has failed: connection lost"
    ours.died_of(2, "killed by SIGKILL")
    ours.died_of(1, "exit code 1")
    assert ours.failure == "rank 2 died: killed by SIGKILL"
    assert not ours.has_news
