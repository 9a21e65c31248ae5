"""Totals of whole traces, recorded from the real caches of two upstream versions: equal to the token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hicache_ref.config.server_args import ServerArgs
from hicache_sim.api import Options, replay
from hicache_sim.build import RunConfig
from hicache_sim.cli import main

HERE = Path(__file__).parent
ROWS = [
    pytest.param(
        profile, row, id="-".join([profile, row["trace"], row["write_policy"], row["eviction"], str(row["l2_tokens"])])
    )
    for profile in ("v0.5.7", "v0.5.23")
    for row in json.loads((HERE / f"traces_{profile}.json").read_text())
]
FIELDS = {
    "input": "input_tokens",
    "device_hit": "device_hit_tokens",
    "host_hit": "host_hit_tokens",
    "loaded": "loaded_tokens",
}


@pytest.mark.parametrize(("profile", "row"), ROWS)
def test_totals_equal_the_recorded_ones(profile: str, row: dict[str, Any]) -> None:
    args = ServerArgs(
        page_size=row["page_size"],
        max_total_tokens=row["l1_tokens"],
        hicache_total_tokens=row["l2_tokens"],
        hicache_write_policy=row["write_policy"],
        radix_eviction_policy=row["eviction"],
    )
    config = RunConfig(args, profile=profile, untimed=True)
    result = replay(row["trace"].removesuffix("_trace"), None, Options(sequential=True), config)
    ours = {name: result.summary["tokens"][name] for name in FIELDS}
    assert ours == {name: row[recorded] for name, recorded in FIELDS.items()}
    assert result.summary["requests"]["admitted"] == row["requests"]
    assert result.summary["requests"]["rejected"] == row["failed"]


def test_the_command_writes_them_too(tmp_path: Path) -> None:
    row = next(
        row for row in json.loads((HERE / "traces_v0.5.7.json").read_text()) if row["write_policy"] == "write_back"
    )
    words = f"""replay synthetic --untimed --sequential --page-size 64 --max-total-tokens {row["l1_tokens"]}
        --hicache-total-tokens {row["l2_tokens"]} --hicache-write-policy write_back --radix-eviction-policy lru"""
    done = CliRunner().invoke(main, [*words.split(), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    tokens = json.loads((tmp_path / "summary.json").read_text())["tokens"]
    assert {name: tokens[name] for name in FIELDS} == {name: row[recorded] for name, recorded in FIELDS.items()}
