"""Admission, chunks, order and retraction, each rule of upstream's scheduler in numbers worked out by hand."""

from __future__ import annotations

import pytest

from hicache_ref.control.active import Active, Stage
from hicache_ref.control.batches import Decode, Prefill
from hicache_ref.control.budget import SchedulerLimits
from hicache_ref.control.types import OpKind
from hicache_ref.policy.schedule import SCHEDULE
from hicache_ref.testing.engine_machine import EngineMachine, EngineSetup
from hicache_ref.testing.session import Setup


class Bench(EngineMachine):
    """A machine whose prompts are all different unless given, and whose batches are easy to read."""

    def __init__(self, pages: int = 100, page: int = 1, l2: int = 0, schedule: str = "fcfs", **limits) -> None:
        write, keys = ("write_through" if l2 else "none"), limits.pop("keys", "atoms")
        cache = Setup(write=write, page_tokens=page, l1_pages=pages, l2_pages=l2, keyspace=keys)
        lag = int("pairs" in keys)
        given = {"max_prefill_tokens": 10_000, "chunked_prefill_tokens": None, "key_lag_tokens": lag} | limits
        super().__init__(EngineSetup(cache, SchedulerLimits(**given), schedule))
        self._next_token = 1000

    def fresh(self, count: int) -> list[int]:
        self._next_token += count
        return list(range(self._next_token - count, self._next_token))

    def ask(self, prompt: int | list[int], output: int, longest: int | None = None) -> int:
        """A request for `output` tokens after a prompt, or after so many tokens nobody has seen."""
        tokens = self.fresh(prompt) if isinstance(prompt, int) else prompt
        return self.arrive(tokens, self.fresh(output), longest)

    def go(self) -> dict[int, tuple[int, int]] | int | None:
        """A step: what is computed next. A prefill: spans by request. A decode: steps."""
        self.step()
        self.pump()
        batch = self.engine.batch
        if isinstance(batch, Prefill):
            return dict(zip([request.id for request in batch.requests], batch.spans, strict=True))
        return batch.steps if isinstance(batch, Decode) else None

    def done(self, steps: int | None = None) -> None:
        """All transfers end, then the batch does."""
        for op_id in [*self.in_flight(OpKind.LOAD, OpKind.BACKUP), *self.in_flight(OpKind.COMPUTE)]:
            self.complete(op_id, steps)

    def serve(self, prompt: int | list[int], output: int) -> int:
        """A whole life."""
        number = self.ask(prompt, output)
        while number in self.live:
            self.go()
            self.done()
        self.go()
        return number


# Budgets: the verdicts of `add_one_req`


def test_all_outputs_must_fit_as_estimated():
    """100 tokens; one request holds 20 and will take 0.7 x 29 more: 59.7 are left for prompt and output of another."""
    for prompt, admitted in ((30, True), (31, False)):
        bench = Bench()
        first = bench.ask(20, 30)
        assert bench.go() == {first: (0, 20)}
        second = bench.ask(prompt, 29)
        bench.done()
        assert bench.go() == ({second: (0, prompt)} if admitted else 29)
        assert bench.scheduler.full is not admitted


def test_a_new_request_is_reserved_its_whole_output_in_its_own_batch():
    """The ratio is for those that run already: beside one just admitted, all it may generate counts."""
    for output, together in ((29, True), (30, False)):
        bench = Bench()
        bench.ask(20, 40)
        bench.ask(10, output)
        assert len(bench.go()) == (2 if together else 1)


def test_equal_to_what_is_left_is_too_much():
    bench = Bench()
    first, _ = bench.ask(20, 30), bench.ask(20, 30)  # 50 of the 50 that are left
    assert list(bench.go()) == [first]
    assert bench.scheduler.full


def test_estimates_are_clipped_and_outputs_are_not():
    bench = Bench(pages=20_000, init_new_token_ratio=1.0, schedule_conservativeness=1.0)
    first = bench.ask(100, 5000)
    bench.go()
    # 19,900 are free; 4,096 of them are reserved, not 4,999.
    fits, too_long = bench.ask(15_000, 803), bench.ask(1, 1)
    bench.done()
    assert list(bench.go()) == [fits]
    assert bench.live[too_long].stage is Stage.WAITING
    bench.done()
    while first in bench.live:
        bench.go()
        bench.done()
    assert bench.ended[-1].produced == 5000


