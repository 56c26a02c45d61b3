"""Messages of live topics as events."""

from typing import Any

from kairos_ros.core.errors import WireError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.telemetry.decode import decode
from kairos_ros.telemetry.events import Event


def event_of(message: Any, topic: str, at_s: float, names: FleetNames = ROOT) -> Event | None:
    """As `decode`. at_s: when it came, on this host's monotonic clock.

    Raises WireError also for what is said of another robot than the topic's.
    """
    kind = type(message)
    robot = names.robot_of(topic)
    if robot and getattr(message, "robot", robot) != robot:
        raise WireError(f"a message on {topic} that is of another robot")
    package = kind.__module__.partition(".")[0]
    return decode(f"{package}/msg/{kind.__name__}", topic, message, at_s, names)
