"""A store that is dead, dies, or hangs: the run goes on, says what failed, and its bytes are right."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.data.storage.client import StorageClient
from hicache_ref.data.storage.registry import make_client
from hicache_ref.run.setup import RealConfig, identity, plan
from hicache_ref.testing.unreliable import Habits, UnreliableClient

from .small import Afresh, Talk, assert_the_same, config, heard_run


def client_of(made: RealConfig, folder: Path) -> StorageClient:
    return make_client("file", identity(plan(made)), {"file_storage_path": str(folder)})


def summary_of(made: RealConfig, client: Any, seed: int = 1) -> dict[str, Any]:
    """Run, and hold what was said against what it must be."""
    workload = Talk(12, seed)
    result, heard = heard_run(made, workload, client)
    assert_the_same(heard, Afresh(made), workload)
    assert result.summary["requests"]["done"] == 12
    return result.summary


@pytest.mark.parametrize("prefetch", ["best_effort", "wait_complete", "timeout"])
def test_a_dead_store_costs_its_hits_and_nothing_else(prefetch, tmp_path):
    made = config(store=tmp_path, hicache_storage_prefetch_policy=prefetch)
    client = UnreliableClient(client_of(made, tmp_path), Habits())
    client.dead = True
    summary = summary_of(made, client)
    assert summary["tokens"]["storage_hit"] == 0
    assert summary["run"]["failures"]["store"] > 0
    assert not list(tmp_path.rglob("*.bin"))


class Hanging:
    """A client whose `get` does not come back before it is told to. Satisfies StorageClient."""

    def __init__(self, client: StorageClient) -> None:
        self.identity = client.identity
        self.let_go = threading.Event()
        self.hung = 0
        self._client = client
        for name in ("exists", "put", "clear", "stats", "close"):
            setattr(self, name, getattr(client, name))

    def get(self, names, host, slots) -> int:
        self.hung += 1
        self.let_go.wait(30.0)
        # The worst it can do: write to pages that were given up.
        return self._client.get(names, host, slots)


@pytest.mark.parametrize("when", ["during the run", "after it"])
def test_a_hanging_call_is_given_up_and_its_pages_are_nobody_s(when, tmp_path):
    made = replace(config(store=tmp_path), store_timeout_s=0.1)
    summary_of(made, client_of(made, tmp_path))
    client = Hanging(client_of(made, tmp_path))
    if when == "during the run":
        threading.Timer(0.6, client.let_go.set).start()
    summary = summary_of(made, client)
    client.let_go.set()
    assert client.hung > 0
    assert summary["run"]["failures"]["fetch"] > 0
