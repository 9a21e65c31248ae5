"""A run in three acts: all is well, the store is hurt, it is mended. And what must hold when it is over.

Rules of this file
- One run, one client, one engine: nothing is started again, so what recovers has recovered by itself.
- An act goes on until what it waits for has been seen, or its time is over; then the verdict says so.
- Requests come all the time, and what they begin with is more than L1 and L2 hold: without L3, few hits.
- Hurting and mending take their time on a thread of their own: the run does not wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from hicache_ref.control import invariants
from hicache_ref.control.slots import Owner
from hicache_ref.data.storage.client import StorageClient, StorageIdentity
from hicache_ref.run.api import Options, Result, run
from hicache_ref.run.setup import RealConfig, identity, plan
from tests.run.small import PAGE, Afresh, Heard, config
from workloads import OpenLoop, Schedule, Workload
from workloads.request import Request, Runs

from .watched import Call, Watched

BOOKS, BOOK_TOKENS = 8, 10 * PAGE
"""Texts that prompts begin with: 80 pages, where L2 has 40 and L1 24."""
GAP_S, BUSY_GAP_S, MOST_WAITING = 0.03, 0.2, 4
LEAST = 16
"""Requests of an act, at least: every book twice."""
WELL_S = 20.0
"""The longest for the first act."""


def as_it_was() -> None:
    """Nothing has to be mended: what was changed is written again."""


@dataclass
class Trouble:
    """A store that can be hurt."""

    client: Callable[[StorageIdentity], StorageClient]
    hurt: Callable[[], None]
    mend: Callable[[], None] = as_it_was


@dataclass(frozen=True)
class Case:
    """What is done to which store, and what must be seen of it."""

    name: str
    store: str
    done: str
    """What is done to it, in words."""
    open: Callable[[Path], AbstractContextManager[Trouble]]
    """In an empty folder."""
    shows: Callable[[Seen], bool]
    """Whether the fault has shown by now."""
    breaks: bool = False
    """The breaker must open, try, and close."""
    prefetch: str = "wait_complete"
    timeout_s: float = 5.0
    """The longest a call may take before it is given up."""
    hurt_s: float = 30.0
    """The longest that the fault may take to show."""
    mended_s: float = 30.0
    """The longest that recovery may take."""
    quick: bool = False
    """Cheap enough for every test run."""


@dataclass
class Seen:
    """The second act as far as it has gone."""

    calls: list[Call]
    """Those that have not come back included."""
    counts: dict[str, float]
    """The client's, since it began."""
    timeout_s: float
    """The longest a call may take before it is given up."""
    now_s: float = field(default_factory=time.monotonic)

    @property
    def vain(self) -> list[Call]:
        """Calls that have failed or were given up."""
        return [call for call in self.calls if call.failed or self.given_up(call)]

    def given_up(self, call: Call) -> bool:
        return min(call.ended_s, self.now_s) - call.began_s > self.timeout_s

    def known_s(self, call: Call) -> float:
        """When it was known that it is in vain."""
        return min(call.ended_s, call.began_s + self.timeout_s)


@dataclass
class Outcome:
    """What came of a case. `wrong`: what should not be, in words; empty where all is well."""

    case: str
    requests: int = 0
    logits: int = 0
    """Compared with those computed afresh, bit by bit."""
    acts_s: list[float] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    """Pages from the store, by act."""
    failed_calls: int = 0
    errors: list[str] = field(default_factory=list)
    """Kinds of them, as the client said them."""
    failures: dict[str, int] = field(default_factory=dict)
    """Operations that failed, as the run's summary counts them."""
    given_up: int = 0
    """Calls that took too long."""
    counts: dict[str, float] = field(default_factory=dict)
    """The client's own, in the second act and after."""
    breaker: dict[str, Any] = field(default_factory=dict)
    longest_call_s: float = 0.0
    longest_request_s: float = 0.0
    bound_s: float = 0.0
    """Of a request."""
    recovered_s: float | None = None
    """From the end of mending to the first page from the store."""
    l2_pages: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tell(case: Case, folder: Path, seed: int = 0) -> Outcome:
    """Run the case in an empty folder, and judge it."""
    made = machine(case)
    # The thread outlives the trouble: servers die with the thread that has started them.
    with ThreadPoolExecutor(1, "trouble") as hand, case.open(folder) as trouble:
        watched = Watched(trouble.client(identity(plan(made))))
        story = Story(case, trouble, watched, hand, seed)
        heard = Heard()
        options = Options(check=True, listener=heard, client=watched, progress=story.ended)
        began_s = time.monotonic()
        result = run(story, options=options, config=made)
        outcome = _facts(case, result, watched, story)
    outcome.acts_s = [round(end - begin, 2) for begin, end in zip([began_s, *story.ends_s], story.ends_s, strict=False)]
    _judge_bytes(outcome, heard, Afresh(made), story)
    _judge_run(outcome, case, result, watched, story)
    return outcome


