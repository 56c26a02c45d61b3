"""Where the demo shows itself: a live view in a terminal, plain lines everywhere else."""

import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from kairos_ros.demo.live import LiveFleet
from kairos_ros.demo.view import line, render

REFRESH_S = 0.25
LINE_EVERY_S = 10.0
PROGRESS_EVERY_S = 3.0


class Display(Protocol):
    """A context manager; both methods may be called as often as one likes."""

    def __enter__(self) -> "Display": ...

    def __exit__(self, *error: object) -> None: ...

    def progress(self, text: str) -> None:
        """What the start or the end of the demo is at."""

    def show(self, fleet: LiveFleet) -> None:
        """The running fleet."""


class LiveDisplay:
    """Redraws the view in place, four times a second; it is gone when the demo is over."""

    def __init__(
        self, console: Console, draw: Callable[[LiveFleet, int], RenderableType] = render
    ) -> None:
        """draw: the fleet, for a terminal of so many columns."""
        self._console = console
        self._draw = draw
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._spinner = Spinner("dots", "starting")
        self._due = 0.0

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def progress(self, text: str) -> None:
        self._spinner.update(text=text)
        if self._is_due(0.1):
            self._live.update(self._spinner, refresh=True)

    def show(self, fleet: LiveFleet) -> None:
        if self._is_due(REFRESH_S):
            self._live.update(self._draw(fleet, self._console.width), refresh=True)

    def _is_due(self, every_s: float) -> bool:
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + every_s
        return True


class LineDisplay:
    """Lines while the fleet starts, then one every ten seconds; what goes wrong at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = ""
        self._noticed = 0
        self._due = 0.0

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(self, *error: object) -> None: ...

    def progress(self, text: str) -> None:
        if text != self._said and self._is_due(PROGRESS_EVERY_S):
            self._said = text
            self._print(text)

    def show(self, fleet: LiveFleet) -> None:
        for notice in fleet.notices[self._noticed :]:
            self._print(notice)
        self._noticed = len(fleet.notices)
        if self._is_due(LINE_EVERY_S):
            self._print(line(fleet))

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _is_due(self, every_s: float) -> bool:
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + every_s
        return True
