"""Messages of live topics as events."""

from typing import Any

from kairos_ros.core.errors import WireError
from kairos_ros.telemetry.decode import decode
from kairos_ros.telemetry.events import Event

_OF_ALL = ("kairos", "diagnostics")
"""First names of topics that are no robot's."""


def event_of(message: Any, topic: str, at_s: float) -> Event | None:
    """As `decode`. at_s: when it came, on this host's monotonic clock.

    Raises WireError also for what is said of another robot than the topic's.
    """
    kind = type(message)
    owner = topic.split("/")[1]
    if owner not in _OF_ALL and getattr(message, "robot", owner) != owner:
        raise WireError(f"a message on {topic} that is of another robot")
    package = kind.__module__.partition(".")[0]
    return decode(f"{package}/msg/{kind.__name__}", topic, message, at_s)