def machine(case: Case) -> RealConfig:
    """A tiny model over 24 pages of L1 and 40 of L2, computed exactly, free pages poisoned."""
    flags: dict[str, Any] = {
        "hicache_storage_backend": case.store,
        "hicache_storage_prefetch_policy": case.prefetch,
        "hicache_storage_backend_extra_config": f'{{"prefetch_threshold": {PAGE}}}',
        "hicache_mem_layout": "page_first",
    }
    return replace(config(store=None, **flags), store_timeout_s=case.timeout_s)


class Story(Workload):
    """Requests for as long as the acts last."""

    name, format, verdict, block_tokens = "story", "generated", "tokens", PAGE
    linked, max_parallel, schedule = False, 2, OpenLoop()

    def __init__(self, case: Case, trouble: Trouble, watched: Watched, hand: Executor, seed: int) -> None:
        self.sent: list[Request] = []
        self.wrong: list[str] = []
        self.ends_s: list[float] = []
        """Of each act, and of what leads to the next."""
        self.hurt_from_s = self.mended_s = inf
        self.counts: dict[str, float] = {}
        """The client's, when the second act began."""
        self._written = 0.0
        self._case, self._trouble, self._watched, self._hand = case, trouble, watched, hand
        self._rng = Random(seed)
        self._ended = 0
        self._began_s: float | None = None

    def ended(self, requests: int, now_s: float) -> None:
        """So many have."""
        self._ended = requests

    def requests(self, schedule: Schedule | None = None) -> Iterator[Request]:
        case, watched = self._case, self._watched
        yield from self._act("no hits before anything was done", WELL_S, lambda: self._hits(0.0) >= 4)
        self.counts = watched.stats()
        self.hurt_from_s = time.monotonic()
        yield from self._while_doing(self._trouble.hurt)
        yield from self._act("the fault did not show", case.hurt_s, self._has_shown)
        yield from self._while_doing(self._trouble.mend)
        self.mended_s = time.monotonic()
        self._written = watched.stats()["written_pages"]
        yield from self._act("no hits and no new pages after the store was mended", case.mended_s, self._has_recovered)

    # Acts

    def _act(self, otherwise: str, most_s: float, done: Callable[[], bool]) -> Iterator[Request]:
        until_s, least = time.monotonic() + most_s, len(self.sent) + LEAST
        while not done() or len(self.sent) < least:
            if time.monotonic() > until_s:
                self.wrong.append(f"{otherwise} within {most_s:g} s")
                break
            yield self._request()
        self.ends_s.append(time.monotonic())

    def _while_doing(self, do: Callable[[], None]) -> Iterator[Request]:
        """Raises what `do` raises."""
        doing = self._hand.submit(do)
        while not doing.done():
            yield self._request()
        doing.result()

    def _has_shown(self) -> bool:
        counts = {name: count - self.counts.get(name, 0) for name, count in self._watched.stats().items()}
        return self._case.shows(Seen(self._watched.since(self.hurt_from_s), counts, self._case.timeout_s))

    def _has_recovered(self) -> bool:
        return self._hits(self.mended_s) >= 4 and self._watched.stats()["written_pages"] > self._written

    def _hits(self, from_s: float) -> int:
        return sum(call.hit for call in self._watched.between(from_s))

    # Requests

    def _request(self) -> Request:
        number, rng = len(self.sent), self._rng
        book, own = rng.randrange(BOOKS), rng.randrange(1, 9)
        content = Runs(np.array([1000 * (book + 1), 100_000 + 100 * number]), np.array([BOOK_TOKENS, own]))
        prompt = BOOK_TOKENS + own
        request = Request(number, self._due_s(), content, prompt, rng.randrange(1, 4), prompt)
        self.sent.append(request)
        return request

    def _due_s(self) -> float:
        """Soon, or later where requests pile up: there may be many before a dead store is known to be dead."""
        if self._began_s is None:
            self._began_s = time.monotonic()
        gap_s = GAP_S if len(self.sent) - self._ended < MOST_WAITING else BUSY_GAP_S
        return time.monotonic() - self._began_s + gap_s


