"""What happens when: SimPy's environment, reached without SimPy's own Python.

Rules of this file
- The clock and the queue are SimPy's. Processes, timeouts and `Environment.run` work beside what is put here.
- What the simulator puts there are alarms: they ring once, wait for nothing and cannot fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, ClassVar

from simpy import Environment

NORMAL = 1
"""SimPy's priority of timeouts."""


class Agenda:
    """The clock and the queue of an environment."""

    def __init__(self, env: Environment) -> None:
        self._env = vars(env)
        """Where SimPy keeps its clock."""
        self._queue: list[Any] = self._env["_queue"]
        self._numbers: Iterator[int] = self._env["_eid"]

    @property
    def now_s(self) -> float:
        now_s: float = self._env["_now"]
        return now_s

    def put(self, alarm: Alarm, delay_s: float, priority: int) -> None:
        """SimPy's `Environment.schedule`."""
        heappush(self._queue, (self.now_s + delay_s, priority, next(self._numbers), alarm))

    def run(self) -> None:
        """SimPy's `Environment.run`, until nothing is left; no event here ever stops it, or fails."""
        env, queue, pop = self._env, self._queue, heappop
        while queue:
            entry = pop(queue)
            env["_now"] = entry[0]
            event = entry[3]
            if isinstance(event, Alarm):
                event.ring()
            else:
                callbacks, event.callbacks = event.callbacks, None
                for callback in callbacks:
                    callback(event)


class Alarm:
    """Calls `ring` after a while: an event of SimPy's, for a fraction of what a `Timeout` with a callback costs."""

    _ok: ClassVar[bool] = True

    def __init__(self, agenda: Agenda, delay_s: float, priority: int = NORMAL) -> None:
        agenda.put(self, delay_s, priority)

    def ring(self) -> None:
        pass

    @property
    def callbacks(self) -> Any:
        """What SimPy calls, which then sets it to None."""
        return _RING

    @callbacks.setter
    def callbacks(self, none: Any) -> None:
        pass


def _ring(alarm: Alarm) -> None:
    alarm.ring()


_RING = (_ring,)


class Call(Alarm):
    """Calls a function."""

    def __init__(self, agenda: Agenda, delay_s: float, then: Callable[[], None], priority: int = NORMAL) -> None:
        super().__init__(agenda, delay_s, priority)
        self._then = then

    def ring(self) -> None:
        self._then()