def test_prefill_tokens_bound_a_batch_but_not_its_first_request():
    for second, together in ((11, True), (12, False)):
        bench = Bench(pages=1000, max_prefill_tokens=32)
        bench.ask(20, 5)
        bench.ask(second, 5)
        assert len(bench.go()) == (2 if together else 1)
        assert not bench.scheduler.full
    bench = Bench(pages=1000, max_prefill_tokens=32)
    alone = bench.ask(500, 5)
    assert bench.go() == {alone: (0, 500)}


def test_prefill_tokens_are_counted_in_whole_pages():
    bench = Bench(pages=100, page=4, max_prefill_tokens=16)
    bench.ask(9, 5)  # three pages: 12
    bench.ask(1, 5)  # one page: 4, and 4 are left
    assert len(bench.go()) == 1


def test_a_batch_that_has_used_up_its_tokens_stops():
    """Neither budget is exceeded by the next request, for it is not even asked."""
    bench = Bench(pages=1000, chunked_prefill_tokens=32)
    bench.ask(32, 5)
    bench.ask(1, 5)
    assert len(bench.go()) == 1


def test_no_more_run_than_may():
    bench = Bench(max_running_requests=2)
    ids = [bench.ask(3, 4) for _ in range(3)]
    assert list(bench.go()) == ids[:2]
    assert bench.scheduler.full
    bench.done()
    assert bench.go() == 3
    bench.done()
    assert list(bench.go()) == ids[2:]


def test_found_on_the_device_is_free_and_one_token_is_computed_all_the_same():
    bench = Bench(pages=20, page=4)
    prompt = bench.fresh(16)
    bench.serve(prompt, 1)
    again = bench.ask(prompt, 1)
    # The last page is computed again, although it is there: a prefill has to have a token to compute.
    assert bench.go() == {again: (12, 4)}


def test_pages_of_pairs_are_named_a_token_later():
    """EAGLE: 16 tokens are 15 pairs, so the fourth page of 4 is not whole yet, nor can 13 tokens find the third."""
    bench = Bench(pages=20, page=4, keys="atom pairs")
    prompt = bench.fresh(16)
    bench.serve(prompt, 1)
    assert bench.cache.tree.evictable == 3
    for length, found in ((16, 12), (14, 12), (13, 8), (10, 8), (9, 4)):
        again = bench.ask(prompt[:length], 1)
        assert bench.go() == {again: (found, length - found)}
        bench.done()


# Chunks


def test_a_long_prompt_comes_in_chunks_and_others_fill_the_last_one():
    bench = Bench(pages=1000, chunked_prefill_tokens=32)
    long, short = bench.ask(70, 5), bench.ask(20, 5)
    assert bench.go() == {long: (0, 32)}
    bench.done()
    assert bench.go() == {long: (32, 32)}
    bench.done()
    assert bench.go() == {long: (64, 6), short: (0, 20)}
    assert [bench.live[each].chunks for each in (long, short)] == [3, 1]
    assert bench.live[long].computed_tokens == 70


def test_chunks_end_at_pages_and_a_rest_below_a_page_is_left():
    bench = Bench(pages=100, page=4, chunked_prefill_tokens=10)
    long, other = bench.ask(21, 2), bench.ask(1, 2)
    assert bench.go() == {long: (0, 8)}
    bench.done()
    assert bench.go() == {long: (8, 10)}  # a chunk that goes on takes all, whether a page ends there or not
    bench.done()
    assert bench.go() == {long: (18, 3), other: (0, 1)}


def test_two_prompts_are_never_cut_at_once():
    bench = Bench(pages=1000, chunked_prefill_tokens=32)
    first, second = bench.ask(40, 2), bench.ask(40, 2)
    assert bench.go() == {first: (0, 32)}
    bench.done()
    assert bench.go() == {first: (32, 8), second: (0, 24)}
    bench.done()
    assert bench.go() == {second: (24, 16)}


def test_a_chunked_prompt_goes_on_while_others_decode_and_however_full_the_batch_is():
    bench = Bench(pages=100, chunked_prefill_tokens=16, max_running_requests=2)
    running = bench.ask(8, 30)
    bench.go()
    long = bench.ask(40, 2)
    bench.done()
    assert bench.go() == {long: (0, 16)}
    waits = bench.ask(1, 1)
    bench.done()
    assert bench.go() == {long: (16, 16)}
    bench.done()
    assert bench.go() == {long: (32, 8)}
    bench.done()
    assert bench.go() == 1  # both run now, and nobody else may
    assert bench.live[waits].stage is Stage.WAITING
    assert bench.live[running].stage is Stage.DECODE


