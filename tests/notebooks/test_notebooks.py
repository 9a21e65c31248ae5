"""Notebooks run, and show what they are committed with."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import pytest

from notebooks.execute import FOLDER, NAMES, ROOT, executed, path_of, read, shown, written

NEEDS = {"real_against_simulated": "torch"}


def test_all_are_executed() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


def test_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(ValueError, match="known are first_replay"):
        path_of("second_replay")


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_the_same(name: str) -> None:
    needed = NEEDS.get(name)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    path = path_of(name)
    assert list(shown(executed(path))) == list(shown(read(path)))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_committed_as_it_ran(name: str) -> None:
    """Outputs are there, without paths and times of the machine; and cells are short."""
    book = read(path_of(name))
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(len(cell.outputs) for cell in cells) >= 3
    assert not any("execution" in cell.metadata for cell in cells)
    text = written(book)
    for place in (ROOT, Path.home(), tempfile.gettempdir()):
        assert f"{place}/" not in text
    assert max(cell.source.count("\n") for cell in cells) < 30
