"""Tests for whoever changes HiCache or brings a policy of their own.

A policy's contract takes three lines; pytest does the rest:

    from hicache_ref.testing import EvictionContract

    class TestMine(EvictionContract):
        policy = staticmethod(MyPolicy)

(`WriteContract`, `PrefetchContract` likewise.) Underneath, usable on their own:

- `Machine`: a small cache whose operations end when and how the test says, all laws checked after every step;
- `fuzz(seed, **fixed)`: one random life of a machine; `python -m hicache_ref.testing.fuzz --seeds 20000` many;
- `HiCacheStateMachine` in `hicache_ref.testing.stateful`: the machine for Hypothesis, which has to be installed then.
"""

from .contracts import ContractBroken, EvictionContract, PrefetchContract, WriteContract
from .machine import Machine
from .session import Session, Setup, replay
from .world import FuzzFailure, fuzz, life

__all__ = [
    "ContractBroken",
    "EvictionContract",
    "FuzzFailure",
    "Machine",
    "PrefetchContract",
    "Session",
    "Setup",
    "WriteContract",
    "fuzz",
    "life",
    "replay",
]
