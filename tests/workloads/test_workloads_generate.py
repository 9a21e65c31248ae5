"""Generators: the same seed gives the same bytes, ids are prefix-unique, answers come back in the next prompt."""

import subprocess
import sys
import tracemalloc
from dataclasses import fields
from itertools import islice, pairwise

import pytest

from workloads import GENERATORS, OpenLoop, TraceError, generator, parameters_of, trace_stats

# Every generator, small enough to spell out token by token.
SMALL = {
    "chat": {"count": 12, "system_prompts": 3, "system_tokens": 40, "first_tokens": 30, "answer_tokens": 9},
    "shared-prompts": {"count": 40, "system_prompts": 4, "system_tokens": 40, "question_tokens": 9},
    "agents": {
        "count": 6,
        "kinds": 2,
        "system_tokens": 60,
        "sub_system_tokens": 40,
        "spawn_chance": 0.4,
        "task_tokens": 9,
        "result_tokens": 9,
        "answer_tokens": 5,
        "summary_tokens": 7,
    },
    "rag": {"count": 80, "documents": 5, "document_tokens": 30, "per_prompt": 3, "system_tokens": 10},
    "documents": {"count": 8, "document_tokens": 200, "system_tokens": 20, "question_tokens": 9, "answer_tokens": 9},
    "speed": {"count": 60},
    "bench-multiturn": {"clients": 7, "rounds": 4, "new_tokens": 20, "answer_tokens": 3},
    "issue-33984": {"clients": 5, "rounds": 3, "new_tokens": 20},
}
VARIANTS = [
    *SMALL.items(),
    ("rag", {**SMALL["rag"], "stable_order": True}),
    ("documents", {**SMALL["documents"], "keep_history": True}),
]


def small(name):
    return generator(name, **SMALL[name])


def test_every_generator_has_a_small_twin_here():
    assert set(SMALL) == set(GENERATORS)


@pytest.mark.parametrize(("name", "parameters"), VARIANTS)
def test_ids_are_prefix_unique(name, parameters, token_ids):
    """An id always stands at one place behind one other id; by induction it names everything up to it."""
    before = {}
    for request in generator(name, **parameters).requests():
        ids = token_ids(request)
        assert len(ids) == request.content_tokens >= request.input_tokens
        for position, (previous, here) in enumerate(pairwise([None, *ids])):
            assert before.setdefault(here, (position, previous)) == (position, previous)


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_requests(name, fingerprint):
    one, two = ([*map(fingerprint, small(name).requests())] for _ in range(2))
    assert one == two
    other = [*map(fingerprint, generator(name, **SMALL[name], seed=99).requests())]
    assert one != other


@pytest.mark.parametrize("name", SMALL)
def test_the_schedule_changes_times_only(name):
    def content(schedule):
        requests = small(name).requests(schedule)
        return sorted((r.content.atoms(1, r.content_tokens), r.input_tokens, r.output_tokens) for r in requests)

    assert content(None) == content(OpenLoop()) == content(OpenLoop(speed=3, spread=True))


@pytest.mark.parametrize("name", SMALL)
def test_streams_are_in_order_and_linked_backwards(name):
    for schedule in (None, OpenLoop()):
        requests = list(small(name).requests(schedule))
        assert [request.id for request in requests] == list(range(len(requests)))
        assert all(one.arrival_s <= two.arrival_s for one, two in pairwise(requests))
        for request in requests:
            assert request.output_tokens >= 1
            if request.parent is not None:
                assert request.parent < request.id
                assert requests[request.parent].session == request.session


@pytest.mark.parametrize("name", ["chat", "documents", "bench-multiturn"])
def test_the_next_prompt_contains_the_answer(name, token_ids):
    parameters = SMALL[name] | ({"keep_history": True} if name == "documents" else {})
    requests = list(generator(name, **parameters).requests())
    followed = [request for request in requests if request.parent is not None]
    assert followed
    for request in followed:
        before = requests[request.parent]
        assert token_ids(request)[: before.content_tokens] == token_ids(before)
        assert before.content_tokens == before.input_tokens + before.output_tokens < request.input_tokens


def test_system_prompts_are_shared_and_popular_ones_more_often(token_ids):
    workload = generator("shared-prompts", count=300, system_prompts=5, system_tokens=10, sigma=0, zipf_exponent=1)
    firsts = [token_ids(request)[0] for request in workload.requests()]
    counts = [firsts.count(first) for first in sorted(set(firsts))]
    assert len(counts) == 5
    assert counts[0] == pytest.approx(300 / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5), rel=0.25)


def test_lengths_without_spread_are_the_means():
    workload = generator("chat", count=3, sigma=0, system_tokens=100, first_tokens=50, next_tokens=7, answer_tokens=5)
    for request in workload.requests():
        if request.parent is None:
            assert (request.input_tokens, request.output_tokens) == (150, 5)
        else:
            assert (request.input_tokens - 150) % 12 == 0


@pytest.mark.parametrize("mean", [3, 40, 1000])
def test_lengths_keep_their_mean(mean):
    workload = generator("shared-prompts", count=20_000, system_tokens=0, question_tokens=mean, answer_tokens=1)
    lengths = [request.input_tokens for request in workload.requests()]
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.05)


def test_documents_share_only_behind_the_same_documents(token_ids):
    requests = list(generator("rag", **SMALL["rag"], sigma=0).requests())
    paths = {}
    for request in requests:
        ids = token_ids(request)
        paths.setdefault((ids[10], ids[40]), set()).add(ids[70])
    assert len({first for first, _ in paths}) <= 5
    assert len(paths) > 5, "the second document depends on the first"
    in_order = trace_stats(generator("rag", **SMALL["rag"], stable_order=True).requests(), 1)
    as_ranked = trace_stats(generator("rag", **SMALL["rag"]).requests(), 1)
    assert in_order.hit_tokens > as_ranked.hit_tokens