def test_a_chunked_prompt_is_cut_to_what_is_left():
    """76 tokens are free, 45 of the first request to come. What is left after a share of them bounds a chunk, but if
    nothing is left the prompt goes on in whole chunks, for it holds memory."""
    for ratio, chunk in ((1.0, 16), (1.5, 8), (2.0, 16)):
        bench = Bench(pages=100, chunked_prefill_tokens=16, schedule_conservativeness=0.0)
        bench.ask(8, 46)
        bench.go()
        long = bench.ask(40, 2)
        bench.done()
        assert bench.go() == {long: (0, 16)}
        bench.scheduler.new_token_ratio = ratio
        bench.done()
        assert bench.go() == {long: (16, chunk)}


# `batch_is_full`


def test_a_request_that_ends_at_its_first_token_makes_room():
    bench = Bench()
    running = bench.ask(10, 40)
    bench.go()
    bench.done()
    short, waits = bench.ask(30, 1), bench.ask(29, 30)
    assert bench.go() == {short: (0, 30)}
    assert bench.scheduler.full
    bench.done()
    assert bench.go() == {waits: (0, 29)}
    assert list(bench.live) == [running, waits]


def test_the_first_batch_of_all_does_not_fill_the_engine():
    """What it reserved in full is an estimate once it runs, so the next may be let in at once."""
    bench = Bench()
    first, second = bench.ask(20, 50), bench.ask(20, 20)
    assert bench.go() == {first: (0, 20)}
    assert bench.scheduler.full
    bench.done()
    assert bench.go() == {second: (0, 20)}


def test_later_batches_do():
    bench = Bench(schedule_conservativeness=0.1)
    first = bench.ask(10, 20)
    bench.go()
    second, third = bench.ask(20, 50), bench.ask(20, 20)
    bench.done()
    assert bench.go() == {second: (0, 20)}
    bench.done()
    assert bench.scheduler.full
    assert bench.go() == 19  # until one ends, although by estimate the third would fit
    bench.done()
    assert first not in bench.live or bench.go() == {third: (0, 20)}


# Too long


@pytest.mark.parametrize(("pages", "page", "context"), [(100, 1, None), (25, 4, None), (1000, 1, 100)])
def test_prompts_that_can_never_run_are_rejected(pages, page, context):
    """`max_req_len` is 99, `max_req_input_len` 94, and a prompt of 94 is too long."""
    bench = Bench(pages=pages, page=page, context_tokens=context)
    assert bench.scheduler.longest_prompt_tokens() == 93
    fits, too_long = bench.ask(93, 1), bench.ask(94, 1)
    assert [request.id for request in bench.ended] == [too_long]
    assert bench.ended[0].stage is Stage.REJECTED
    assert bench.go() == {fits: (0, 93)}


def test_outputs_are_cut_to_what_fits():
    bench = Bench(pages=100)
    number = bench.ask(90, 50, longest=60)
    assert (bench.live[number].max_new_tokens, bench.live[number].output_tokens) == (8, 8)
    bench.go()
    bench.done()
    assert bench.go() == 7
    bench.done()
    bench.go()
    assert bench.ended[0].produced == 8


# Decode, and sending back


def test_decode_runs_until_the_first_ends():
    bench = Bench()
    bench.ask(5, 10)
    bench.ask(5, 4)
    bench.go()
    bench.done()
    assert bench.go() == 3
    bench.done(2)
    assert bench.go() == 1
    bench.done()
    assert bench.go() == 6


def test_decode_stops_where_the_reserve_of_a_page_a_request_ends():
    """12 pages of 4; two requests of 2 pages and a token: 6 pages are free, and before each step 2 have to be."""
    bench = Bench(pages=12, page=4, schedule_conservativeness=0.0)
    for _ in range(2):
        bench.ask(9, 19)
        bench.go()
        bench.done()
    # New pages are needed after 3, 7 and 11 steps, two each: the last of them with 2 free, then none are left.
    assert bench.go() == 12
    bench.done()
    assert bench.cache.l1.free == 0
    assert bench.go() == 3


