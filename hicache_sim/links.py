"""Links carry bytes and share them; streams do one thing after the other. The only place where bytes become seconds.

Rules of this file
- A flow crosses one or more links at once and gets what the tightest of them has for it: max-min fair shares, worked
  out anew whenever a flow comes or goes. A flow alone costs one SimPy event, however long it is.
- A flow may begin with a head: time in which it moves nothing and takes no share (a launch, a latency).
- Some links are slower while their partner is busy: the two directions of PCIe.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from simpy import Environment

_EPSILON_BYTES = 1e-3


def schedule(env: Any, event: Alarm, delay_s: float, priority: Any) -> None:
    """SimPy's own `Environment.schedule`, compiled with the rest."""
    heappush(env._queue, (env._now + delay_s, priority, next(env._eid), event))


def run_all(env: Any) -> None:
    """SimPy's own `Environment.run`, without what no event here ever does: stop the run, or fail."""
    queue = env._queue
    while queue:
        env._now, _, _, event = heappop(queue)
        callbacks, event.callbacks = event.callbacks, None
        for callback in callbacks:
            callback(event)


class Alarm:
    """Calls `ring` after a while: an event of SimPy's, for a fraction of what a `Timeout` with a callback costs."""

    _ok: bool
    callbacks: Any

    def __init__(self, env: Environment, delay_s: float, priority: Any = 1) -> None:
        self._ok = True
        self.callbacks = _RING
        schedule(env, self, delay_s, priority)

    def ring(self) -> None:
        pass


def _ring(alarm: Alarm) -> None:
    alarm.ring()


_RING = (_ring,)


class Call(Alarm):
    """Calls a function."""

    def __init__(self, env: Environment, delay_s: float, then: Callable[[], None], priority: Any = 1) -> None:
        super().__init__(env, delay_s, priority)
        self._then = then

    def ring(self) -> None:
        self._then()


class Link:
    """`bytes_per_s` when its partner is idle, `shared_bytes_per_s` when it is busy."""

    __slots__ = ("bytes_per_s", "moved_bytes", "name", "partner", "shared_bytes_per_s")

    def __init__(self, name: str, bytes_per_s: float, shared_bytes_per_s: float | None = None) -> None:
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.shared_bytes_per_s = bytes_per_s if shared_bytes_per_s is None else shared_bytes_per_s
        self.partner: Link | None = None
        self.moved_bytes = 0.0
        """Carried so far."""


class Path:
    """Links, and how many bytes each carries per byte of a flow: weights above 1 stand for ranks side by side."""

    def __init__(self, legs: Sequence[tuple[Link, float]]) -> None:
        self.legs = list(legs)
        self.alone_bytes_per_s = min([link.bytes_per_s / weight for link, weight in legs])
        """What a flow gets when nothing else moves."""


class Job:
    """What a stream runs. `start` is called when its turn has come; when it is over it calls the stream's `next`."""

    def start(self) -> None:
        pass


