"""Robot bodies by name. An installed package adds its own through an entry point."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapter import RobotAdapter

GROUP = "kairos_ros.robot_adapters"
"""Entry point group of factories `f(control_rate_hz, **options) -> RobotAdapter`."""


def make_adapter(name: str, control_rate_hz: float, options: Mapping[str, Any]) -> RobotAdapter:
    """The body called `name`, with its own options.

    Raises ConfigError for an unknown name, an unknown option, and whatever the body refuses.
    """
    factory = _factory(name)
    try:
        inspect.signature(factory).bind(control_rate_hz, **options)
    except TypeError as error:
        raise ConfigError(f"robot adapter {name!r} cannot be made: {error}") from error
    adapter = factory(control_rate_hz, **options)
    if not isinstance(adapter, RobotAdapter):
        raise ConfigError(f"robot adapter {name!r} is a {type(adapter)}, which is no RobotAdapter")
    return adapter


def _factory(name: str) -> Callable[..., RobotAdapter]:
    if name in BUILTIN:
        return BUILTIN[name]
    plugins = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in plugins:
        raise ConfigError(
            f"robot adapter {name!r} is unknown; there are {', '.join([*BUILTIN, *plugins])} "
            f"(a package adds its own in entry point group {GROUP})"
        )
    return plugins[name].load()


def _sim(
    control_rate_hz: float,
    *,
    env_id: str = "",
    kept_on_hold: tuple[int, ...] = (),
    images: Mapping[str, tuple[int, int]] | None = None,
    env: Mapping[str, Any] | None = None,
    safe_state: Sequence[float] = (),
) -> RobotAdapter:
    """Meta-World's arm, or the Gymnasium environment `env_id` made with the arguments `env`."""
    from kairos_ros.robot.sim import SimAdapter, gymnasium_body, metaworld_body

    if env_id:
        body = gymnasium_body(env_id, kept_on_hold=kept_on_hold, **(env or {}))
    else:
        body = metaworld_body()
    sizes = {key: tuple(size) for key, size in (images or {}).items()}
    return SimAdapter(body, control_rate_hz=control_rate_hz, images=sizes, safe_state=safe_state)


BUILTIN: Mapping[str, Callable[..., RobotAdapter]] = {"sim": _sim}
