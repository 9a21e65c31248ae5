"""Real runs as processes: their words, their store, their failures."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from hicache_sim.validate.runs import RunError, run

PROGRAM = """#!/bin/sh
shift 3
folder=
for word; do [ "$last" = --out ] && folder=$word; last=$word; done
mkdir -p "$folder"
{script}
"""


def program(folder: Path, script: str) -> str:
    """Something that is started like Python and answers like `hicache run`."""
    path = folder / "python"
    path.write_text(PROGRAM.format(script=script))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_run_gets_its_words_and_a_store_of_its_own(tmp_path):
    python = program(tmp_path, """printf '{"words": "%s"}' "$*" > "$folder/summary.json\"""")
    words = ["chat", "--limit", "3", "--", "python", "-m", "sglang.launch_server"]
    found = [run(words, tmp_path / name, python) for name in ("a", "b")]
    before = f"chat --limit 3 --fresh-store --out {tmp_path / 'a'}"
    assert found[0].summary["words"] == f"{before} -- python -m sglang.launch_server"
    assert found[0].seconds > 0 and (found[0].elsewhere is None or found[0].elsewhere >= 0)


def test_a_run_that_fails_is_said_in_its_own_last_words(tmp_path):
    python = program(tmp_path, 'echo "first" >&2; echo "hicache: no such trace" >&2; exit 2')
    with pytest.raises(RunError, match="ended with 2: hicache: no such trace"):
        run(["nothing"], tmp_path / "out", python)


def test_a_run_that_says_nothing(tmp_path):
    with pytest.raises(RunError, match="ended with 3: no word"):
        run(["nothing"], tmp_path / "out", program(tmp_path, "exit 3"))


def test_summaries_are_read_as_they_are(tmp_path):
    kept = {"hit_rates": {"total": 0.25}}
    source = tmp_path / "kept.json"
    source.write_text(json.dumps(kept))
    assert run(["x"], tmp_path / "out", program(tmp_path, f'cp {source} "$folder/summary.json"')).summary == kept
