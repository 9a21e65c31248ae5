"""Ranks that are slow, or fail, each in a way of its own: what a rank does before it follows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

from hicache_ref.data.plane import RealPlane
from hicache_ref.ranks.seats import Seat
from hicache_ref.run import api, setup
from hicache_ref.testing.unreliable import Habits, UnreliableClient


@dataclass(frozen=True)
class Habit:
    """Of one rank, in seconds. store: of its client. fails_at: the forward, counted from 0, that raises."""

    forward_s: float = 0.0
    copy_s: float = 0.0
    cancel_s: float = 0.0
    """Until a cancel has reached its plane."""
    store: Habits = field(default_factory=Habits)
    fails_at: int | None = None


class SlowRows:
    """Rows that take their time."""

    forwards = 0

    def __init__(self, rows: Any, habit: Habit, chance: Random) -> None:
        self._rows, self._habit, self._chance = rows, habit, chance
        self.computed = rows.computed

    def rows(self, step: int) -> Any:
        SlowRows.forwards += 1
        if SlowRows.forwards - 1 == self._habit.fails_at:
            raise ValueError("no luck today")
        time.sleep(self._habit.forward_s * self._chance.random())
        return self._rows.rows(step)


class SlowCopier:
    """Plans that are slow to make, on the streams' threads."""

    def __init__(self, copier: Any, habit: Habit, chance: Random) -> None:
        self._copier, self._habit, self._chance = copier, habit, chance

    def load(self, *pages: Any) -> Any:
        time.sleep(self._habit.copy_s * self._chance.random())
        return self._copier.load(*pages)

    def backup(self, *pages: Any) -> Any:
        time.sleep(self._habit.copy_s * self._chance.random())
        return self._copier.backup(*pages)


@contextmanager
def habits_of(habit: Habit, seed: int) -> Iterator[None]:
    """Whatever machine is made in here has this habit."""
    chance, make_rows, make_copier, make_client = Random(seed), api.rows_of, setup.make_copier, setup.make_client
    SlowRows.forwards = 0

    def rows_of(*args: Any) -> Any:
        rows = make_rows(*args)
        return lambda op: SlowRows(rows(op), habit, chance)

    def copier_of(*args: Any) -> Any:
        return SlowCopier(make_copier(*args), habit, chance)

    def client_of(*args: Any) -> Any:
        return UnreliableClient(make_client(*args), habit.store, seed)

    cancel = RealPlane.cancel

    def cancel_late(plane: RealPlane, op_id: int) -> None:
        time.sleep(habit.cancel_s)
        cancel(plane, op_id)

    with (
        patch.object(RealPlane, "cancel", cancel_late),
        patch.object(api, "rows_of", rows_of),
        patch.object(setup, "make_copier", copier_of),
        patch.object(setup, "make_client", client_of),
    ):
        yield


@dataclass(frozen=True)
class Follow(api.Follow):
    """The run, as ranks with habits do it."""

    habits: tuple[Habit, ...] = ()

    def __call__(self, seat: Seat) -> None:
        with habits_of(self.habits[seat.rank], seat.rank):
            super().__call__(seat)


@contextmanager
def habits(*of_rank: Habit) -> Iterator[None]:
    """Runs in here are on ranks with these habits, rank 0 first."""

    def follow(*args: Any) -> Follow:
        return Follow(*args, habits=of_rank)

    with patch.object(api, "Follow", follow), habits_of(of_rank[0], 0):
        yield
