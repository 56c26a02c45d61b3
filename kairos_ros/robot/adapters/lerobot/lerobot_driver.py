"""LeRobot's driver of a robot, by the name that LeRobot or a plugin gives it. Not connected yet."""

import dataclasses
import pkgutil
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from importlib import import_module
from importlib.metadata import distributions
from typing import Any, get_args, get_origin, get_type_hints

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.faults import did_you_mean
from kairos_ros.robot.adapters.lerobot.lerobot_options import LeRobotOptions
from kairos_ros.robot.adapters.lerobot.lerobot_torch import torch_deferred

TORQUE_AT_END = "disable_torque_on_disconnect"
RETRIES = "num_read_retries"
CAMERA_TIMEOUT_MS = 1000
"""LeRobot's network camera waits 2 s for its thread when it disconnects, then closes the socket
under it, which aborts the process: its reads must end sooner."""


def build_driver(name: str, fields: Mapping[str, Any]) -> Any:
    """LeRobot's `Robot` of type `name`, its configuration made of `fields` as LeRobot names them.

    Two of LeRobot's settings are not left to it: whether torque goes off is decided by the adapter,
    and a read that failed is not repeated at once (three tries with a silent motor block for
    150 ms) unless `num_read_retries` is given.

    Raises ConfigError for whatever is wrong with name or fields, and where LeRobot is missing.
    """
    if _named(fields, TORQUE_AT_END):
        raise ConfigError(f"adapter lerobot: give on_stop=hold or torque_off, not {TORQUE_AT_END}")
    try:
        with torch_deferred():
            import draccus
            import lerobot.robots
            from lerobot.cameras import CameraConfig
    except ImportError as error:
        raise ConfigError(
            f"adapter lerobot: LeRobot cannot be imported ({error}); "
            "pip install 'lerobot[feetech]==0.6.1' for an SO-101, or with what your robot needs"
        ) from error
    _learn(lerobot.robots.RobotConfig, "lerobot.robots", name, "lerobot_robot_")
    for camera in _camera_types(fields):
        _learn(CameraConfig, "lerobot.cameras", camera, "lerobot_camera_")
    try:
        config = draccus.decode(lerobot.robots.RobotConfig, {"type": name, **fields})
    except (draccus.utils.ParsingError, ValueError, TypeError) as error:
        why = f" {_line(error.__cause__)}" if error.__cause__ else ""
        if isinstance(error, draccus.utils.DecodingError):
            why += _meant(lerobot.robots.RobotConfig.get_choice_class(name), fields, error)
        raise ConfigError(f"adapter lerobot, robot {name}: {_line(error)}{why}") from error
    _settle(config, keep_retries=_named(fields, RETRIES))
    try:
        return lerobot.robots.make_robot_from_config(config)
    except Exception as error:  # a driver, or a plugin's, raises whatever it likes
        raise ConfigError(
            f"adapter lerobot, robot {name}: its driver cannot be made: {_line(error)}"
        ) from error


def calibration_command(name: str, fields: Mapping[str, Any]) -> str:
    """What calibrates this robot, to be run by a person beside it."""
    told = ("port", "id", "calibration_dir")
    arguments = [
        f"--robot.{path}={value}"
        for path, value in _leaves(fields)
        if path.rpartition(".")[2] in told
    ]
    return " ".join(["lerobot-calibrate", f"--robot.type={name}", *arguments])


def _learn(base: Any, package: str, name: str, plugin_prefix: str) -> None:
    """Imports what makes `name` a choice of `base`: one module of LeRobot, or a plugin."""
    failed: dict[str, str] = {}
    modules = _modules(package, name, plugin_prefix)
    while name not in base.get_known_choices() and (module := next(modules, "")):
        try:
            import_module(module)
        except Exception as error:  # those that need what is not installed; a plugin's own faults
            failed[module] = _line(error)
    known = sorted(base.get_known_choices())
    if name in known:
        return
    hint = did_you_mean(name, known)
    broken = "".join(f"; {module} fails to import: {why}" for module, why in failed.items())
    raise ConfigError(
        f"LeRobot has no {package.rpartition('.')[2][:-1]} {name!r}{hint}; there are "
        f"{', '.join(known)}; a plugin is an installed package {plugin_prefix}*{broken}"
    )


def _meant(config: Any, fields: Mapping[str, Any], error: Any) -> str:
    """Of options that do not exist: which were meant, or which there are; else nothing.

    config: class of the whole configuration. error: draccus's `DecodingError`.
    """
    given: Any = fields
    for step in error.key_path:
        given = given.get(step) if isinstance(given, Mapping) else None
        if get_origin(config) is dict:
            config = get_args(config)[1]
        else:
            config = get_type_hints(config).get(step) if isinstance(config, type) else None
        if not isinstance(given, Mapping):
            return ""
        if hasattr(config, "get_choice_class") and "type" in given:
            config = config.get_choice_class(given["type"])
    if not dataclasses.is_dataclass(config):
        return ""
    known = [field.name for field in dataclasses.fields(config)]
    if not error.key_path:
        known += [field.name for field in dataclasses.fields(LeRobotOptions)]
    unknown = [str(name) for name in given if name not in known and name != "type"]
    hints = [did_you_mean(name, known) for name in unknown]
    if not any(hints):
        return f"; there are {', '.join(known)}" if unknown else ""
    return ";" + ",".join(f" {name}{hint}" for name, hint in zip(unknown, hints, strict=True))


def _modules(package: str, name: str, plugin_prefix: str) -> Iterator[str]:
    """Where the choice may be made: the module named most like it, plugins, all other modules."""
    inside = [m.name for m in pkgutil.iter_modules(import_module(package).__path__) if m.ispkg]
    inside.sort(key=lambda module: SequenceMatcher(None, module, name).ratio(), reverse=True)
    yield from (f"{package}.{module}" for module in inside[:1])
    # reading what is installed takes a while: only for those that are not LeRobot's own
    names = {(one.metadata["Name"] or "").replace("-", "_") for one in distributions()}
    yield from sorted(plugin for plugin in names if plugin.startswith(plugin_prefix))
    yield from (f"{package}.{module}" for module in inside[1:])


def _settle(config: Any, *, keep_retries: bool) -> None:
    """Writes what the adapter decides into the configuration of the robot and of its arms."""
    if hasattr(config, TORQUE_AT_END):
        setattr(config, TORQUE_AT_END, False)
    if hasattr(config, RETRIES) and not keep_retries:
        setattr(config, RETRIES, 0)
    for camera in getattr(config, "cameras", {}).values():
        if getattr(camera, "timeout_ms", 0) > CAMERA_TIMEOUT_MS:
            camera.timeout_ms = CAMERA_TIMEOUT_MS
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        if dataclasses.is_dataclass(part):
            _settle(part, keep_retries=keep_retries)


def _camera_types(fields: Mapping[str, Any]) -> set[str]:
    return {
        str(value)
        for path, value in _leaves(fields)
        if path.endswith(".type") and "cameras" in path.split(".")
    }


def _named(fields: Mapping[str, Any], name: str) -> bool:
    return any(path.rpartition(".")[2] == name for path, _ in _leaves(fields))


def _leaves(fields: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted path and value of everything that is no mapping."""
    for name, value in fields.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def _line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
