"""A fleet under test: what it says of itself, and what its driver adds, for the live view."""

from collections import Counter, deque
from dataclasses import dataclass, field

from kairos_ros.recording.runs.run import ACTIVITIES, Activity
from kairos_ros.telemetry.fleet_view import FleetView, RobotView


@dataclass(slots=True)
class LiveFleet(FleetView):
    """Everything the view shows. Its robots are there before their first status."""

    finished: Counter[str] = field(default_factory=Counter)
    """Tasks of this run by robot, and those of them that succeeded."""
    successes: Counter[str] = field(default_factory=Counter)
    decisions: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=5))
    """(robot, reason) of the newest decisions, newest last."""
    link: str = ""
    """What the emulated link to the cloud does now; empty without one."""
    tasks_waiting: int = 0
    left_s: float = 0.0
    phase: str = ""
    """What goes on, for people: "comparing 2/4: baseline"."""
    notices: list[str] = field(default_factory=list)
    """What went wrong so far."""

    @property
    def done(self) -> int:
        return self.finished.total()

    @property
    def succeeded(self) -> int:
        return self.successes.total()

    def doing(self, activity: Activity) -> int:
        return sum(activity_of(robot) == activity for robot in self.robots.values())


def activity_of(robot: RobotView) -> Activity | None:
    """None before its first status."""
    return ACTIVITIES[robot.status.state] if robot.status else None
