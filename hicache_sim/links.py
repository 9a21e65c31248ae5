"""Links carry bytes and share them; streams do one thing after the other. The only place where bytes become seconds.

Rules of this file
- A flow crosses one or more links at once and gets what the tightest of them has for it: max-min fair shares. While
  there is enough for all, each flow costs one SimPy event, however long it is, and no other is looked at; while a link
  is short, shares are worked out anew whenever a flow comes, begins to move or goes.
- A flow may begin with a head: time in which it moves nothing and takes no share (a launch, a latency).
- Some links are slower while their partner is busy: the two directions of PCIe.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .agenda import Agenda, Alarm

_EPSILON_BYTES = 1e-3
_NEARLY = 1.0 + 1e-9


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

    def crosses(self, link: Link) -> bool:
        return any(each is link for each, _ in self.legs)


class Job:
    """What a stream runs. `start` is called when its turn has come; when it is over it calls the stream's `next`."""

    def start(self) -> None:
        pass


class Flow(Job):
    """Bytes on their way. `over` is called when they have arrived; the same flow may then be sent again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at_s = 0.0
        """The time for which the following holds."""
        self.head_s = 0.0
        self.left = 0.0
        self.rate = 0.0
        self.alarm: _End | None = None
        """When it ends if nobody ever holds it up; None: the fabric looks after it."""

    def over(self) -> None:
        pass


class _End(Alarm):
    """A flow that nobody holds up has arrived, unless somebody has come between."""

    def __init__(self, fabric: Fabric, flow: Flow, agenda: Agenda, delay_s: float) -> None:
        super().__init__(agenda, delay_s)
        self._fabric = fabric
        self.flow = flow

    def ring(self) -> None:
        self._fabric.arrived(self)


class _Change(Alarm):
    """The first thing that will change among flows that hold one another up, if nothing comes between."""

    def __init__(self, fabric: Fabric, agenda: Agenda, delay_s: float) -> None:
        super().__init__(agenda, delay_s)
        self._fabric = fabric

    def ring(self) -> None:
        self._fabric.changed(self)


class Fabric:
    """All links of one machine and what flows over them."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._flows: list[Flow] = []
        self._next: _Change | None = None
        """Only while a link is short."""

    def send(self, flow: Flow, head_s: float, size: float) -> None:
        """Move `size` bytes over the path of `flow` after `head_s`."""
        now = self._agenda.now_s
        flow.at_s = now
        # A head that the clock cannot tell from nothing would never pass.
        flow.head_s = head_s if now + head_s > now else 0.0
        flow.left = size
        flow.rate = 0.0
        self._flows.append(flow)
        if self._short():
            self.advance()
            self._share()
        else:
            self._run(flow)

    def advance(self) -> None:
        """Bring all flows, and what links have carried, to the present."""
        now = self._agenda.now_s
        slack_s = math.ulp(now) * 2
        for flow in self._flows:
            moving = now - flow.at_s
            flow.at_s = now
            if flow.head_s > 0.0:
                moving -= flow.head_s
                # A rest the clock cannot tell from nothing would never pass.
                flow.head_s = -moving if moving < -slack_s else 0.0
            if moving > 0.0:
                _carry(flow, min(flow.rate * moving, flow.left))

    def _short(self) -> bool:
        """Whether a link is asked for more than it has when all flows move as if they were alone."""
        if len(self._flows) < 2:
            return False
        asked: dict[Link, float] = {}
        for flow in self._flows:
            for link, weight in flow.path.legs:
                asked[link] = asked.get(link, 0.0) + flow.path.alone_bytes_per_s * weight
        for link, bytes_per_s in asked.items():
            if bytes_per_s > _NEARLY * (link.shared_bytes_per_s if link.partner in asked else link.bytes_per_s):
                return True
        return False

    # Enough for all

    def _run(self, flow: Flow) -> None:
        """Nobody holds `flow` up: it ends by itself."""
        flow.rate = flow.path.alone_bytes_per_s
        flow.alarm = _End(self, flow, self._agenda, flow.head_s + flow.left / flow.rate)

    def arrived(self, end: _End) -> None:
        flow = end.flow
        if end is flow.alarm:
            flow.alarm = None
            _carry(flow, flow.left)
            self._flows.remove(flow)
            flow.over()

    # A link is short

    def _share(self) -> None:
        """Fair rates for all flows, and a wake-up when the first thing changes."""
        moving = [flow for flow in self._flows if flow.head_s <= 0.0]
        _max_min(moving)
        soonest = math.inf
        for flow in self._flows:
            flow.alarm = None
            change_s = flow.left / flow.rate if flow.head_s <= 0.0 else flow.head_s
            if change_s < soonest:
                soonest = change_s
        self._next = _Change(self, self._agenda, soonest if soonest > 0.0 else 0.0)

    def changed(self, change: _Change) -> None:
        """What was to change first has changed, unless something has come between."""
        if change is not self._next:
            return
        self.advance()
        slack_s = math.ulp(self._agenda.now_s) * 2
        ended = [flow for flow in self._flows if flow.head_s <= 0.0 and _is_over(flow, slack_s)]
        for flow in ended:
            self._flows.remove(flow)
        if self._short():
            self._share()
        else:
            self._next = None
            for flow in self._flows:
                self._run(flow)
        for flow in ended:
            flow.over()


def _carry(flow: Flow, size: float) -> None:
    """So many bytes have got to the other side."""
    flow.left -= size
    for link, weight in flow.path.legs:
        link.moved_bytes += size * weight


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
        tightest, rate = open_flows[0].path.legs[0][0], math.inf
        for link, weight in load.items():
            if room[link] / weight < rate:
                tightest, rate = link, room[link] / weight
        rate = max(rate, 1.0)
        still = []
        for flow in open_flows:
            if flow.path.crosses(tightest):
                flow.rate = rate
                for link, weight in flow.path.legs:
                    room[link] -= rate * weight
            else:
                still.append(flow)
        open_flows = still


class Stream:
    """Runs jobs in the order they were given, one at a time: a CUDA stream, a worker thread."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
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
        self.busy_s += self._agenda.now_s - self._since_s
        if self._queue:
            self._start(self._queue.popleft())
        else:
            self._busy = False

    def _start(self, job: Job) -> None:
        self._busy = True
        self._since_s = self._agenda.now_s
        job.start()
