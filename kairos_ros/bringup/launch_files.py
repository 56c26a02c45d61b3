"""A plan as a `launch.LaunchDescription`, with the arguments that all launch files have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kairos_ros.bringup.plan import body_text, flag
from kairos_ros.bringup.process_spec import (
    ProcessKind,
    ProcessSpec,
    command,
    fixed_frame,
    installed,
    missing_text,
    namespace_in,
)
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames

COMMON_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "namespace": ("", "Of the whole fleet, such as site_a; below one that was pushed before"),
    "params_file": ("", "YAML of ROS parameters, read after the package's own; arguments win"),
    "use_sim_time": ("false", "true: stamps follow /clock"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
    "use_respawn": ("false", "true: a node that ends by itself is started again after 2 s"),
    "autostart": ("true", "false: somebody else configures and activates the lifecycle nodes"),
}
"""Name -> (default, description)."""
LIFECYCLE_NODES = (
    *("serving_node", "robot_node", "safety_node", "monitor_node", "planner_node", "vlm_node"),
    *("recorder_node", "viz_node"),
)
LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
RESPAWN_S = 2.0


@dataclass(frozen=True, slots=True)
class CommonValues:
    """What they say."""

    names: FleetNames
    params_file: str
    use_sim_time: bool
    log_level: str
    respawn: bool
    autostart: bool

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "CommonValues":
        """Raises ConfigError for a value that is wrong, and for a file that is not there."""
        values = {name: default for name, (default, _) in COMMON_ARGUMENTS.items()} | dict(given)
        file, level = values["params_file"], values["log_level"].lower()
        if file and not Path(file).expanduser().is_file():
            raise ConfigError(f"argument params_file: there is no file {file!r}")
        if level not in LOG_LEVELS:
            raise ConfigError(f"argument log_level is {level!r}; say {', '.join(LOG_LEVELS)}")
        flags = (flag(name, values[name]) for name in ("use_sim_time", "use_respawn", "autostart"))
        sim_time, respawn, autostart = flags
        path = str(Path(file).expanduser()) if file else ""
        names = FleetNames.below(values["namespace"])
        return cls(names, path, sim_time, level, respawn, autostart)

    def applied(self, specs: Sequence[ProcessSpec]) -> list[ProcessSpec]:
        """A plan whose nodes have these parameters; one that is left at its default is not set, so
        that a file can."""
        return [
            replace(spec, parameters={**self._parameters(spec.executable), **spec.parameters})
            for spec in specs
        ]

    def _parameters(self, executable: str) -> dict[str, Any]:
        parameters: dict[str, Any] = {"use_sim_time": True} if self.use_sim_time else {}
        if executable in LIFECYCLE_NODES and not self.autostart:
            parameters["autostart"] = False
        return parameters

    def node_arguments(self, spec: ProcessSpec) -> dict[str, Any]:
        """What `launch_ros.actions.Node` is given of a node, besides its names.

        launch_ros takes no empty list. Every list of ours is empty unless somebody sets it.
        """
        files = [str(file) for file in (spec.params_file, self.params_file) if file]
        parameters = {
            name: value for name, value in spec.parameters.items() if value not in ([], ())
        }
        return {
            "parameters": [*files, parameters],
            "ros_arguments": ["--log-level", self.log_level],
            "respawn": self.respawn,
            "respawn_delay": RESPAWN_S,
        }


def launch_description(
    arguments: Mapping[str, tuple[str, str]],
    make_plan: Callable[[dict[str, str]], Sequence[ProcessSpec]],
) -> Any:
    """A `launch.LaunchDescription` of a plan, for launch files (ours and users' own).

    Args:
        arguments: name -> (default value, description) of each launch argument, besides
            COMMON_ARGUMENTS.
        make_plan: from the arguments that are not empty, the nodes to run.
    """
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, ExecuteProcess, LogInfo, OpaqueFunction
    from launch.substitutions import LaunchConfiguration
    from launch_ros.actions import Node

    def nodes(context: Any) -> list[Any]:
        def given(names: Iterable[str]) -> dict[str, str]:
            values = {name: LaunchConfiguration(name).perform(context) for name in names}
            return {name: value for name, value in values.items() if value}

        common = CommonValues.of(given(COMMON_ARGUMENTS))
        specs = common.applied(make_plan(given(arguments)))
        pushed = context.launch_configurations.get("ros_namespace", "")  # by PushRosNamespace
        names = FleetNames.below(f"{pushed}{common.names.namespace}")
        missing = [spec for spec in specs if not installed(spec)]
        told = [LogInfo(msg=f"{missing_text(spec)}. The rest runs without it.") for spec in missing]
        told += [LogInfo(msg=body_text(s)) for s in specs if s.executable == "robot_node"]
        told += [
            ExecuteProcess(
                cmd=command(spec),
                name=spec.name,
                output="screen",
                respawn=common.respawn,
                respawn_delay=RESPAWN_S,
            )
            for spec in specs
            if spec.kind is not ProcessKind.NODE
        ]
        return told + [
            Node(
                package=spec.package,
                executable=spec.executable,
                arguments=[*spec.arguments, *fixed_frame(spec, names)],
                name=spec.name,
                namespace=namespace_in(common.names, spec),
                output="screen",
                **common.node_arguments(spec),
            )
            for spec in specs
            if spec.kind is ProcessKind.NODE and spec not in missing
        ]

    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in {**arguments, **COMMON_ARGUMENTS}.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=nodes)])
