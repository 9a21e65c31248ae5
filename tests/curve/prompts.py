"""Small workloads whose pages are atoms of the test's choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from hicache_sim.curve.references import References, gather
from hicache_sim.curve.replays import Atoms
from workloads.request import Request


def workload(prompts: Sequence[Sequence[int]], page_tokens: int = 16, gap_s: float = 1.0) -> list[Request]:
    """One request a prompt. Symbols are made prefix-unique: a page's atom names it and all before it."""
    atoms: dict[tuple[int, ...], int] = {}
    requests = []
    for at, prompt in enumerate(prompts):
        path = [atoms.setdefault(tuple(prompt[: end + 1]), len(atoms) + 1) for end in range(len(prompt))]
        tokens = len(prompt) * page_tokens
        requests.append(Request(at, at * gap_s, Atoms(np.array(path, np.int64).tobytes()), tokens, 1, tokens))
    return requests


def references(prompts: Sequence[Sequence[int]], page_tokens: int = 16, gap_s: float = 1.0) -> References:
    return gather(workload(prompts, page_tokens, gap_s), page_tokens)


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)
"""Prompts that share prefixes, and leave them."""
