"""Small workloads and machines for runs on real memory, and the same tokens computed afresh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hicache_ref.build import activator
from hicache_ref.config.server_args import ServerArgs
from hicache_ref.data.formats import codec_for
from hicache_ref.data.pools import DevicePool
from hicache_ref.data.storage.client import StorageClient
from hicache_ref.model.rows import Row
from hicache_ref.run.api import Options, Result, run
from hicache_ref.run.setup import RealConfig, RealPlan, make_model, make_runner, plan
from hicache_ref.run.texts import Texts
from workloads import OpenLoop, Schedule, Workload
from workloads.request import Request, Runs

PAGE = 4


class Talk(Workload):
    """Prompts that begin as one of a few books does: `count` of them, all at once, `parallel` at a time."""

    name, format, verdict, block_tokens = "talk", "generated", "tokens", PAGE
    linked = False

    def __init__(self, count: int = 20, seed: int = 0, parallel: int = 2, books: int = 4, longest: int = 48) -> None:
        self.max_parallel = parallel
        self._count, self._seed, self._books, self._longest = count, seed, books, longest

    def requests(self, schedule: Schedule | None = None) -> Iterator[Request]:
        rng = Random(self._seed)
        for number in range(self._count):
            book, shared = rng.randrange(self._books), rng.randrange(self._longest // 2, self._longest)
            own = rng.randrange(1, 9)
            content = Runs(np.array([1000 * (book + 1), 10_000 + 100 * number]), np.array([shared, own]))
            prompt = shared + own
            yield Request(number, 0.0, content, prompt, rng.randrange(1, 6), prompt)

    schedule = OpenLoop()


def config(model: str = "llama-3.1-8b", store: Path | None = None, **flags: Any) -> RealConfig:
    """A tiny model over 24 pages of L1 and 40 of L2, computed exactly, free pages poisoned."""
    if store is not None:
        extra = {"prefetch_threshold": PAGE, "file_storage_path": str(store)}
        flags = {
            "hicache_storage_backend": "file",
            "hicache_storage_backend_extra_config": json.dumps(extra),
            "hicache_storage_prefetch_policy": "wait_complete",
        } | flags
    flags = {
        "page_size": PAGE,
        "max_total_tokens": 24 * PAGE,
        "hicache_total_tokens": 40 * PAGE,
        "max_running_requests": 4,
        "chunked_prefill_size": 24,
        "model_path": model,
    } | flags
    return RealConfig(
        ServerArgs(**flags), model_scale=0.001, exact=True, poison=True, host_reserve_bytes=0, store_timeout_s=5.0
    )


class Heard:
    """Logits of a run, by request and position."""

    def __init__(self) -> None:
        self.logits: dict[tuple[int, int], Tensor] = {}

    def __call__(self, request_id: int, position: int, logits: Tensor) -> None:
        self.logits[request_id, position] = logits.clone()


def heard_run(
    made: RealConfig, workload: Workload, client: StorageClient | None = None, out: Path | None = None
) -> tuple[Result, Heard]:
    """A run, all laws checked, with everything its model said."""
    heard = Heard()
    result = run(workload, options=Options(check=True, listener=heard, client=client, out=out), config=made)
    return result, heard


class Afresh:
    """The same model over a pool of its own, which serves each request alone and forgets it."""

    def __init__(self, made: RealConfig) -> None:
        self.plan: RealPlan = plan(made)
        codec = codec_for(self.plan.spec.shape, made.args.kv_cache_dtype or "auto")
        pool = DevicePool(self.plan.geometry, -(-256 // self.plan.page_tokens), codec.store_dtype)
        self._pages = np.arange(pool.pages)
        self._runner = make_runner(self.plan, pool, make_model(self.plan))

    def texts(self, workload: Workload) -> dict[int, Any]:
        """Tokens by request."""
        texts = Texts(self.plan.page_tokens, self.plan.spec.shape.vocab)
        activate = texts.activator(activator(self.plan.page_tokens))
        return {request.id: texts.of(activate(request).id) for request in workload.requests()}

    def logits(self, tokens: Any) -> Tensor:
        """[tokens, vocab]: after each of `tokens`."""
        return self._runner.forward_all([Row(tokens, 0, self._pages)]).logits


def assert_the_same(heard: Heard, afresh: Afresh, workload: Workload) -> int:
    """Every logit of a run is, bit by bit, that of its prompt computed afresh. How many there were."""
    expected_of = {request_id: afresh.logits(tokens) for request_id, tokens in afresh.texts(workload).items()}
    for (request_id, position), logits in heard.logits.items():
        expected = expected_of[request_id][position]
        assert torch.isfinite(logits).all(), f"request {request_id}, position {position}: a page was read too early"
        assert torch.equal(logits, expected), f"request {request_id}, position {position}"
    return len(heard.logits)