def test_the_request_with_the_least_output_goes_back_and_the_ratio_rises():
    """Three requests, 30 pages of a token: the youngest has made least, and of two alike the longest prompt goes."""
    bench = Bench(pages=30, schedule_conservativeness=0.0, retract_decode_steps=5, chunked_prefill_tokens=100)
    old = bench.ask(5, 20)
    bench.go()
    bench.done()
    bench.go()
    young = bench.ask(6, 10)
    bench.done(3)
    assert bench.go() == {young: (0, 6)}
    younger = bench.ask(7, 8)
    bench.done()
    assert bench.go() == {younger: (0, 7)}
    bench.done()
    # 21 tokens are taken, by three requests: after three steps none is left.
    assert bench.go() == 3
    bench.done()
    assert bench.go() == 1
    assert bench.live[younger].stage is Stage.WAITING
    assert bench.live[younger].retractions == bench.scheduler.retracted == 1
    # (7 + 4 made, 5 steps for each of two) / (20 + 10 wanted, and one)
    assert bench.scheduler.new_token_ratio == pytest.approx((7 + 4 + 10) / 31)
    assert [request.id for request in bench.scheduler.running] == [old, young]


def test_of_two_with_equal_output_the_longer_prompt_goes_back():
    bench = Bench(pages=30, schedule_conservativeness=0.0, retract_decode_steps=5)
    bench.ask(5, 20)
    bench.go()
    bench.done()
    long, short = bench.ask(8, 10), bench.ask(6, 10)
    bench.scheduler.full = False
    for request in (long, short):
        bench.live[request].max_new_tokens = 2
    assert set(bench.go()) == {long, short}
    bench.done()
    while not bench.scheduler.retracted:
        bench.go()
        bench.done()
    assert bench.live[long].retractions == 1
    assert bench.live[short].retractions == 0


def test_one_alone_is_never_sent_back():
    bench = Bench(pages=20)
    number = bench.ask(10, 8)
    while number in bench.live:
        bench.go()
        bench.done()
    assert bench.ended[0].stage is Stage.DONE
    assert not bench.scheduler.retracted


def test_a_request_sent_back_goes_on_where_it_was():
    bench = Bench(pages=24, schedule_conservativeness=0.0, retract_decode_steps=1)
    first = bench.ask(6, 10)
    bench.go()
    bench.done()
    second = bench.ask(7, 9)
    bench.drain()
    done = {request.id: request for request in bench.ended}
    assert done[second].retractions
    assert [done[each].produced for each in (first, second)] == [10, 9]
    assert done[second].computed_tokens > 7  # it computed again what nobody had kept


def test_the_ratio_falls_step_by_step_to_its_floor():
    bench = Bench(new_token_ratio_decay_steps=10)
    bench.ask(5, 30)
    bench.go()
    bench.done()
    decay = (0.7 - 0.7 * 0.14) / 10
    assert bench.scheduler.new_token_ratio == pytest.approx(0.7)
    bench.go()
    bench.done(4)
    bench.go()  # and the next step, which has begun
    assert bench.scheduler.new_token_ratio == pytest.approx(0.7 - 5 * decay)
    bench.done(20)
    bench.go()
    assert bench.scheduler.new_token_ratio == pytest.approx(0.7 * 0.14)


def test_the_ratio_starts_as_conservative_as_asked():
    assert Bench(schedule_conservativeness=0.5).scheduler.new_token_ratio == pytest.approx(0.35)
    assert Bench(schedule_conservativeness=2.0).scheduler.new_token_ratio == 1.0


# Going away


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.PREFILL, Stage.DECODE])
def test_aborts_end_a_request_wherever_it_is(stage):
    bench = Bench(chunked_prefill_tokens=8)
    stays = bench.ask(4, 20)
    bench.go()
    bench.done()
    goes = bench.ask(6, 9)
    if stage is not Stage.WAITING:
        bench.go()
    if stage is Stage.DECODE:
        bench.done()
        bench.go()
    bench.abort(goes)
    assert (goes in bench.live) == (stage is not Stage.WAITING)
    bench.drain()
    ends = {request.id: request.stage for request in bench.ended}
    assert ends == {stays: Stage.DONE, goes: Stage.ABORTED}


