"""Seeded generators of requests, found by name.

Rules of this file
- GENERATORS holds one ready instance for each name: a generator with its defaults, or a preset of one.
- Parameters are numbers and truth values only, so that a command line can set any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from ..errors import TraceError, known
from ..speed_trace import SpeedTrace
from ..workload import Workload
from .agents import Agents
from .bench_multiturn import BenchMultiturn
from .chat import Chat
from .documents import Documents
from .rag import Rag
from .shared_prompts import SharedPrompts

GENERATORS: dict[str, Workload] = {
    "chat": Chat(),
    "shared-prompts": SharedPrompts(),
    "agents": Agents(),
    "rag": Rag(),
    "documents": Documents(),
    "speed": SpeedTrace(),
    # SGLang benchmark/hicache/bench_multiturn.py with its own defaults.
    "bench-multiturn": BenchMultiturn(),
    # sgl-project/sglang#33984. Clients and rounds are in the report; its hit rates (4096/8193, 8192/12290, …) give the
    # lengths; the rest is the command of the Mooncake page that it follows (ssd-offload-benchmark-results).
    "issue-33984": BenchMultiturn(
        name="issue-33984",
        clients=20,
        rounds=9,
        max_parallel=4,
        new_tokens=4096,
        answer_tokens=1,
        rate_per_s=16.0,
        round_barrier=True,
    ),
}


def generator(name: str, **parameters: Any) -> Workload:
    """The generator of that name with some parameters changed; texts become numbers, as from a command line.

    TraceError: an unknown name or parameter, a value that does not fit.
    """
    prototype = known(GENERATORS, "generator", name)
    defaults = parameters_of(name)
    declared = {field.name: str(field.type) for field in fields(prototype)}  # type: ignore[arg-type]
    values = {
        key: _read(known(defaults, f"parameter of {name}", key), declared[key], key, value)
        for key, value in parameters.items()
    }
    return replace(prototype, **values)  # type: ignore[type-var]


def parameters_of(name: str) -> Mapping[str, Any]:
    """Parameters of a generator and their defaults, `name` left out. TraceError: an unknown name."""
    prototype = known(GENERATORS, "generator", name)
    return {field.name: getattr(prototype, field.name) for field in fields(prototype) if field.name != "name"}  # type: ignore[arg-type]


TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _number(text: str) -> float:
    """A whole one where it is written so, as defaults are."""
    return int(text) if text.isdecimal() else float(text)


READERS: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: known(TRUTH, "truth value", text.lower()),
    "int": int,
    "float": _number,
}
"""By the declared type of a parameter."""


def _read(default: Any, declared: str, key: str, value: Any) -> Any:
    text = str(value)
    try:
        return READERS[declared](text)
    except ValueError as error:
        raise TraceError(f"{key} is {text!r:.40}", do=f"give a value like {default!r}") from error


__all__ = [
    "GENERATORS",
    "Agents",
    "BenchMultiturn",
    "Chat",
    "Documents",
    "Rag",
    "SharedPrompts",
    "SpeedTrace",
    "generator",
    "parameters_of",
]
