"""Where a replay shows how far it is: a bar in a terminal, lines everywhere else. On stderr."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kairos_ros.lab.testbed.display import Interval, print_line

SAY_EVERY_S = 3.0
LINE_EVERY_S = 5.0


class ReplayProgress:
    """A context manager; both methods may be called as often as one likes."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns,
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._said = ""
        self._interval = Interval()

    def __enter__(self) -> "ReplayProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """What the start or the end is at."""
        self._bar.update(self._task, description=text)
        if text != self._said and self._is_due(SAY_EVERY_S):
            self._said = text
            self.print(text)

    def show(self, done: int, tasks: int, busy: int) -> None:
        """The running replay."""
        text = f"{busy} robots busy"
        self._bar.update(self._task, description=text, completed=done, total=tasks)
        if self._is_due(LINE_EVERY_S):
            self.print(f"{done} of {tasks} tasks done, {text}")

    def print(self, text: str) -> None:
        """A line, above the bar where there is one."""
        print_line(self._console, text)

    def _is_due(self, every_s: float) -> bool:
        return not self._console.is_terminal and self._interval.due(every_s)
