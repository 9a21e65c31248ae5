"""What README shows is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from hicache_sim.cli import main

README = Path(__file__).parents[2] / "README.md"


def test_the_demo_prints_what_readme_shows() -> None:
    block = re.search(r"```\n\$ hicache (.*?)\n(.*?)\n```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    done = CliRunner().invoke(main, block[1].split())
    assert done.exit_code == 0, done.output
    printed = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    assert printed == block[2].splitlines()
