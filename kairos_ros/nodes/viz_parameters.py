"""Parameters of the viz node, and what they configure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes.parameters import STRINGS, ParameterSpec

P = ParameterSpec
VIZ_PARAMETERS = (
    P("frame", "fleet", "Frame that the fleet stands in: rviz's fixed frame."),
    P("rate_hz", 8.0, "Drawings per second, while somebody looks.", 0.5, 30.0),
    P("camera_rate_hz", 2.0, "Pictures of all cameras in one, likewise.", 0.1, 30.0),
    P("columns", 4, "Robots in a row, of those that TF does not place.", 1, 100),
    P("spacing_m", 1.6, "Between neighbours in a row.", 0.1, 100.0),
    P("row_spacing_m", 2.2, "Between rows.", 0.1, 100.0),
    P("arms", STRINGS, "Arms with a URDF, each 'robot={tip: LINK, ...}' (docs/rviz.md)."),
    P("diagnostics.late_warn", 0.2, "Share of drawings that came late: warn.", 0.0, 1.0),
)


class Corners(BaseModel):
    """A box in the base frame, in m."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: tuple[float, float, float]
    high: tuple[float, float, float]


class _Written(BaseModel):
    """The YAML of one entry of `arms`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tip: str
    description: str = ""
    joint_states: str = ""
    joints: tuple[str, ...] = ()
    degrees: bool = False
    frame: str = ""
    zone: Corners | None = None


@dataclass(frozen=True, slots=True)
class ArmEntry:
    """How to draw one robot that has a URDF."""

    tip: str
    """Link whose way is drawn."""
    description: str
    """Topic of the URDF."""
    joint_states: str
    """Topic of the joint states."""
    own_units: bool
    """They come from the robot node, in the units of its policy, and not in rad from a driver."""
    joints: tuple[str, ...]
    """First entries of the policy's state and action; empty: those up to the tip, in order."""
    degrees: bool
    """Unit of state and action; false: rad."""
    frame: str
    """Of the base."""
    zone: tuple[tuple[float, float, float], tuple[float, float, float]] | None


def arm_entries(texts: list[str]) -> Mapping[str, ArmEntry]:
    """`["arm_1={tip: gripper_link}"]` by robot. Raises ConfigError for a text that is no such."""
    entries = {}
    for text in texts:
        robot, equals, rest = text.partition("=")
        if not equals or not robot.isidentifier():
            raise ConfigError(f"arms entry {text!r} must read 'robot={{tip: LINK, ...}}'")
        entries[robot] = _entry(robot, text, rest)
    return entries


def _entry(robot: str, text: str, rest: str) -> ArmEntry:
    try:
        data: Any = yaml.safe_load(rest)
        written = _Written.model_validate(data)
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"arms entry {text!r}: {error}") from error
    zone = (written.zone.low, written.zone.high) if written.zone else None
    return ArmEntry(
        tip=written.tip,
        description=written.description or f"/{robot}/robot_description",
        joint_states=written.joint_states or f"/{robot}/joint_states",
        own_units=not written.joint_states,
        joints=written.joints,
        degrees=written.degrees,
        frame=written.frame or f"{robot}/base",
        zone=zone,
    )
