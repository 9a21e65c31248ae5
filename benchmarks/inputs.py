"""What the benchmarks are run on, written once a run.

Rules of this file
- Nothing large is held: see the rules of this folder.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections import deque
from pathlib import Path

from .measure import ROOT, Table, run

SPEED_SEED = 20260822
PROMPT_SEED = 1
PROMPT_TOKENS = 8192
RECENT = 64


def speed_trace(folder: Path, requests: int, table: Table) -> Path:
    """The trace on which speed is measured, or its beginning, written by another process unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"speed-{requests}.jsonl"
    code = "import sys, workloads; workloads.SpeedTrace(count=int(sys.argv[1])).write(sys.argv[2])"
    table.ran([sys.executable, "-c", code, str(requests), str(path)])
    table.seeds["speed trace"] = SPEED_SEED
    if not path.exists():
        part = path.with_suffix(".part")
        run([sys.executable, "-c", code, str(requests), str(part)])
        part.rename(path)
    return path


def prompts(folder: Path, count: int, table: Table) -> Path:
    """uint32 token ids, 8,192 a prompt. Each begins like one of the 64 before it, as far as chance says."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"prompts-{count}.u32"
    rng = random.Random(PROMPT_SEED)
    table.seeds["prompts"] = PROMPT_SEED
    table.notes.append(f"The prompts are written by `{Path(__file__).relative_to(ROOT)}`.")
    recent: deque[array[int]] = deque(maxlen=RECENT)
    with open(path, "wb") as file:
        for _ in range(count):
            tokens = array("I", array("H", rng.randbytes(2 * PROMPT_TOKENS)))
            if recent:
                shared = rng.randrange(PROMPT_TOKENS + 1)
                tokens[:shared] = rng.choice(recent)[:shared]
            recent.append(tokens)
            file.write(tokens.tobytes())
    return path
