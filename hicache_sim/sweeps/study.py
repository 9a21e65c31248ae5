"""A sweep from question to answer: search, run, judge, and ask what each flag of the best is worth.

Rules of this file
- A point is run once: what the journal has is not run again, whichever sweep asked for it.
- Points are handed out by trace, so that workers read one trace and keep it; results do not depend on that order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .ask import Ask
from .domains import Domain
from .engines import Engine
from .errors import SweepError
from .fingerprint import Fingerprints
from .journal import Journal, Outcome
from .judge import Point, Setting, best, judged, order, setting
from .knobs import Knob
from .metrics import UNTIMED, Figures, Goal, Limit
from .point import Job, run_point
from .search import Choice, Wanted, make_searcher
from .worth import Use, sglang_knows, uses, without, worth_asking


@dataclass(frozen=True)
class Axis:
    """A knob and what it is varied over."""

    knob: Knob
    domain: Domain


@dataclass(frozen=True)
class Study:
    """The question. `search`: name of a searcher. `first`: the goal that decides before all others.
    `worth`: ask what each flag of the best setting buys."""

    base: Ask
    axes: tuple[Axis, ...]
    wanted: Wanted
    search: str = "grid"
    first: Goal | None = None
    worth: bool = True

    def __post_init__(self) -> None:
        """SweepError: a knob varied twice; a goal or limit that a replay without time does not have."""
        names = [axis.knob.column for axis in self.axes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise SweepError(f"--vary {twice}: given twice", "list all its values at once")
        asked: list[Goal | Limit] = [*self.wanted.goals, *self.wanted.limits]
        asked += [self.first] if self.first else []
        timed = next((each.metric.name for each in asked if each.metric.name not in UNTIMED), None)
        if timed and self.base.untimed:
            raise SweepError(f"{timed}: a replay without time does not have it", f"take {', '.join(sorted(UNTIMED))}")

    @property
    def choices(self) -> dict[str, Domain]:
        return {axis.knob.column: axis.domain for axis in self.axes if not axis.knob.condition}

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """All combinations of what has to be coped with. SweepError: a range without steps."""
        axes = [axis for axis in self.axes if axis.knob.condition]
        lists = [_values_of(axis) for axis in axes]
        return [dict(zip((a.knob.column for a in axes), each, strict=True)) for each in itertools.product(*lists)]

    @property
    def knobs(self) -> dict[str, Knob]:
        return {axis.knob.column: axis.knob for axis in self.axes}

    @property
    def deciding(self) -> tuple[Goal, ...]:
        """Goals in the order in which they decide."""
        return order(self.wanted.goals, self.wanted.limits, self.first)

    def ask(self, values: Choice) -> Ask:
        """The base with these knobs set."""
        ask = self.base
        for name, value in values.items():
            ask = self.knobs[name].put(ask, value)
        return ask

    def values(self, ask: Ask) -> dict[str, Any]:
        """Where the varied knobs stand."""
        return {name: knob.get(ask) for name, knob in self.knobs.items()}

    @property
    def figures_shown(self) -> list[str]:
        """Metrics that the question is about, and what always matters."""
        asked: list[Goal | Limit] = [*self.wanted.goals, *self.wanted.limits]
        names = [*(each.metric.name for each in asked), "hit_rate", "ttft_mean", "ttft_p99", "host_bytes"]
        return [name for name in dict.fromkeys(names) if name in UNTIMED or not self.base.untimed]


def _values_of(axis: Axis) -> Sequence[Any]:
    try:
        return axis.domain.values()
    except SweepError as error:
        raise SweepError(f"--vary {axis.knob.name}: {error}") from None


class Watch(Protocol):
    """Who wants to see a sweep at work."""

    def expect(self, points: int) -> None:
        """So many points more than known before."""

    def point(self, outcome: Outcome, reused: bool) -> None:
        """One is done."""


class Blind:
    def expect(self, points: int) -> None:
        pass

    def point(self, outcome: Outcome, reused: bool) -> None:
        pass


@dataclass(frozen=True)
class Worth:
    """A flag of the best setting, and what is there without it. `figures`: means; None: see `error`."""

    use: Use
    points: tuple[Point, ...]
    figures: Figures | None
    error: str | None


@dataclass
class Answer:
    """All that a sweep found. `counts`: points asked for, run now, reused, failed."""

    study: Study
    settings: list[Setting]
    best: Setting | None
    """Of those that SGLang can be set to, if any."""
    beyond: Setting | None = None
    """A better one with what only we have; None: there is none."""
    uses: list[Use] = field(default_factory=list)
    worth: list[Worth] = field(default_factory=list)
    traces: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


def run(study: Study, engine: Engine, journal: Journal, watch: Watch | None = None) -> Answer:
    """SweepError: a space that cannot be searched, or a trace that is not there, before anything runs."""
    runner = _Runner(engine, journal, watch or Blind())
    conditions, wanted = study.conditions, study.wanted
    searcher = make_searcher(study.search, study.choices, wanted)
    runner.check_traces(study, conditions)
    runner.watch.expect(searcher.size * len(conditions))
    settings: dict[tuple[Any, ...], Setting] = {}
    while choices := searcher.ask():
        points = runner.run([study.ask({**choice, **each}) for choice in choices for each in conditions])
        step = len(conditions)
        found = [
            setting(choice, points[at * step : (at + 1) * step], wanted.limits) for at, choice in enumerate(choices)
        ]
        searcher.tell(choices, [each.figures for each in found])
        for each in found:
            settings.setdefault(tuple(each.choice.values()), each)
    answer = Answer(study, judged(list(settings.values()), wanted.goals), None)
    answer.best, answer.beyond = _best(study, answer.settings)
    if answer.best is not None:
        answer.uses = uses(answer.best.points[0].ask)
        answer.worth = _worth(answer, runner) if study.worth else []
    answer.traces, answer.counts = dict(runner.prints.traces), dict(runner.counts)
    return answer


def _best(study: Study, settings: Sequence[Setting]) -> tuple[Setting | None, Setting | None]:
    """The best to be had from SGLang, and the best of all where that is another."""
    goals, limits = study.deciding, study.wanted.limits
    ours = best(settings, goals, limits)
    theirs = best([each for each in settings if _settable(study, each)], goals, limits)
    if ours is None or theirs is None:
        return ours, None
    return theirs, ours if best([theirs, ours], goals, limits) is not theirs else None


def _settable(study: Study, each: Setting) -> bool:
    """SGLang knows what was varied, at these values."""
    ask = each.points[0].ask
    return all(sglang_knows(use, ask.profile) for use in uses(ask) if use.flag.field in study.knobs)


def _worth(answer: Answer, runner: _Runner) -> list[Worth]:
    """Run the best setting once without each of its flags."""
    assert answer.best is not None
    asks = [point.ask for point in answer.best.points]
    varied = {axis.knob.column for axis in answer.study.axes}
    asked = list(worth_asking(answer.uses, varied))
    plain = [without(ask, use.flag.field) for use in asked for ask in asks]
    runner.watch.expect(len(plain))
    points = runner.run(plain)
    found = []
    for at, use in enumerate(asked):
        mine = setting({}, points[at * len(asks) : (at + 1) * len(asks)], ())
        found.append(Worth(use, mine.points, mine.figures, mine.error))
    return found


class _Runner:
    """Runs asks, each key once."""

    def __init__(self, engine: Engine, journal: Journal, watch: Watch) -> None:
        self._engine, self._journal = engine, journal
        self.watch = watch
        self.prints = Fingerprints()
        self.counts = {"points": 0, "run": 0, "reused": 0, "failed": 0}

    def check_traces(self, study: Study, conditions: Sequence[Choice]) -> None:
        for each in conditions:
            self.prints.trace(study.ask(each).trace)

    def run(self, asks: Sequence[Ask]) -> list[Point]:
        """In the order asked."""
        keys = [self.prints.key(ask) for ask in asks]
        jobs: dict[str, Job] = {}
        outcomes: dict[str, Outcome] = {}
        for key, ask in zip(keys, asks, strict=True):
            known = outcomes.get(key) or self._journal.get(key)
            if known is not None:
                outcomes[key] = known
                self._count(known, reused=True)
            elif key in jobs:
                self.watch.expect(-1)
            else:
                jobs[key] = Job(key, ask, self.prints.trace(ask.trace))
        in_order = sorted(jobs.values(), key=lambda job: (job.trace, str(job.ask.reading())))
        for job, outcome in self._engine.run(run_point, in_order, _lost):
            self._journal.add(job.key, job.ask.as_json(), outcome)
            outcomes[job.key] = outcome
            self._count(outcome, reused=False)
        return [Point(key, ask, outcomes[key]) for key, ask in zip(keys, asks, strict=True)]

    def _count(self, outcome: Outcome, reused: bool) -> None:
        self.counts["points"] += 1
        self.counts["reused" if reused else "run"] += 1
        self.counts["failed"] += outcome.error is not None
        self.watch.point(outcome, reused)


def _lost(why: str) -> Outcome:
    """Of a point whose worker died."""
    return Outcome(error=why, passing=True)


def worth_figures(answer: Answer) -> list[dict[str, Any]]:
    """What each flag buys: the best setting less the setting without the flag, of every metric shown."""
    assert answer.best is not None
    have = answer.best.figures or {}
    rows = []
    for worth in answer.worth:
        change = {name: _less(have.get(name), (worth.figures or {}).get(name)) for name in answer.study.figures_shown}
        rows.append(
            {
                "flag": worth.use.flag.name,
                "value": worth.use.value,
                "default": worth.use.default,
                "change": change,
                "without": {name: (worth.figures or {}).get(name) for name in change},
                "error": worth.error,
            }
        )
    return rows


def _less(have: float | None, less: float | None) -> float | None:
    return None if have is None or less is None else have - less
