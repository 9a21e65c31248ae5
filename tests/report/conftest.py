"""Folders to report: two runs of the same work under different flags, one without time, a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

import hicache_sim
from hicache_ref.config.server_args import ServerArgs
from hicache_sim.api import Options, replay
from hicache_sim.report.load import RunData, load_run
from hicache_sim.sweeps.ask import Ask

FLAGS = {"page_size": 64, "max_total_tokens": 60_000, "hicache_storage_backend": "mooncake"}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `first`, `second`, `untimed` and `sweep`."""
    at = tmp_path_factory.mktemp("reports")
    replay("agents", options=Options(limit=150, out=at / "first"), hicache_ratio=2.0, **FLAGS)
    second = {"hicache_write_policy": "write_back", "hicache_storage_prefetch_policy": "timeout"}
    replay("agents", options=Options(limit=150, out=at / "second"), hicache_ratio=3.0, **FLAGS, **second)
    config = hicache_sim.RunConfig(ServerArgs(page_size=64, max_total_tokens=60_000), untimed=True)
    replay("agents", options=Options(limit=40, out=at / "untimed"), config=config)
    hicache_sim.sweep(
        Ask("agents", limit=40),
        {"hicache_ratio": "1.5,2", "hicache_write_policy": "write_through,write_back", "page_size": "64,63"},
        slo=["ttft_p99<3600"],
        jobs=1,
        out=at / "sweep",
        max_total_tokens=30_000,
    )
    return at


@pytest.fixture(scope="session")
def run(folders: Path) -> RunData:
    return load_run(folders / "first", "first")


@pytest.fixture(scope="session")
def other(folders: Path) -> RunData:
    return load_run(folders / "second", "second")
