"""Questions by name: the folders that have a `question.py`, which holds one `QUESTION`."""

from __future__ import annotations

from importlib import import_module

from .question import FOLDER, Question

QUESTIONS: dict[str, Question] = {
    path.parent.name: import_module(f"{__package__}.{path.parent.name}.question").QUESTION
    for path in sorted(FOLDER.glob("*/question.py"))
}


def find(name: str) -> Question:
    """ValueError: unknown, with the known ones."""
    if name not in QUESTIONS:
        raise ValueError(f"unknown question {name!r}: known are {', '.join(QUESTIONS)}")
    return QUESTIONS[name]