def test_an_aborted_prompt_that_is_partly_computed_has_made_no_token():
    bench = Bench(chunked_prefill_tokens=8)
    goes = bench.ask(30, 9)
    bench.go()
    bench.abort(goes)
    bench.done()
    bench.go()
    (request,) = bench.ended
    assert (request.produced, request.first_token_s, request.computed_tokens) == (0, -1.0, 8)
    assert bench.cache.tree.evictable == 8
    bench.drain()


def test_an_abort_stops_a_long_decode():
    bench = Bench()
    goes = bench.ask(5, 50)
    bench.go()
    bench.done()
    bench.go()
    bench.abort(goes)
    bench.pump()
    assert bench.ops[-1] == ("cancel", bench.in_flight(OpKind.COMPUTE)[0])
    bench.done(7)
    bench.go()
    assert bench.ended[0].produced == 8


# Order


def order(bench: Bench, waiting: list[Active], schedule: str) -> list[int]:
    queue = list(waiting)
    SCHEDULE.make(schedule).order(queue, bench.cache)
    return [request.id for request in queue]


def test_first_come_first_served_and_longest_output_first():
    bench = Bench(pages=500)
    waiting = [bench.live[bench.ask(5, output, longest)] for output, longest in ((3, None), (1, 9), (7, None), (1, 9))]
    assert order(bench, waiting, "fcfs") == [0, 1, 2, 3]
    assert order(bench, waiting, "lof") == [1, 3, 2, 0]
    assert not SCHEDULE.make("fcfs").reorders


def test_longest_prefix_goes_first():
    bench = Bench(pages=500)
    short, long = bench.fresh(10), bench.fresh(60)
    bench.serve(short, 1)
    bench.serve(long, 1)
    waiting = [bench.live[bench.ask(prompt, 1)] for prompt in (bench.fresh(9), short, long, long[:40])]
    first = waiting[0].id
    assert order(bench, waiting, "lpm") == [first + 2, first + 3, first + 1, first]


def test_of_requests_that_share_an_uncached_prefix_one_goes_first():
    """32 tokens shared are enough to wait; 31 are not. What is on the device already need not be waited for."""
    bench = Bench(pages=1000)
    cached, shared = bench.fresh(40), bench.fresh(32)
    bench.serve(cached, 1)
    prompts = [
        shared + bench.fresh(5),
        shared + bench.fresh(5),
        shared[:31] + bench.fresh(5),
        cached + bench.fresh(5),
        cached + bench.fresh(5),
    ]
    waiting = [bench.live[bench.ask(prompt, 1)] for prompt in prompts]
    first = waiting[0].id
    assert order(bench, waiting, "lpm") == [first + 3, first + 4, first, first + 2, first + 1]


def test_with_many_waiting_longest_prefix_is_first_come():
    bench = Bench(pages=2000)
    cached = bench.fresh(50)
    bench.serve(cached, 1)
    waiting = [bench.live[bench.ask(3, 1)] for _ in range(128)] + [bench.live[bench.ask(cached, 1)]]
    assert order(bench, waiting, "lpm") == [request.id for request in waiting]
    assert order(bench, waiting[1:], "lpm")[0] == waiting[-1].id


# Loads


def test_what_is_on_the_host_is_loaded_and_feeds_the_batch():
    bench = Bench(pages=40, page=4, l2=80)
    prompt = bench.fresh(40)
    bench.serve(prompt, 1)
    bench.serve(bench.fresh(130), 1)
    again = bench.ask(prompt, 1)
    spans = bench.go()
    assert spans == {again: (36, 4)}
    loads = bench.in_flight(OpKind.LOAD)
    batch = bench.engine.batch
    assert isinstance(batch, Prefill)
    assert batch.loads == tuple(loads)
    request = bench.live[again]
    found = (request.device_hit_tokens, request.host_hit_tokens, request.loaded_tokens)
    assert sum(found[:2]) == 36
    assert found[1] == found[2] > 0
    bench.done()
    bench.drain()


def test_a_batch_waits_for_every_load_in_flight():
    """The second request matches what the first one's load is still bringing."""
    bench = Bench(pages=40, page=4, l2=80)
    prompt = bench.fresh(40)
    bench.serve(prompt, 1)
    bench.serve(bench.fresh(130), 1)
    first = bench.ask(prompt, 1)
    bench.go()
    (load,) = bench.in_flight(OpKind.LOAD)
    second = bench.ask(prompt, 1)
    bench.complete(load)
    bench.done()
    spans = bench.go()
    assert spans == {second: (36, 4)}
    assert first not in bench.live
