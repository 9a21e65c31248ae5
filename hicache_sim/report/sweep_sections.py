"""What the page says of a sweep: the answer first, then what it rests on."""

from __future__ import annotations

from typing import Any

from hicache_ref.config.server_args import FLAG_OF

from ..sweeps.ask import Ask
from ..sweeps.metrics import METRICS
from ..sweeps.worth import SWITCH
from .asked import written
from .page import Panel, Section
from .sweep_figures import UNITS, SweepData, effects, parallel, pareto, shares, spaced, word
from .tiles import Tile
from .units import COUNT, SHARE, SPAN


def sections(data: SweepData, number: int, several: bool) -> list[Section]:
    """number: of the sweep on the page, for anchors. several: titles say whose they are."""
    prefix = f"sweep{number}" if several else "sweep"
    whose = f"{data.label}: " if several else ""
    found = [
        Section(f"{prefix}-answer", f"{whose}The flags to set", template="sweep_answer.html", data=_answer(data)),
        Section(f"{prefix}-asked", f"{whose}What was swept", template="sweep_asked.html", data=_asked(data)),
    ]
    if not data.settings:
        return found
    rows = (
        ("pareto", "Settings to choose between", pareto(data)),
        ("parallel", "All settings", [parallel(data)]),
        ("effects", "What each flag does", [shares(data), *effects(data)]),
    )
    for name, title, figures in rows:
        panels = [
            Panel(figure, f"{prefix}-{name}-{at}")
            for at, figure in enumerate(each for each in figures if not each.empty)
        ]
        if panels:
            help_ = panels[0].figure.help if len(panels) == 1 else ""
            found.append(Section(f"{prefix}-{name}", whose + title, help_, panels=panels))
    return found


def _answer(data: SweepData) -> dict[str, Any]:
    best, asked = data.sweep.best, data.sweep.asked
    if best["setting"] is None:
        return {"why": best["why"]}
    return {
        "why": None,
        "line": " \\\n  ".join(best["flags"]),
        "not_sglang": best["not_sglang"],
        "beside": ", ".join(f"{name} {value}" for name, value in best["beside"].items()),
        "decided_by": ", then ".join(best["decided_by"]),
        "slo": ", ".join(asked["slo"]),
        "qualifies": best["qualifies"],
        "beyond": _beyond(data),
        "tiles": _tiles(data),
        "changes": best["changes"],
        "metrics": list(dict.fromkeys(name for row in best["worth"] for name in row["change"])),
        "worth": [_worth(row) for row in best["worth"]],
    }


def _tiles(data: SweepData) -> list[Tile]:
    """What the best setting gives, and what the same machine gives without HiCache, where that was asked."""
    best = data.sweep.best
    bare: dict[str, float | None] = next(
        (row["without"] for row in best["worth"] if row["flag"] == FLAG_OF[SWITCH].name), {}
    )
    tiles = []
    for name in data.sweep.effects["metrics"]:
        beside = f"; {_figure(name, bare[name])} without HiCache" if bare.get(name) is not None else ""
        tiles.append(Tile(spaced(name), _figure(name, best["figures"].get(name)), METRICS[name].words + beside))
    return tiles


def _beyond(data: SweepData) -> str:
    """A better setting that SGLang does not offer, with its figures."""
    beyond = data.sweep.best["beyond"]
    if beyond is None:
        return ""
    choices = ", ".join(f"{name} {word(value)}" for name, value in beyond["setting"].items())
    figures = ", ".join(f"{spaced(name)} {_figure(name, value)}" for name, value in beyond["figures"].items())
    return f"{choices} ({figures})"


def _worth(row: dict[str, Any]) -> dict[str, Any]:
    """What a flag of the best buys: figures with it, less those without."""
    return {
        "flag": row["flag"] if row["value"] is True else f"{row['flag']} {word(row['value'])}",
        "default": "" if row["value"] is True or row["default"] is None else word(row["default"]),
        "error": row["error"],
        "changes": {name: _signed(name, value) for name, value in row["change"].items()},
    }


def _asked(data: SweepData) -> dict[str, Any]:
    asked, points = data.sweep.asked, data.sweep.arrow_points.to_pylist()
    base, counts = asked["base"], asked["counts"]
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in base["flags"].items())
    failed: dict[str, int] = {}
    for point in points:
        if point["error"]:
            failed[point["error"]] = failed.get(point["error"], 0) + 1
    return {
        "facts": [
            ("Workload", ", ".join(asked["traces"])),
            ("The same for all", flags or "nothing but defaults"),
            ("Profile and machine", f"{base['profile']}, {base['hardware']}"),
            *_conditions(base),
            ("Search", asked["search"]["name"]),
            ("Goals", ", ".join(asked["pareto"])),
            ("Limits", ", ".join(asked["slo"]) or "none"),
            ("Settings", f"{counts['settings']:,}"),
            ("Replays", f"{counts['points']:,}, {counts['failed']:,} failed, {counts['reused']:,} from before"),
            ("Took", f"{SPAN(asked['ran']['wall_s'])} with {asked['ran']['workers']} at once"),
            ("Made by", f"hicache {asked['hicache']['version']}, code {asked['hicache']['code']}"),
        ],
        "vary": [_varied(axis, points) for axis in asked["vary"]],
        "failed": sorted(failed.items(), key=lambda pair: -pair[1]),
    }


def _conditions(base: dict[str, Any]) -> list[tuple[str, str]]:
    """What else was asked of all replays: schedule, seed, numbers of machine and store."""
    plain = Ask(base["trace"]).as_json()
    shown = ("flags", "profile", "hardware")
    return [
        (name.replace("_", " ").capitalize(), written(value))
        for name, value in base.items()
        if name not in shown and value != plain[name]
    ]


def _varied(axis: dict[str, Any], points: list[dict[str, Any]]) -> tuple[str, str, str]:
    tried = dict.fromkeys(point[axis["column"]] for point in points if point["part"] == "sweep")
    words = [word(value) for value in tried]
    shown = ", ".join(words[:12]) + (f", … ({len(words)} values)" if len(words) > 12 else "")
    return axis["knob"], shown, "a condition to cope with" if axis["condition"] else "a choice"


def _figure(name: str, value: float | None) -> str:
    return UNITS[METRICS[name].unit](value)


def _signed(name: str, value: float | None) -> dict[str, str]:
    """A change with its sign, and whether it is good, in words."""
    metric = METRICS[name]
    if not value:
        return {"words": "–" if value is None else "±0", "verdict": ""}
    unit = UNITS[metric.unit]
    sign = "+" if value > 0 else "−"
    size = f"{COUNT(100 * abs(value))} points" if unit is SHARE else unit(abs(value))
    return {"words": f"{sign}{size}", "verdict": "better" if (value < 0) == metric.low else "worse"}
