"""The factory demo in the terminal: the fleet as in every demo, and its events below."""

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kairos_ros.demo.factory_story import Story
from kairos_ros.demo.factory_teller import Teller
from kairos_ros.demo.live import LiveFleet
from kairos_ros.demo.view import OURS, render
from kairos_ros.robot.state_table import Mode

_STYLES = {
    Mode.RUNNING: OURS,
    Mode.HOLDING: "yellow",
    Mode.RETURNING: "yellow",
    Mode.RETRYING: "blue",
    Mode.WAITING: "bold magenta",
}


def draw(fleet: LiveFleet, width: int, story: Story, teller: Teller) -> Group:
    """The whole view for a terminal of `width` columns."""
    return Group(
        render(fleet, width),
        Padding(_robots(fleet, story), (0, 0, 1, 0)),
        Text(teller.undone or teller.now, style="bold red" if teller.undone else "bold"),
        *(
            Text(f"{at_s:6.1f} s  {text}", style=style, no_wrap=True, overflow="ellipsis")
            for at_s, text, style in teller.lines
        ),
    )


def _robots(fleet: LiveFleet, story: Story) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="bright_black")
    table.add_column("robot", no_wrap=True)
    table.add_column("state machine", no_wrap=True, min_width=23)
    table.add_column("because", no_wrap=True, overflow="ellipsis", ratio=1, style="bright_black")
    for robot in fleet.robots:
        last = story.last(robot)
        mode = story.mode(robot)
        why = f"{last.trigger}: {last.reason}" if last else ""
        table.add_row(robot, Text(mode, style=_STYLES[mode]), why)
    return table
