"""The engine's batches are upstream's: whole runs against the oracle, which takes a step at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hicache_ref.control.budget import SchedulerLimits
from hicache_ref.testing.engine_machine import EngineMachine, EngineSetup
from hicache_ref.testing.session import Setup

from .oracle import Job, compare


def random_run(seed: int) -> tuple[EngineSetup, list[Job], object]:
    rng = Random(f"upstream/{seed}")
    page = rng.choice([1, 1, 4, 16])
    pages = rng.choice({1: [48, 64, 128, 256], 4: [12, 24, 48], 16: [4, 8, 16]}[page])
    tokens = pages * page
    cache = Setup(
        profile=rng.choice(["v0.5.7", "v0.5.23"]),
        write=rng.choice(["none", "write_through", "write_through_selective", "write_back"]),
        eviction=rng.choice(["lru", "lfu", "fifo"]),
        page_tokens=page,
        l1_pages=pages,
        l2_pages=rng.choice([0, pages, 3 * pages]),
        load_back_threshold_tokens=rng.choice([1, 10]),
        keyspace=rng.choice(["atoms", "atoms", "atom pairs"]),
    )
    if not cache.l2_pages:
        cache = replace(cache, write="none")
    limits = SchedulerLimits(
        max_running_requests=rng.choice([1, 2, 4, 100]),
        max_prefill_tokens=rng.choice([page, tokens // 4, tokens, 10 * tokens]),
        chunked_prefill_tokens=rng.choice([None, page, 2 * page, 2 * page + 1, tokens // 4, tokens]),
        context_tokens=rng.choice([None, None, tokens // 2]),
        schedule_conservativeness=rng.choice([0.0, 0.1, 0.3, 1.0]),
        new_token_ratio_decay_steps=rng.choice([1, 10, 600]),
        retract_decode_steps=rng.choice([1, 5, 20]),
        key_lag_tokens=1 if "pairs" in cache.keyspace else 0,
    )
    # In EAGLE mode the page after those that lpm should look at is one it cannot know yet.
    policies = ["fcfs", "fcfs", "lof"] + ["lpm"] * (cache.keyspace == "atoms")
    setup = EngineSetup(cache, limits, rng.choice(policies))
    maker = EngineMachine(setup)
    books = [[rng.randrange(5) for _ in range(tokens)] for _ in range(rng.choice([2, 5]))]
    longest = max(2, int(tokens * rng.choice([0.1, 0.3, 0.5])))
    most = rng.choice([2, tokens // 4, tokens // 2])
    jobs = []
    for number in range(rng.choice([8, 20, 40])):
        prompt = rng.choice(books)[: rng.randint(1, longest)]
        if rng.random() < 0.5:
            prompt = prompt[: len(prompt) // 2] + [rng.randrange(50) for _ in range(rng.randint(1, longest))]
        output = [rng.randrange(50) for _ in range(rng.randint(1, most))]
        maker.arrive(prompt, output, rng.choice([None, None, 2 * len(output)]), priority=rng.randrange(2))
        due = jobs[-1].due + rng.choice([0, 0, 1, 5, 20]) if jobs else 0
        jobs.append(Job(number, due, maker.prompts[number]))
    return setup, jobs, maker.keys


def test_runs_are_upstreams():
    seen: Counter[str] = Counter()
    for seed in range(150):
        setup, jobs, keys = random_run(seed)
        judge = compare(setup, jobs, keys)
        seen["died"] += judge.died
        seen["retracted"] += sum(retracted for _, _, retracted in judge.ended)
        seen["rejected"] += sum(not made for _, made, _ in judge.ended)
        seen["prefill"] += sum(entry[0] == "prefill" for entry in judge.trace)
    assert min(seen[what] for what in ("retracted", "rejected", "prefill")) > 20, seen
