"""The traces that are shipped with the package, by name. Sources and licences: data/README.md."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from .errors import known

SAMPLES = {
    "conversation": "conversation_trace.jsonl.gz",
    "synthetic": "synthetic_trace.jsonl.gz",
    "claude-code": "claude_code_subagents.weka.jsonl.gz",
}


def sample(name: str) -> Path:
    """Path of a shipped trace. TraceError: an unknown name."""
    return Path(str(files(__package__) / "data" / known(SAMPLES, "sample", name)))
