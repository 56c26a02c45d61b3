"""Parameters of the viz node, and what they configure."""

from collections.abc import Mapping
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import is_robot_name
from kairos_ros.core.wire_check import ROBOTS
from kairos_ros.nodes.parameters import STRINGS, ParameterSpec

P = ParameterSpec
VIZ_PARAMETERS = (
    P("frame", "", "Frame that the fleet stands in: rviz's fixed frame; empty: fleet."),
    P("rate_hz", 8.0, "Drawings per second, while somebody looks.", 0.5, 30.0, live=True),
    P("camera_rate_hz", 2.0, "Pictures of all cameras in one, likewise.", 0.1, 30.0, live=True),
    P("max_robots", ROBOTS, "More at a time are ignored.", 1, 10_000),
    P("columns", 4, "Robots in a row, of those that TF does not place.", 1, 100),
    P("spacing_m", 1.6, "Between neighbours in a row.", 0.1, 100.0),
    P("row_spacing_m", 2.2, "Between rows.", 0.1, 100.0),
    P("arms", STRINGS, "Arms with a URDF, each 'robot={contract: ..., tips: [...]}'."),
    P("diagnostics.late_warn", 0.2, "Share of drawings that came late: warn.", 0.0, 1.0, live=True),
)


class Corners(BaseModel):
    """A box in the base frame, in m."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: tuple[float, float, float]
    high: tuple[float, float, float]


class ArmEntry(BaseModel):
    """How to draw one robot that has a contract and a URDF."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    contract: str
    """Name of a shipped one, or its file: joints and units of the policy."""
    tips: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    """Links whose ways are drawn."""
    urdf: str = ""
    """File; empty: `robot_description` of the contract's first driver."""
    frame: str = ""
    """Of the URDF's root, where TF places that; empty: ROBOT/base, on the grid."""
    zone: Corners | None = None
    """Where the tools may be."""


def arm_entries(texts: list[str]) -> Mapping[str, ArmEntry]:
    """`["arm_1={contract: so101, tips: [gripper_frame_link]}"]` by robot.

    Raises ConfigError for a text that is no such.
    """
    entries = {}
    for text in texts:
        robot, equals, rest = text.partition("=")
        if not equals or not is_robot_name(robot):
            raise ConfigError(f"arms entry {text!r} must read 'robot={{contract: ..., ...}}'")
        try:
            entries[robot] = ArmEntry.model_validate(yaml.safe_load(rest))
        except yaml.YAMLError as error:
            raise ConfigError(f"arms entry {text!r} has no YAML value: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"arms entry {text!r}: {where}: {first['msg']}") from error
    return entries
