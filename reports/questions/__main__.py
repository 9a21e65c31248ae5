"""`python -m reports.questions [NAME …]`: run the replays, write the files."""

from __future__ import annotations

import argparse
import time
from typing import Any

from joblib import Parallel, delayed

from .catalogue import QUESTIONS, find
from .pages import figures_of, machine, read, write, write_readme


def _run(name: str, case: str) -> dict[str, Any]:
    return find(name).run(case)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reports.questions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(QUESTIONS)}; none: all")
    parser.add_argument("--jobs", type=int, default=-1, help="processes; -1: one a CPU")
    parser.add_argument("--redraw", action="store_true", help="write the files from results.json, without a replay")
    options = parser.parse_args()
    try:
        questions = [find(name) for name in options.names or QUESTIONS]
    except ValueError as error:
        parser.error(str(error))
    for question in questions:
        if options.redraw:
            found, where = figures_of(read(question)), read(question)["machine"]
        else:
            began_s = time.monotonic()
            figures = Parallel(n_jobs=options.jobs)(delayed(_run)(question.name, case) for case in question.cases)
            found = dict(zip(question.cases, figures, strict=True))
            where = machine(time.monotonic() - began_s)
        write(question, found, where)
        print(f"{question.title}\n  {question.answer(found)}\n  {question.folder}\n")
    write_readme(QUESTIONS.values())


if __name__ == "__main__":
    main()
