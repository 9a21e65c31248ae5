"""Two builds of hicache give the same run: every figure of `summary.json` but those about the build and its speed.

python tests/same_summary.py .venv/bin/hicache .venv-fast/bin/hicache
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

RUNS = (
    "replay speed --limit 2000 --page-size 64 --hicache-storage-backend mooncake",
    "replay speed --limit 2000 --page-size 64 --hicache-write-policy write_back --hardware b200",
    "replay synthetic --limit 1000 --page-size 64 --profile v0.5.23 --hicache-storage-backend hf3fs",
    "replay conversation --untimed --sequential --page-size 64 --max-total-tokens 1048576",
)


def summary(program: str, arguments: str) -> dict[str, Any]:
    done = subprocess.run([program, *arguments.split(), "--json"], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    del figures["hicache"], figures["run"]["replay_cpu_s"]
    return figures


def main(one: str, other: str) -> int:
    different = [arguments for arguments in RUNS if summary(one, arguments) != summary(other, arguments)]
    print(f"{len(RUNS)} runs compared, {len(different)} differ")
    for arguments in different:
        print(" ", arguments)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
