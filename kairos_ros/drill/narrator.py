"""Tells what the drill does now: a line for every event, and what it waits for meanwhile."""

import time

from rich.console import Console
from rich.status import Status

from kairos_ros.demo.live import LiveFleet

EVERY_S = 5.0
"""Between lines about one and the same wait, where the output is no terminal."""


class Narrator:
    """A demo's `Display`, in words."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._began = time.monotonic()
        self._said = ""
        self._due = 0.0

    def __enter__(self) -> "Narrator":
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str, style: str = "") -> None:
        """An event, with the time since the drill began."""
        at_s = time.monotonic() - self._began
        self._console.print(
            f"{at_s:6.1f} s  {text}", style=style, highlight=False, soft_wrap=True, markup=False
        )

    def progress(self, text: str) -> None:
        """What is waited for."""
        if self._status is not None:
            self._status.update(text)
        elif text != self._said and time.monotonic() >= self._due:
            self._said, self._due = text, time.monotonic() + EVERY_S
            self.say(text)

    def show(self, fleet: LiveFleet) -> None:
        """A drill has no picture of the fleet."""