@dataclass(frozen=True)
class _Again:
    """Requests that were sent, as `Afresh` takes them."""

    sent: list[Request]

    def requests(self) -> Iterator[Request]:
        return iter(self.sent)


# Verdict


def _facts(case: Case, result: Result, watched: Watched, story: Story) -> Outcome:
    workers, summary = result.machine.plane.workers, result.summary
    assert workers is not None
    stats = workers.stats()  # type: ignore[attr-defined]
    calls, columns = watched.between(0.0), result.requests
    took_s = [end - begin for begin, end in zip(columns["arrival_s"], columns["ended_s"], strict=True)]
    failed = [call for call in calls if call.failed]
    acts = [(0.0, story.hurt_from_s), (story.hurt_from_s, story.mended_s), (story.mended_s, inf)]
    first = next((call for call in watched.between(story.mended_s) if call.hit), None)
    owned = result.cache.l2.owned()
    return Outcome(
        case.name,
        requests=summary["requests"]["done"],
        hits=[sum(call.good for call in watched.between(*act) if call.what == "get") for act in acts],
        failed_calls=len(failed),
        errors=sorted({_kind(call.error) for call in failed})[:4],
        failures=summary["run"]["failures"],
        given_up=sum(kind["failures"].get("timeout", 0) for kind in stats["kinds"].values()),
        counts={
            name: count - story.counts.get(name, 0)
            for name, count in watched.stats().items()
            if count > story.counts.get(name, 0)
        },
        breaker=stats["breaker"],
        longest_call_s=round(max((call.ended_s - call.began_s for call in calls), default=0.0), 3),
        longest_request_s=round(max(took_s, default=0.0), 3),
        bound_s=round(4 * case.timeout_s + 5.0, 3),
        recovered_s=round(first.ended_s - story.mended_s, 2) if first is not None else None,
        l2_pages={owner.name.lower(): owned[owner] for owner in (Owner.FREE, Owner.TREE, Owner.TRANSIT)},
    )


def _kind(error: str) -> str:
    """An error without what differs from one to the next."""
    return error.split(" /", 1)[0][:80]


def _judge_bytes(outcome: Outcome, heard: Heard, afresh: Afresh, story: Story) -> None:
    texts = afresh.texts(_Again(story.sent))  # type: ignore[arg-type]
    expected = {request_id: afresh.logits(tokens) for request_id, tokens in texts.items()}
    outcome.logits = len(heard.logits)
    wrong = [
        at for at, logits in heard.logits.items() if not torch.equal(logits, expected[at[0]][at[1]])
    ]  # NaN differs from everything
    if wrong:
        outcome.wrong.append(f"{len(wrong)} logits differ, the first of request {wrong[0][0]}")


def _judge_run(outcome: Outcome, case: Case, result: Result, watched: Watched, story: Story) -> None:
    wrong = outcome.wrong
    wrong += story.wrong
    if outcome.requests != len(story.sent):
        wrong.append(f"{outcome.requests} of {len(story.sent)} requests done")
    if outcome.longest_request_s > outcome.bound_s:
        wrong.append(f"a request took {outcome.longest_request_s} s, and {outcome.bound_s} is the bound")
    if watched.hanging:
        wrong.append(f"{watched.hanging} calls have not come back")
    try:
        invariants.check_at_rest(result.cache)
    except invariants.LawBroken as broken:
        wrong.append(str(broken))
    if outcome.failed_calls and not sum(outcome.failures.values()):
        wrong.append("calls failed, and the summary counts nothing")
    breaker = outcome.breaker
    if case.breaks and not (breaker["opened"] > 1 and breaker["tried"] > 1 and breaker["closed"]):
        wrong.append(f"the breaker has not opened, tried in vain, and closed: {breaker}")
    if breaker["state"] != "closed":
        wrong.append(f"the breaker is {breaker['state']} at the end")
