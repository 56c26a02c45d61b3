"""Which topics of a fleet belong into a bag."""

import re
from collections.abc import Iterable, Mapping

from kairos_ros.core.errors import ConfigError

FLEET = ("/kairos/robot_status", "/kairos/fleet_state", "/diagnostics")
UPDATES = "/kairos/chunk_updates"
FULL_UPDATES = "/kairos/chunk_updates/full"
SENSORS = (
    "sensor_msgs/msg/JointState",
    "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CompressedImage",
)
_REQUEST = "/chunk_request"
_RULES = "/rules"
"""What a robot works under, and its judges owe it."""


def parse_topics(text: str) -> re.Pattern[str] | None:
    """A regular expression for whole topic names; None where empty. Raises ConfigError."""
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise ConfigError(f"topics {text!r} is no regular expression: {error}") from error


def selected(
    topics: Mapping[str, str], wanted: re.Pattern[str] | None, *, full_updates: bool
) -> list[str]:
    """The topics to record, of all that exist (name -> type).

    wanted: names that match as a whole; None: what the fleet says (requests with their images,
    chunks with their updates, execution, tasks, states, verdicts and what robots did about them,
    diagnostics) and, below a robot's namespace, joint states and images.
    """
    if wanted is not None:
        return [name for name in topics if wanted.fullmatch(name)]
    fleet = {*FLEET, FULL_UPDATES if full_updates else UPDATES}
    robots = {name.removesuffix(_REQUEST) for name in topics if name.endswith(_REQUEST)}
    return [
        name
        for name, kind in topics.items()
        if name in fleet or (_belongs(name, kind) and _below(name, robots))
    ]


def _belongs(name: str, kind: str) -> bool:
    return kind.startswith("kairos_ros/msg/") or kind in SENSORS or name.endswith(_RULES)


def _below(name: str, robots: Iterable[str]) -> bool:
    return any(name.startswith(f"{robot}/") for robot in robots)
