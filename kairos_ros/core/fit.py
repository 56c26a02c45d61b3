"""Does a robot fit a policy? What one senses and accepts against what the other reads and commands.

Cameras are matched by name. A policy saved by LeRobot names its pictures by feature, such as
`observation.images.front`; people and robots say `front`. Both are the same camera here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

PREFIXES = ("observation.images.", "observation.")
Size = tuple[int, int]
"""(height_px, width_px)."""


@dataclass(frozen=True, slots=True)
class RobotInterface:
    """What a robot senses and accepts, as its requests have it."""

    state_dim: int
    action_dim: int
    cameras: Mapping[str, Size | None] = field(default_factory=dict)
    """Name in requests -> size, None where that is not known."""
    absent: Collection[str] = ()
    """Cameras of the policy that the robot is declared to be without."""


@dataclass(frozen=True, slots=True)
class PolicyInterface:
    """What a policy reads and commands."""

    name: str
    state_dim: int
    action_dim: int
    cameras: Mapping[str, Size] = field(default_factory=dict)
    """Feature or camera name -> size of the pictures that it was trained on."""
    any_size: bool = False
    """It resizes pictures itself, without distortion."""
    optional: bool = False
    """It does without some of its cameras, but not without all."""
    observations: int = 1
    """That it reads, one control period apart, the newest included."""
    keyframe_stride: int = 0
    """Not 0: it keeps a state of every task. Then earlier observations are those that were taken
    when a multiple of so many actions had been executed, and requests tell what was executed."""


def camera_name(feature: str) -> str:
    """`front` for `observation.images.front`."""
    for prefix in PREFIXES:
        if feature.startswith(prefix) and len(feature) > len(prefix):
            return feature.removeprefix(prefix)
    return feature


def features_of(cameras: Collection[str], features: Iterable[str]) -> dict[str, str]:
    """Policy feature -> the camera of `cameras` that is meant by it, for those that there are."""
    named = {camera_name(camera): camera for camera in cameras}
    found = {name: name if name in cameras else named.get(camera_name(name)) for name in features}
    return {feature: camera for feature, camera in found.items() if camera is not None}


def missing_cameras(
    cameras: Collection[str], features: Collection[str], absent: Collection[str], *, optional: bool
) -> list[str]:
    """Names of the cameras that a policy needs and a robot with `cameras` does not send.

    A camera that is declared `absent` is not needed where the policy's cameras are optional, as
    long as another one is there.
    """
    found = features_of(cameras, features)
    missing = [camera_name(feature) for feature in features if feature not in found]
    if optional and found:
        spared = set(map(camera_name, absent))
        missing = [name for name in missing if name not in spared]
    return missing


def camera_advice(
    cameras: Collection[str], features: Collection[str], missing: Collection[str], *, optional: bool
) -> str:
    """What to write so that a robot with `cameras` sends the `missing` ones."""
    read = set(map(camera_name, features))
    spare = [camera for camera in cameras if camera_name(camera) not in read]
    advice = []
    if spare:
        one = len(spare) == len(missing) == 1
        name = next(iter(missing)) if one else "NAME"
        texts = ", ".join(f'"{camera_name(camera)}={name}"' for camera in spare)
        which = "" if one else f" with NAME one of {', '.join(missing)}"
        advice.append(f"write robot parameter camera_map: [{texts}]{which}")
    if optional and (cameras or len(missing) < len(features)):
        left = ", ".join(missing) if not spare else "those that it is without"
        advice.append(f"write absent_cameras: [{left}], which the policy can do without")
    elif not spare:
        advice.append(f"give the robot {_cameras_called(missing)}")
    return "; ".join(advice)


def misfit(robot: RobotInterface, policy: PolicyInterface) -> str:
    """Why `policy` cannot move this robot, in one line that says what to do; empty if it can."""
    if robot.state_dim != policy.state_dim:
        return (
            f"the robot's state has {robot.state_dim} values, policy {policy.name} reads "
            f"{policy.state_dim}; serve a policy that was trained on this robot"
        )
    if robot.action_dim != policy.action_dim:
        return (
            f"the robot takes actions of {robot.action_dim} values, policy {policy.name} gives "
            f"{policy.action_dim}; serve a policy that was trained on this robot"
        )
    optional = policy.optional
    missing = missing_cameras(robot.cameras, policy.cameras, robot.absent, optional=optional)
    if missing:
        advice = camera_advice(robot.cameras, policy.cameras, missing, optional=optional)
        return (
            f"the robot's requests bring {_listed(robot.cameras)}, policy {policy.name} reads "
            f"{_listed({camera_name(key): size for key, size in policy.cameras.items()})}: {advice}"
        )
    if policy.any_size:
        return ""
    for feature, camera in features_of(robot.cameras, policy.cameras).items():
        size, wanted = robot.cameras[camera], policy.cameras[feature]
        if size is not None and size != wanted:
            return (
                f"camera {camera_name(camera)} gives {_size(size)}, policy {policy.name} reads "
                f"{_size(wanted)} (height x width) and does not resize pictures: set the camera's "
                f"size on the robot to {_size(wanted)}"
            )
    return ""


def _cameras_called(names: Collection[str]) -> str:
    return f"{'a camera' if len(names) == 1 else 'cameras'} called {', '.join(names)}"


def _listed(cameras: Mapping[str, Size | None]) -> str:
    """`cameras front (480x640 px), wrist`."""
    texts = [name if size is None else f"{name} ({_size(size)})" for name, size in cameras.items()]
    return f"camera{'s' * (len(texts) != 1)} {', '.join(texts)}" if texts else "no pictures"


def _size(size: Size) -> str:
    return f"{size[0]}x{size[1]} px"
