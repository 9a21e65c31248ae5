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
from collections.abc import Callable

from simpy import Environment
from simpy.events import Event, Timeout

_EPSILON_BYTES = 1e-3


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


Path = tuple[tuple[Link, float], ...]
"""Links, and how many bytes each carries per byte of a flow: weights above 1 stand for ranks side by side."""


class Flow:
    """Bytes on their way."""

    __slots__ = ("alone", "done", "head_s", "left", "path", "rate")

    def __init__(self, path: Path, head_s: float, size: float, done: Callable[[], None]) -> None:
        self.path = path
        self.head_s = head_s
        self.left = size
        self.rate = 0.0
        self.alone = min([link.bytes_per_s / weight for link, weight in path])
        """Rate when nothing else moves."""
        self.done = done


class Fabric:
    """All links of one machine and what flows over them."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._flows: list[Flow] = []
        self._at_s = 0.0
        self._version = 0

    def send(self, path: Path, head_s: float, size: float, done: Callable[[], None]) -> None:
        """Move `size` bytes over `path` after `head_s`. Calls `done`."""
        now = self._env.now
        self._advance(now)
        # A head that the clock cannot tell from nothing would never pass.
        self._flows.append(Flow(path, head_s if now + head_s > now else 0.0, size, done))
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
            for link, weight in flow.path:
                link.moved_bytes += moved * weight

    def _share(self) -> None:
        """Fair rates for all flows, and a wake-up when the first thing changes."""
        flows = self._flows
        self._version += 1
        if len(flows) == 1:
            flow = flows[0]
            flow.rate = flow.alone
            self._wake_in(flow.head_s + flow.left / flow.rate)
        elif flows:
            moving = [flow for flow in flows if flow.head_s <= 0.0]
            if len(moving) > 1:
                _max_min(moving)
            elif moving:
                moving[0].rate = moving[0].alone
            soonest = min([flow.left / flow.rate if flow.head_s <= 0.0 else flow.head_s for flow in flows])
            self._wake_in(soonest)

    def _wake_in(self, delay_s: float) -> None:
        event = Timeout(self._env, delay_s if delay_s > 0.0 else 0.0, self._version)
        event.callbacks.append(self._wake)

    def _wake(self, event: Event) -> None:
        if event.value != self._version:
            return
        now = self._env.now
        self._advance(now)
        slack_s = math.ulp(now) * 2
        ended = [flow for flow in self._flows if flow.head_s <= 0.0 and self._is_over(flow, slack_s)]
        if ended:
            self._flows = [flow for flow in self._flows if flow not in ended] if len(self._flows) > 1 else []
        self._share()
        for flow in ended:
            flow.done()

    def _is_over(self, flow: Flow, slack_s: float) -> bool:
        """Nothing left, or less than the clock can tell from nothing."""
        return flow.left <= _EPSILON_BYTES or flow.left <= flow.rate * slack_s


def _max_min(flows: list[Flow]) -> None:
    """Max-min fair rates: raise all together, freeze those on the link that fills first, go on with the rest."""
    open_flows = list(flows)
    room = {link: link.bytes_per_s for flow in flows for link, _ in flow.path}
    for link in room:
        if link.partner in room:
            room[link] = link.shared_bytes_per_s
    while open_flows:
        load: dict[Link, float] = {}
        for flow in open_flows:
            for link, weight in flow.path:
                load[link] = load.get(link, 0.0) + weight
        tightest = min(load, key=lambda link: room[link] / load[link])
        rate = max(room[tightest] / load[tightest], 1.0)
        still = []
        for flow in open_flows:
            if any(link is tightest for link, _ in flow.path):
                flow.rate = rate
                for link, weight in flow.path:
                    room[link] -= rate * weight
            else:
                still.append(flow)
        open_flows = still


class Stream:
    """Runs jobs in the order they were given, one at a time: a CUDA stream, a worker thread.

    A job is called with what it has to call when it is over.
    """

    __slots__ = ("_busy", "_env", "_queue", "_since_s", "busy_s")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._queue: deque[Callable[[Callable[[], None]], None]] = deque()
        self._busy = False
        self._since_s = 0.0
        self.busy_s = 0.0

    def give(self, job: Callable[[Callable[[], None]], None]) -> None:
        """Run `job` after all earlier ones."""
        if self._busy:
            self._queue.append(job)
        else:
            self._start(job)

    def _start(self, job: Callable[[Callable[[], None]], None]) -> None:
        self._busy = True
        self._since_s = self._env.now
        job(self._next)

    def _next(self) -> None:
        self.busy_s += self._env.now - self._since_s
        if self._queue:
            self._start(self._queue.popleft())
        else:
            self._busy = False
