"""Emptying L3 while a run goes on: what was stored is gone, what the levels above hold is not."""

from __future__ import annotations

import pytest
from simpy import Environment

from hicache_ref.build import make_cache, make_engine
from hicache_ref.config.server_args import ServerArgs
from hicache_ref.control import invariants
from hicache_sim.build import RunConfig, make_faulty_store, make_plane, plan


def test_clearing_empties_the_store_and_nothing_else() -> None:
    made = plan(RunConfig(ServerArgs(page_size=64, max_total_tokens=6400, hicache_storage_backend="redis")))
    env, store = Environment(), make_faulty_store(made)
    assert store is not None
    engine = make_engine(made.resolved, make_cache(made.resolved))
    plane = make_plane(made, env, store)
    store.store.write(range(10), 0.0)
    engine.clear_storage()
    for op in engine.take_ops():
        plane.submit(op)  # type: ignore[arg-type]
    invariants.check(engine.cache)
    env.run()
    for report in plane.poll():
        engine.on(report)
    assert not store.store.held
    invariants.check_at_rest(engine.cache)


def test_there_must_be_a_store() -> None:
    made = plan(RunConfig(ServerArgs(page_size=64, max_total_tokens=6400)))
    with pytest.raises(ValueError, match="without a storage backend"):
        make_engine(made.resolved, make_cache(made.resolved)).clear_storage()