def test_an_agent_goes_on_after_its_slowest_sub_agent():
    requests = list(small("agents").requests(OpenLoop()))
    parents = list(small("agents").requests())
    children = {}
    for request in parents:
        children.setdefault(request.parent, []).append(request)
    spawned = [group for parent, group in children.items() if parent is not None and len(group) > 1]
    assert spawned, "some step sends out several sub-agents"
    assert len(requests) == len(parents)


def test_bench_multiturn_is_the_script():
    requests = list(GENERATORS["bench-multiturn"].requests())
    assert (len(requests), GENERATORS["bench-multiturn"].max_parallel) == (256 * 5, 128)
    rounds = {}
    for request in requests:
        rounds[request.session] = rounds.get(request.session, 0) + 1
        done = rounds[request.session]
        assert request.input_tokens == done * 512 + (done - 1) * 64
        assert (request.output_tokens, request.wave) == (64, 0)
    assert requests[-1].arrival_s == pytest.approx(1280, rel=0.1)
    order = [request.session for request in requests]
    assert order[:256] != list(range(256))


def test_fifo_takes_clients_in_turn():
    order = [r.session for r in generator("bench-multiturn", clients=3, rounds=2, random_order="no").requests()]
    assert order == [0, 1, 2, 0, 1, 2]


def test_issue_33984_has_the_printed_hit_rates():
    """Round k of the report, at the ratio where nothing is lost: the history's share of the prompt."""
    workload = GENERATORS["issue-33984"]
    by_round = {}
    for request in workload.requests():
        by_round.setdefault(request.wave, []).append(request)
    assert [len(requests) for requests in by_round.values()] == [20] * 9
    assert list(by_round) == sorted(by_round), "a barrier: rounds do not overlap"
    printed = [0.0, 0.499939, 0.666558, 0.749863, 0.799844, 0.833164, 0.856964, 0.874813, 0.888696]
    seen = []
    for wave in range(9):
        seen += by_round[wave]
        whole, earlier = trace_stats(seen, 64), trace_stats(seen[: -len(by_round[wave])], 64)
        tokens = whole.input_tokens - earlier.input_tokens
        assert (whole.hit_tokens - earlier.hit_tokens) / tokens == pytest.approx(printed[wave], abs=1e-6)


@pytest.mark.parametrize("name", ["chat", "speed", "rag"])
def test_long_streams_use_bounded_memory(name):
    """Ten times the requests of a stream in its steady state: the same few sessions are alive."""
    stream = generator(name, count=1_000_000, rate_per_s=5, **({"think_s": 5} if name == "chat" else {})).requests()
    for _ in islice(stream, 1_000):
        pass
    tracemalloc.start()
    for _ in islice(stream, 500):
        pass
    early = tracemalloc.get_traced_memory()[0]
    for _ in islice(stream, 3_000):
        pass
    late = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert late < early + 500_000


def test_unknown_names_and_parameters_list_the_known():
    with pytest.raises(TraceError, match="unknown generator 'chats'; known: chat, shared-prompts, agents, rag"):
        generator("chats")
    with pytest.raises(TraceError, match="unknown parameter of chat 'turn'; known: count, rate_per_s"):
        generator("chat", turn=3)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"count": "many"}, "count is 'many'; give a value like 200"),
        ({"count": "0"}, "count is 0"),
        ({"rate_per_s": 0}, "rate_per_s is 0"),
        ({"think_s": -1}, "think_s is -1"),
        ({"sigma": "nan"}, "sigma is nan"),
    ],
)
def test_bad_values(parameters, said):
    with pytest.raises(TraceError, match=said):
        generator("chat", **parameters)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_number_that_need_not_be_whole_takes_a_fraction(name):
    """Also where the default happens to be whole."""
    for field in fields(GENERATORS[name]):
        if field.type == "float" and getattr(GENERATORS[name], field.name) >= 1:
            assert getattr(generator(name, **{field.name: "2.5"}), field.name) == 2.5


def test_texts_become_numbers():
    workload = generator("rag", count="7", zipf_exponent="0.5", stable_order="true")
    assert (workload.count, workload.zipf_exponent, workload.stable_order) == (7, 0.5, True)
    with pytest.raises(TraceError, match="stable_order is 'maybe'"):
        generator("rag", stable_order="maybe")
    assert "count" in parameters_of("rag")
    assert "name" not in parameters_of("rag")


def test_bench_multiturn_checks_its_numbers():
    with pytest.raises(TraceError, match="clients is 0"):
        generator("bench-multiturn", clients=0)
    with pytest.raises(TraceError, match="more tokens than there are ids"):
        generator("bench-multiturn", clients=1 << 30, rounds=1 << 30)


def test_a_seed_gives_the_same_bytes_in_another_process():
    """No salt of the process gets in (hash randomisation)."""
    program = (
        "import hashlib, workloads;"
        "h = hashlib.sha256();"
        "[h.update(r.content.atoms(1, r.content_tokens) + repr((r.arrival_s, r.parent)).encode())"
        " for n in ('chat', 'rag', 'agents') for r in workloads.generator(n, count=5, rate_per_s=3).requests()];"
        "print(h.hexdigest())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": s}
        ).stdout
        for s in ("1", "2")
    }
    assert len(hashes) == 1