class Flow(Job):
    """Bytes on their way. `over` is called when they have arrived; the same flow may then be sent again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head_s = 0.0
        self.left = 0.0
        self.rate = 0.0

    def over(self) -> None:
        pass


class _Change(Alarm):
    """The first thing that will change among the flows, if nothing comes between."""

    def __init__(self, fabric: Fabric, env: Environment, delay_s: float) -> None:
        super().__init__(env, delay_s)
        self._fabric = fabric

    def ring(self) -> None:
        self._fabric.changed(self)


class Fabric:
    """All links of one machine and what flows over them."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._flows: list[Flow] = []
        self._at_s = 0.0
        self._next: _Change | None = None

    def send(self, flow: Flow, head_s: float, size: float) -> None:
        """Move `size` bytes over the path of `flow` after `head_s`."""
        now: float = self._env.now
        self._advance(now)
        # A head that the clock cannot tell from nothing would never pass.
        flow.head_s = head_s if now + head_s > now else 0.0
        flow.left = size
        flow.rate = 0.0
        self._flows.append(flow)
        self._share()

    def _advance(self, now: float) -> None:
        """Bring all flows to the present."""
        passed = now - self._at_s
        self._at_s = now
        if passed <= 0.0:
            return
        slack_s = math.ulp(now) * 2
        for flow in self._flows:
            moving = passed
            if flow.head_s > 0.0:
                moving -= flow.head_s
                # A rest the clock cannot tell from nothing would never pass.
                flow.head_s = -moving if moving < -slack_s else 0.0
                if moving <= 0.0:
                    continue
            moved = flow.rate * moving
            if moved > flow.left:
                moved = flow.left
            flow.left -= moved
            for link, weight in flow.path.legs:
                link.moved_bytes += moved * weight

    def _share(self) -> None:
        """Fair rates for all flows, and a wake-up when the first thing changes."""
        flows = self._flows
        self._next = None
        if len(flows) == 1:
            flow = flows[0]
            flow.rate = flow.path.alone_bytes_per_s
            self._wake_in(flow.head_s + flow.left / flow.rate)
        elif flows:
            moving = [flow for flow in flows if flow.head_s <= 0.0]
            if len(moving) > 1:
                _max_min(moving)
            elif moving:
                moving[0].rate = moving[0].path.alone_bytes_per_s
            soonest = math.inf
            for flow in flows:
                change_s = flow.left / flow.rate if flow.head_s <= 0.0 else flow.head_s
                if change_s < soonest:
                    soonest = change_s
            self._wake_in(soonest)

    def _wake_in(self, delay_s: float) -> None:
        self._next = _Change(self, self._env, delay_s if delay_s > 0.0 else 0.0)

    def changed(self, change: _Change) -> None:
        """What was to change first has changed, unless something has come between."""
        if change is not self._next:
            return
        now: float = self._env.now
        self._advance(now)
        slack_s = math.ulp(now) * 2
        ended = [flow for flow in self._flows if flow.head_s <= 0.0 and _is_over(flow, slack_s)]
        if ended:
            self._flows = [flow for flow in self._flows if flow not in ended] if len(self._flows) > 1 else []
        self._share()
        for flow in ended:
            flow.over()


def _is_over(flow: Flow, slack_s: float) -> bool:
    """Nothing left, or less than the clock can tell from nothing."""
    return flow.left <= _EPSILON_BYTES or flow.left <= flow.rate * slack_s


def _max_min(flows: list[Flow]) -> None:
    """Max-min fair rates: raise all together, freeze those on the link that fills first, go on with the rest."""
    open_flows = list(flows)
    room = {link: link.bytes_per_s for flow in flows for link, _ in flow.path.legs}
    for link in room:
        if link.partner in room:
            room[link] = link.shared_bytes_per_s
    while open_flows:
        load: dict[Link, float] = {}
        for flow in open_flows:
            for link, weight in flow.path.legs:
                load[link] = load.get(link, 0.0) + weight
        tightest = min(load, key=lambda link: room[link] / load[link])
        rate = max(room[tightest] / load[tightest], 1.0)
        still = []
        for flow in open_flows:
            if any(link is tightest for link, _ in flow.path.legs):
                flow.rate = rate
                for link, weight in flow.path.legs:
                    room[link] -= rate * weight
            else:
                still.append(flow)
        open_flows = still


class Stream:
    """Runs jobs in the order they were given, one at a time: a CUDA stream, a worker thread."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._queue: deque[Job] = deque()
        self._busy = False
        self._since_s = 0.0
        self.busy_s = 0.0

    def give(self, job: Job) -> None:
        """Run `job` after all earlier ones."""
        if self._busy:
            self._queue.append(job)
        else:
            self._start(job)

    def next(self) -> None:
        """The job is over: run the next."""
        self.busy_s += self._env.now - self._since_s
        if self._queue:
            self._start(self._queue.popleft())
        else:
            self._busy = False

    def _start(self, job: Job) -> None:
        self._busy = True
        self._since_s = self._env.now
        job.start()
