"""What was asked: workload, machine, configuration, and what resolving the flags changed behind the user's back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .load import RunData
from .units import BYTES, TOKENS

_FLAGLESS = ("flags", "page_tokens", "l1_tokens", "l2_tokens", "kv_bytes_per_token_per_rank", "attention_ranks")


@dataclass(frozen=True)
class Row:
    """One line of a table over runs; `differs`: the runs do not agree."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def facts(runs: Sequence[RunData]) -> list[Row]:
    """Workload, model, machine, sizes."""
    return _rows([_facts(run.summary) for run in runs])


def flags(runs: Sequence[RunData]) -> list[Row]:
    """SGLang's flags in effect, those that differ first."""
    rows = _rows(
        [{_flag(name): written(value) for name, value in run.summary["config"]["flags"].items()} for run in runs]
    )
    return sorted(rows, key=lambda row: not row.differs)


@dataclass(frozen=True)
class Change:
    """A rewrite or warning, and the runs that had it."""

    kind: str
    what: str
    reason: str
    runs: tuple[str, ...]


def changes(runs: Sequence[RunData]) -> list[Change]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        for change in run.summary["changes"]:
            what = change["flag"]
            if change["kind"] == "rewrite":
                what += f": {written(change['before'])} → {written(change['after'])}"
            found.setdefault((change["kind"], what, change["reason"]), []).append(run.label)
    return [Change(*key, tuple(labels)) for key, labels in found.items()]


def _facts(summary: Mapping[str, Any]) -> dict[str, str]:
    workload, config, requests = summary["workload"], summary["config"], summary["requests"]
    known = {
        "Workload": f"{workload['name']} ({workload['format']}, {workload['verdict']})",
        "Schedule": schedule(workload["schedule"]),
        "Requests": f"{requests['total']:,}",
        "Page": TOKENS(config["page_tokens"]),
        "L1": _tokens(config["l1_tokens"]),
        "L2": _tokens(config["l2_tokens"]),
        "KV of a token": f"{BYTES(config['kv_bytes_per_token_per_rank'])} a rank",
    }
    known |= {
        _name(key): written(value) for key, value in config.items() if key not in _FLAGLESS and value not in ({}, [])
    }
    about = summary.get("hicache", {})
    known["Made by"] = (
        f"hicache {about.get('version', '?')}, Python {about.get('python', '?')}, {about.get('machine', '?')}"
    )
    return known


def _rows(columns: Sequence[Mapping[str, str]]) -> list[Row]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [Row(name, tuple(column.get(name, "–") for column in columns)) for name in names]


_SCHEDULES = {"OpenLoop": "open, by the clock", "ClosedLoop": "closed, by answers"}
_AS_RECORDED = ("", "speed=1.0", "spread=False", "arrivals=None")


def schedule(text: str) -> str:
    """In the words of `--schedule`, and what was changed about it."""
    name, _, inside = text.partition("(")
    changed = [each for each in inside.removesuffix(")").split(", ") if each not in _AS_RECORDED]
    return ", ".join([_SCHEDULES.get(name, name), *changed])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _name(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _tokens(value: Any) -> str:
    return TOKENS(value) if value else "none"


def written(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={written(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(written, value))
    return str(value)
