"""Robot bodies by name. An installed package adds its own through an entry point."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapter import RobotAdapter

GROUP = "kairos_ros.robot_adapters"
"""Entry point group of factories `f(control_rate_hz, **options) -> RobotAdapter`."""


NEED_A_NODE = ("ros2",)
"""Bodies that only a robot node can make: they speak ROS."""


def make_adapter(
    name: str,
    control_rate_hz: float,
    options: Mapping[str, Any],
    more: Mapping[str, Callable[..., RobotAdapter]] | None = None,
) -> RobotAdapter:
    """The body called `name`, with its own options. more: factories of bodies that need a node.

    Raises ConfigError for an unknown name, an unknown option, and whatever the body refuses.
    """
    factory = _factory(name, more or {})
    try:
        inspect.signature(factory).bind(control_rate_hz, **options)
    except TypeError as error:
        raise ConfigError(f"robot adapter {name!r} cannot be made: {error}") from error
    adapter = factory(control_rate_hz, **options)
    if not isinstance(adapter, RobotAdapter):
        raise ConfigError(f"robot adapter {name!r} is a {type(adapter)}, not a RobotAdapter")
    return adapter


def _factory(
    name: str, more: Mapping[str, Callable[..., RobotAdapter]]
) -> Callable[..., RobotAdapter]:
    if factory := more.get(name) or BUILTIN.get(name):
        return factory
    if name in NEED_A_NODE:
        raise ConfigError(f"robot adapter {name!r} uses ROS: only a robot node can have it")
    from importlib.metadata import entry_points  # most robots never need it

    plugins = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in plugins:
        known = ", ".join([*BUILTIN, *NEED_A_NODE, *plugins])
        raise ConfigError(
            f"robot adapter {name!r} is unknown; there are {known} "
            f"(a package adds its own in entry point group {GROUP})"
        )
    plugin: Callable[..., RobotAdapter] = plugins[name].load()
    return plugin


def _sim(
    control_rate_hz: float,
    *,
    env_id: str = "",
    scene: str = "",
    kept_on_hold: tuple[int, ...] = (),
    images: Mapping[str, tuple[int, int]] | None = None,
    env: Mapping[str, Any] | None = None,
    safe_state: Sequence[float] = (),
    proprioception: bool = False,
) -> RobotAdapter:
    """Meta-World's arm; or the Gymnasium environment `env_id` made with the arguments `env`; or a
    `scene` of LeRobot's (docs/scenes.md), whose configuration has the fields `env`."""
    from kairos_ros.robot.adapters.sim.sim import SimAdapter, gymnasium_body, metaworld_body

    if (env_id or scene) and proprioception:
        raise ConfigError(
            "proprioception is of Meta-World's arm; leave it out, or env_id and scene"
        )
    if scene:
        from kairos_ros.robot.adapters.lerobot.lerobot_scenes import lerobot_body

        body = lerobot_body(scene, options=env)
    elif env_id:
        body = gymnasium_body(env_id, kept_on_hold=kept_on_hold, **(env or {}))
    else:
        body = metaworld_body(proprioception=proprioception)
    sizes = {key: cast(tuple[int, int], tuple(size)) for key, size in (images or {}).items()}
    return SimAdapter(body, control_rate_hz=control_rate_hz, images=sizes, safe_state=safe_state)


def _lerobot(control_rate_hz: float, *, robot: str, **options: Any) -> RobotAdapter:
    """LeRobot's robot of that type; options are the adapter's and LeRobot's (docs/so101.md)."""
    from kairos_ros.robot.adapters.lerobot.lerobot_adapter import lerobot_body

    return lerobot_body(control_rate_hz, robot, options)


BUILTIN: Mapping[str, Callable[..., RobotAdapter]] = {"sim": _sim, "lerobot": _lerobot}
