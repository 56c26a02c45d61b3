"""How a run shows itself: a live view in a terminal, plain lines everywhere else, or events."""

import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.status import Status

from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.view import line, render

REFRESH_S = 0.25
LINE_EVERY_S = 5.0
PROGRESS_EVERY_S = 3.0
EVENTS_EVERY_S = 5.0
"""Between lines about one and the same wait, where the output is no terminal."""


class Display(Protocol):
    """A context manager; both methods may be called as often as one likes."""

    def __enter__(self) -> "Display": ...

    def __exit__(self, *error: object) -> None: ...

    def progress(self, text: str) -> None:
        """What the start or the end of the demo is at."""

    def show(self, fleet: LiveFleet) -> None:
        """The running fleet."""


class Interval:
    """Lets something happen now and then."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def due(self, every_s: float) -> bool:
        """Whether `every_s` have passed since this was last true."""
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + every_s
        return True


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
        self._interval = Interval()

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def progress(self, text: str) -> None:
        self._spinner.update(text=text)
        if self._interval.due(0.1):
            self._live.update(self._spinner, refresh=True)

    def show(self, fleet: LiveFleet) -> None:
        if self._interval.due(REFRESH_S):
            self._live.update(self._draw(fleet, self._console.width), refresh=True)


class LineDisplay:
    """Lines while the fleet starts, then one every five seconds; what goes wrong at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = ""
        self._noticed = 0
        self._interval = Interval()

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(self, *error: object) -> None: ...

    def progress(self, text: str) -> None:
        if text != self._said and self._interval.due(PROGRESS_EVERY_S):
            self._said = text
            self._print(text)

    def show(self, fleet: LiveFleet) -> None:
        for notice in fleet.notices[self._noticed :]:
            self._print(notice)
        self._noticed = len(fleet.notices)
        if self._interval.due(LINE_EVERY_S):
            self._print(line(fleet))

    def _print(self, text: str) -> None:
        print_line(self._console, text)


class EventDisplay:
    """A line for every event, with the time since the run began, and what is waited for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._began = time.monotonic()
        self._said = ""
        self._interval = Interval()

    def __enter__(self) -> "EventDisplay":
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str, style: str = "") -> None:
        """An event."""
        at_s = time.monotonic() - self._began
        print_line(self._console, f"{at_s:6.1f} s  {text}", style)

    def progress(self, text: str) -> None:
        """What is waited for."""
        if self._status is not None:
            self._status.update(text)
        elif text != self._said and self._interval.due(EVENTS_EVERY_S):
            self._said = text
            self.say(text)

    def show(self, fleet: LiveFleet) -> None:
        """There is no picture of the fleet."""


def print_line(console: Console, text: str, style: str = "") -> None:
    """As it is, in one line."""
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)
