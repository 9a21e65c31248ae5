"""Hypothesis looks for the shortest story that breaks a law."""

from hypothesis import HealthCheck, settings

from hicache_ref.testing.stateful import HiCacheStateMachine

HiCacheStateMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestMachine = HiCacheStateMachine.TestCase
