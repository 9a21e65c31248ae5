"""A sweep's folder: what was asked, one row a point, effects, the best.

    sweep.json      base, what was varied, search, goals, limits, versions, counts
    points.parquet  one row a point: varied values, figures (metrics.METRICS), qualifies, pareto, best, error
    effects.json    by knob: mean figures by value, spread, share of the variance (effects.effects)
    best.json       the best setting, its flags as a line to paste, what each is worth, the Pareto front
    points.jsonl    the journal, by which a killed sweep continues

Rules of this file
- A file appears whole or not at all.
- `part` of a row is "sweep", or "worth" for a replay that only asked what one flag of the best is worth (`without`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hicache_ref.account.summary import about

from .effects import effects
from .fingerprint import code_version
from .judge import Setting
from .metrics import METRICS
from .study import Answer, worth_figures
from .worth import beside, sglang_knows, why_not

SWEEP, POINTS, EFFECTS, BEST = "sweep.json", "points.parquet", "effects.json", "best.json"


def write(folder: Path, answer: Answer, asked: Mapping[str, Any]) -> None:
    """OSError: cannot be written."""
    _put(folder / POINTS, lambda path: pq.write_table(points_table(answer), path))
    for name, content in (
        (SWEEP, asked),
        (EFFECTS, effects_of(answer)),
        (BEST, best_of(answer)),
    ):
        text = json.dumps(content, indent=1) + "\n"
        _put(folder / name, lambda path, text=text: path.write_text(text, encoding="utf-8"))


def _put(path: Path, write_to: Any) -> None:
    beside_it = path.with_name(f".{path.name}.{os.getpid()}")
    write_to(beside_it)
    os.replace(beside_it, path)


def asked_of(answer: Answer, cluster: str, workers: int, wall_s: float) -> dict[str, Any]:
    """What `sweep.json` holds."""
    study = answer.study
    return {
        "hicache": {**about(), "code": code_version()},
        "base": study.base.as_json(),
        "vary": [
            {
                "knob": axis.knob.name,
                "column": axis.knob.column,
                "condition": axis.knob.condition,
                "over": str(axis.domain),
            }
            for axis in study.axes
        ],
        "traces": dict(answer.traces),
        "search": {"name": study.search, "points": study.wanted.points, "seed": study.wanted.seed},
        "pareto": [str(goal) for goal in study.wanted.goals],
        "slo": [str(limit) for limit in study.wanted.limits],
        "decided_by": [str(goal) for goal in study.deciding],
        "counts": {"settings": len(answer.settings), **answer.counts},
        "ran": {"cluster": cluster, "workers": workers, "wall_s": round(wall_s, 3)},
    }


def points_table(answer: Answer) -> pa.Table:
    """What `points.parquet` holds. Metrics are float64; a varied value is of its own type, or text where types mix."""
    rows = list(_rows(answer))
    columns: dict[str, pa.Array] = {}
    names = [*_HEAD, *answer.study.knobs, "error", "qualifies", "pareto", "best"]
    for name in names:
        columns[name] = _column([row[name] for row in rows], _TYPES.get(name))
    for name in (*METRICS, "replay_cpu_s"):
        columns[name] = pa.array([row["figures"].get(name) for row in rows], pa.float64())
    return pa.table(columns)


_HEAD = ("key", "part", "setting", "without")
_TYPES = {"error": pa.string(), "without": pa.string(), "qualifies": pa.bool_(), "pareto": pa.bool_()}


def _column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    for number, setting in enumerate(answer.settings):
        for point in setting.points:
            yield {
                **_row(answer, point),
                "part": "sweep",
                "setting": number,
                "qualifies": setting.qualifies,
                "pareto": setting.pareto,
                "best": setting is answer.best,
            }
    for worth in answer.worth:
        for point in worth.points:
            yield {**_row(answer, point), "part": "worth", "without": worth.use.flag.name}


def _row(answer: Answer, point: Any) -> dict[str, Any]:
    nothing = {"setting": None, "without": None, "qualifies": None, "pareto": None, "best": False}
    return {
        **nothing,
        **answer.study.values(point.ask),
        "key": point.key,
        "error": point.outcome.error,
        "figures": point.outcome.figures or {},
    }


def effects_of(answer: Answer) -> dict[str, Any]:
    """What `effects.json` holds."""
    tried = [
        (answer.study.values(point.ask), point.outcome.figures)
        for setting in answer.settings
        for point in setting.points
        if point.outcome.figures is not None
    ]
    shown = answer.study.figures_shown
    return {"metrics": shown, "knobs": effects(list(answer.study.knobs), tried, shown) if tried else {}}


def best_of(answer: Answer) -> dict[str, Any]:
    """What `best.json` holds."""
    best = answer.best
    if best is None:
        return {"setting": None, "why": "no setting ran under every condition", "pareto": []}
    ask = best.points[0].ask
    line = [use.words for use in answer.uses if sglang_knows(use, ask.profile)]
    return {
        "setting": dict(best.choice),
        "beyond": None if answer.beyond is None else _front_row(answer, answer.beyond),
        "qualifies": best.qualifies if answer.study.wanted.limits else None,
        "decided_by": [str(goal) for goal in answer.study.deciding],
        "figures": best.figures,
        "flags": line,
        "line": " ".join(line),
        "not_sglang": [why_not(use, ask.profile) for use in answer.uses if not sglang_knows(use, ask.profile)],
        "beside": beside(ask),
        "changes": list(best.points[0].outcome.changes),
        "worth": worth_figures(answer),
        "pareto": [_front_row(answer, each) for each in answer.settings if each.pareto],
    }


def _front_row(answer: Answer, each: Setting) -> dict[str, Any]:
    figures = each.figures or {}
    return {
        "setting": dict(each.choice),
        "qualifies": each.qualifies,
        "figures": {name: figures.get(name) for name in answer.study.figures_shown},
    }
