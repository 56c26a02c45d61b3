"""Options of the adapter `lerobot`: what it adds to LeRobot's own settings."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapters.lerobot.lerobot_features import Features
from kairos_ros.robot.guard import GuardLimits

Torque = Literal["hold", "torque_off"]


@dataclass(frozen=True, slots=True)
class LeRobotOptions:
    """Units are those of the robot's features: for an SO-101 degrees, and percent of the
    gripper's opening."""

    on_fault: Torque = "hold"
    """What the motors do when something fails: go on holding their last goal, or lose torque."""
    on_stop: Torque = "hold"
    """The same, when the node ends."""
    limits: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Action feature -> [low, high], within the calibrated range."""
    max_speed: float | Mapping[str, float] = 120.0
    """Largest change per second, of all or per action feature; those not named are not limited."""
    safe_state: Mapping[str, float] | Sequence[float] = field(default_factory=dict)
    """Action feature -> where it is when the robot is out of the way, or the first of them in the
    robot's order; others stay."""
    safe_speed: float = 30.0
    """Units per second on the way there."""
    image_keys: Mapping[str, str] = field(default_factory=dict)
    """Camera -> what the policy calls its picture, where that differs."""
    image_size: Sequence[int] = ()
    """[height_px, width_px] to shrink all pictures to; empty: as the cameras take them."""
    max_blind_s: float = 0.25
    """Reads and writes may fail for so long (they are counted) before the task does."""
    max_image_age_s: float = 0.5
    """Older pictures end the task; LeRobot's own drivers accept none older than 0.5 or 1 s."""
    frozen_after_s: float = 0.0
    """The same pixels for so long are no camera's; 0: they may be."""


def split_options(options: Mapping[str, Any]) -> tuple[LeRobotOptions, dict[str, Any]]:
    """Ours, and those that are for LeRobot. Raises ConfigError for a value that cannot be."""
    names = {one.name for one in dataclasses.fields(LeRobotOptions)}
    ours = LeRobotOptions(**{name: value for name, value in options.items() if name in names})
    _check(ours)
    return ours, {name: value for name, value in options.items() if name not in names}


def safe_targets(options: LeRobotOptions, limits: GuardLimits, names: Sequence[str]) -> np.ndarray:
    """Where each action dimension is in the safe state; NaN: it stays. float32 [action_dim].

    Raises ConfigError for one that the limits do not allow, and for more than there are.
    """
    given = options.safe_state
    if not isinstance(given, Mapping):
        if len(given) > len(names):
            raise ConfigError(
                f"adapter lerobot: safe_state has {len(given)} values, the robot {len(names)} "
                "action dimensions"
            )
        given = dict(zip(names, given, strict=False))
    for name, low, high in zip(names, limits.minimum, limits.maximum, strict=True):
        if not low <= given.get(name, low) <= high:
            raise ConfigError(
                f"adapter lerobot: safe_state of {name} is {given[name]:g}, out of its limits from "
                f"{low:.1f} to {high:.1f}"
            )
    return np.array([given.get(name, np.nan) for name in names], np.float32)


def check_names(options: LeRobotOptions, features: Features) -> None:
    """Raises ConfigError for an option that names what the robot does not have."""
    named = {
        "limits": (options.limits, features.action),
        "safe_state": (_named(options.safe_state), features.action),
        "image_keys": (options.image_keys, tuple(features.cameras)),
    }
    if isinstance(options.max_speed, Mapping):
        named["max_speed"] = (options.max_speed, features.action)
    for option, (given, known) in named.items():
        if unknown := sorted(set(given) - set(known)):
            raise ConfigError(
                f"adapter lerobot: option {option} names {unknown[0]!r}; this robot has "
                f"{', '.join(known) or 'none'}"
            )


def guard_limits(
    options: LeRobotOptions, features: Features, calibrated: Mapping[str, tuple[float, float]]
) -> GuardLimits:
    """Per action dimension: the calibrated range, narrowed by the option, and the speed."""
    names = features.action
    low, high = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    for bounds in (calibrated, options.limits):
        for name, (least, most) in bounds.items():
            i = names.index(name)
            low[i], high[i] = max(low[i], least), min(high[i], most)
    speed = options.max_speed
    rates = speed if isinstance(speed, Mapping) else dict.fromkeys(names, speed)
    return GuardLimits(
        minimum=low.tolist(),
        maximum=high.tolist(),
        max_rate=[float(rates.get(name, np.inf)) for name in names],
        measured_by=features.measured_by,
    )


def _check(options: LeRobotOptions) -> None:
    """Raises ConfigError with the first value that cannot be."""
    for name in ("on_fault", "on_stop"):
        value = getattr(options, name)
        if value not in get_args(Torque):
            raise ConfigError(f"adapter lerobot: {name} is {value!r}, not hold or torque_off")
    for name in ("limits", "image_keys"):
        if not isinstance(getattr(options, name), Mapping):
            raise ConfigError(
                f"adapter lerobot: {name} is {getattr(options, name)!r}; write {{NAME: VALUE}}"
            )
    for name, pair in options.limits.items():
        if not (_numbers(pair, 2) and pair[0] < pair[1]):
            raise ConfigError(f"adapter lerobot: limits of {name} are {pair!r}, not [low, high]")
    for name in ("max_speed", "safe_speed", "max_blind_s", "max_image_age_s"):
        value = getattr(options, name)
        values = list(value.values()) if isinstance(value, Mapping) else [value]
        if not (_numbers(values, len(values)) and all(v > 0 for v in values)):
            raise ConfigError(f"adapter lerobot: {name} is {value!r}; it must be above 0")
    if not (_numbers([options.frozen_after_s], 1) and options.frozen_after_s >= 0):
        raise ConfigError(
            f"adapter lerobot: frozen_after_s is {options.frozen_after_s!r}; it must be 0 or more"
        )
    safe = options.safe_state
    told: Any = list(safe.values()) if isinstance(safe, Mapping) else safe
    if not (isinstance(told, Sequence) and _numbers(told, len(told))):
        raise ConfigError(f"adapter lerobot: safe_state is {safe!r}; write {{NAME: VALUE}}")
    if options.image_size and not (_numbers(options.image_size, 2) and min(options.image_size) > 0):
        raise ConfigError(
            f"adapter lerobot: image_size is {options.image_size!r}, not [height_px, width_px]"
        )


def _named(values: Mapping[str, float] | Sequence[float]) -> Mapping[str, float]:
    return values if isinstance(values, Mapping) else {}


def _numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, Sequence)
        and len(values) == count
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        and bool(np.isfinite(values).all())
    )
