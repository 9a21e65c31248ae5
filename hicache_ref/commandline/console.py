"""What commands print on, and how they show that they are at work."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def make_console(stderr: bool = False) -> Console:
    """As wide as the terminal; in a file, wide enough for the tables."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=120)


class Bar:
    """A progress bar that appears when a run is long, and costs next to nothing when it is not."""

    def __init__(self, console: Console, limit: int | None, what: str = "replaying", clock: str = "simulated") -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(what, total=limit)
        self._what, self._clock = what, clock
        self._started = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._progress.stop()

    def advance(self, done: int, at_s: float) -> None:
        if done % 1000:
            return
        if not self._started:
            self._started = True
            self._progress.start()
        self._progress.update(self._task, completed=done, description=f"{self._what}, {at_s:,.0f} s {self._clock}")
