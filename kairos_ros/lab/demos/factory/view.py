"""The factory demo in the terminal: the fleet as in every demo, and its events below."""

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kairos_ros.lab.demos.factory.history import FleetHistory
from kairos_ros.lab.demos.factory.log import EventLog
from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.view import OURS, render
from kairos_ros.robot.supervision.state_table import Mode

_STYLES = {
    Mode.RUNNING: OURS,
    Mode.HOLDING: "yellow",
    Mode.RETURNING: "yellow",
    Mode.RETRYING: "blue",
    Mode.WAITING: "bold magenta",
}


def draw(fleet: LiveFleet, width: int, history: FleetHistory, log: EventLog) -> Group:
    """The whole view for a terminal of `width` columns."""
    return Group(
        render(fleet, width),
        Padding(_robots(fleet, history), (0, 0, 1, 0)),
        Text(log.undone or log.now, style="bold red" if log.undone else "bold"),
        *(
            Text(f"{at_s:6.1f} s  {text}", style=style, no_wrap=True, overflow="ellipsis")
            for at_s, text, style in log.lines
        ),
    )


def _robots(fleet: LiveFleet, history: FleetHistory) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bright_black")
    table.add_column("robot", no_wrap=True)
    table.add_column("state machine", no_wrap=True, min_width=23)
    table.add_column("because", no_wrap=True, overflow="ellipsis", ratio=1, style="bright_black")
    for robot in fleet.robots:
        last = history.last(robot)
        mode = history.mode(robot)
        why = f"{last.trigger}: {last.reason}" if last else ""
        table.add_row(robot, Text(mode, style=_STYLES[mode]), why)
    return table
