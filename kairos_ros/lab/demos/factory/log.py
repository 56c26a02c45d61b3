"""What the factory demo says while it runs: what happens, and what every robot does about it."""

import time
from collections import deque

from rich.console import Console

from kairos_ros.lab.demos.factory.history import SeenTransition
from kairos_ros.lab.testbed.display import print_line
from kairos_ros.robot.supervision.state_table import Mode, Trigger

KEPT = 12
ALWAYS = (Mode.RETRYING, Mode.WAITING)
"""What a robot does not do by itself and at once; of everything else, only events are told."""


class EventLog:
    """Lines for a log at once, and the newest ones for the view."""

    def __init__(self, console: Console, *, view: bool) -> None:
        """view: a live view shows `lines`; nothing is printed then."""
        self.lines: deque[tuple[float, str, str]] = deque(maxlen=KEPT)
        """(seconds since the run began, text, style)."""
        self.now = ""
        """What the script is at."""
        self.undone: str | None = None
        """What is wrong at this moment."""
        self.about: tuple[str, ...] = ()
        """Whom it concerns."""
        self._console, self._view = console, view
        self._began = time.monotonic()
        self._told: dict[str, set[tuple[Mode, Mode, Trigger]]] = {}
        """Of each robot since it was last running: the same once more says nothing new."""

    def begin(self) -> None:
        """The run begins now."""
        self._began = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        """An event."""
        at_s = time.monotonic() - self._began
        self.lines.append((at_s, text, style))
        if not self._view:
            print_line(self._console, f"{at_s:6.1f} s  {text}", style)

    def moved(self, transition: SeenTransition) -> None:
        """A robot changed its mode."""
        if transition.after is Mode.RUNNING:
            self._told.pop(transition.robot, None)
        step = (transition.before, transition.after, transition.trigger)
        told = self._told.setdefault(transition.robot, set())
        telling = transition.robot in self.about or {transition.before, transition.after} & {
            *ALWAYS
        }
        if transition.before is transition.after or not telling or step in told:
            return
        told.add(step)
        took = f", {1e3 * transition.reacted_s:.0f} ms after that was known"
        style = "magenta" if transition.after is Mode.WAITING else ""
        self.say(
            f"  {transition.robot}: {transition.before} → {transition.after} "
            f"({transition.trigger}: {transition.reason:.90}"
            f"{took if transition.component else ''})",
            style,
        )
