"""Random lives that several tests look at, each lived once in a process."""

from __future__ import annotations

from functools import cache

from hicache_ref.testing.engine_fuzz import engine_fuzz
from hicache_ref.testing.engine_machine import EngineMachine


@cache
def life(seed: int) -> EngineMachine:
    """That of `engine_fuzz(seed)`, over and unbroken: to be read only."""
    return engine_fuzz(seed)
