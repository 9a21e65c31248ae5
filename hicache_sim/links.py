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
from simpy.events import Timeout

_EPSILON_BYTES = 1e-3
_EPSILON_S = 1e-12


class Link:
    """`bytes_per_s` when its partner is idle, `shared_bytes_per_s` when it is busy."""

    __slots__ = ("bytes_per_s", "moved_bytes", "name", "partner", "shared_bytes_per_s", "users")

    def __init__(self, name: str, bytes_per_s: float, shared_bytes_per_s: float | None = None) -> None:
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.shared_bytes_per_s = bytes_per_s if shared_bytes_per_s is None else shared_bytes_per_s
        self.partner: Link | None = None
        self.users = 0
        self.moved_bytes = 0.0
        """Carried so far."""

    @property
    def capacity(self) -> float:
        return self.shared_bytes_per_s if self.partner is not None and self.partner.users else self.bytes_per_s


class Flow:
    """Bytes on their way. `rates`: how many bytes each link carries per byte of the flow (ranks side by side)."""

    __slots__ = ("done", "head_s", "left", "links", "rate", "weights")

    def __init__(
        self, links: tuple[Link, ...], weights: tuple[float, ...], head_s: float, size: float, done: Callable[[], None]
    ) -> None:
        self.links = links
        self.weights = weights
        self.head_s = head_s
        self.left = size
        self.rate = 0.0
        self.done = done


class Fabric:
    """All links of one machine and what flows over them."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._flows: list[Flow] = []
        self._at_s = 0.0
        self._version = 0

    def send(
        self,
        links: tuple[Link, ...],
        weights: tuple[float, ...],
        head_s: float,
        size: float,
        done: Callable[[], None],
    ) -> Flow:
        """Move `size` bytes over `links` after `head_s`; link i carries `weights[i]` times as much. Calls `done`."""
        self._advance()
        flow = Flow(links, weights, head_s, size, done)
        self._flows.append(flow)
        for link in links:
            link.users += 1
        self._share()
        return flow

    def _advance(self) -> None:
        """Bring all flows to the present."""
        now = self._env.now
        passed = now - self._at_s
        self._at_s = now
        if passed <= 0.0:
            return
        for flow in self._flows:
            moving = passed
            if flow.head_s > 0.0:
                moving = passed - flow.head_s
                flow.head_s = max(flow.head_s - passed, 0.0)
                if moving <= 0.0:
                    continue
            moved = min(flow.rate * moving, flow.left)
            flow.left -= moved
            for link, weight in zip(flow.links, flow.weights, strict=True):
                link.moved_bytes += moved * weight

    def _share(self) -> None:
        """Fair rates for all flows, and a wake-up when the first thing changes."""
        flows = self._flows
        if not flows:
            self._version += 1
            return
        if len(flows) == 1:
            flow = flows[0]
            flow.rate = min(link.capacity / weight for link, weight in zip(flow.links, flow.weights, strict=True))
            self._wake_in(flow.head_s + flow.left / flow.rate)
            return
        moving = [flow for flow in flows if flow.head_s <= _EPSILON_S]
        _max_min(moving)
        for flow in flows:
            if flow.head_s > _EPSILON_S:
                flow.rate = 0.0
        soonest = min(flow.left / flow.rate if flow.head_s <= _EPSILON_S else flow.head_s for flow in flows)
        self._wake_in(soonest)

    def _wake_in(self, delay_s: float) -> None:
        self._version += 1
        version = self._version
        event = Timeout(self._env, max(delay_s, 0.0))
        event.callbacks.append(lambda _: self._wake(version))

    def _wake(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        ended = [flow for flow in self._flows if flow.head_s <= _EPSILON_S and self._is_over(flow)]
        if ended:
            self._flows = [flow for flow in self._flows if flow not in ended]
            for flow in ended:
                for link in flow.links:
                    link.users -= 1
        self._share()
        for flow in ended:
            flow.done()

    def _is_over(self, flow: Flow) -> bool:
        """Nothing left, or less than the clock can tell from nothing."""
        return flow.left <= _EPSILON_BYTES or (flow.rate > 0.0 and flow.left / flow.rate <= math.ulp(self._env.now) * 2)


def _max_min(flows: list[Flow]) -> None:
    """Max-min fair rates: raise all together, freeze those on the link that fills first, go on with the rest."""
    open_flows = list(flows)
    room: dict[Link, float] = {link: link.capacity for flow in flows for link in flow.links}
    while open_flows:
        load: dict[Link, float] = {}
        for flow in open_flows:
            for link, weight in zip(flow.links, flow.weights, strict=True):
                load[link] = load.get(link, 0.0) + weight
        tightest = min(load, key=lambda link: room[link] / load[link])
        rate = max(room[tightest] / load[tightest], 1.0)
        still = []
        for flow in open_flows:
            if tightest in flow.links:
                flow.rate = rate
                for link, weight in zip(flow.links, flow.weights, strict=True):
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
