"""Run notebooks in fresh kernels.

    python -m notebooks.execute                # all, and write what they showed
    python -m notebooks.execute first_replay   # one

Rules of this file
- What a notebook shows is the same everywhere, but for cells tagged `varies`: those may show times of this machine.
- Nothing of the machine is kept: no paths, no times of execution.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
VARIES = "varies"
NAMES = (
    "first_replay",
    "which_ratio_and_policy",
    "own_eviction_policy",
    "real_against_simulated",
    "reading_the_event_log",
)


def path_of(name: str) -> Path:
    """ValueError: unknown, with the known ones."""
    if name not in NAMES:
        raise ValueError(f"unknown notebook {name!r}: known are {', '.join(NAMES)}")
    return FOLDER / f"{name}.ipynb"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def written(book: Any) -> str:
    return str(nbformat.writes(book)) + "\n"  # type: ignore[no-untyped-call]


def executed(path: Path, timeout_s: int = 100) -> Any:
    """The notebook with fresh outputs. CellExecutionError: a cell that raises."""
    book = read(path)
    where = {"metadata": {"path": str(ROOT)}}
    with TemporaryDirectory() as folder:
        # Sockets are files, and lie beside this one: no port is opened.
        kernel = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        config = Config({"AsyncKernelManager": kernel})
        client = NotebookClient(book, timeout=timeout_s, kernel_name="python3", resources=where, config=config)
        client.record_timing, client.coalesce_streams = False, True
        client.execute()
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return book


def shown(book: Any) -> Iterator[tuple[str, str]]:
    """Source and text output of each code cell whose output does not depend on the machine."""
    for cell in book.cells:
        if cell.cell_type == "code" and VARIES not in cell.metadata.get("tags", ()):
            yield cell.source, "".join(map(_text, cell.outputs))


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    data = output.get("data", {})
    return "[figure]\n" if "image/png" in data else _ADDRESS.sub("", str(data.get("text/plain", ""))) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m notebooks.execute", description="Run notebooks, keep outputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    names = parser.parse_args().names or NAMES
    for name in names:
        try:
            path = path_of(name)
        except ValueError as error:
            parser.error(str(error))
        path.write_text(written(executed(path)), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
