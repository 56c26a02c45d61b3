"""Which nodes make up a fleet, as a pure plan, and a runner that starts it as real processes.

The launch files map the plan to `launch_ros` nodes; `kairos up`, `kairos demo` and the tests start
the very same plan with `Fleet`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from kairos_ros.core.calibration import Calibrated
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizon import parse_horizon
from kairos_ros.engine.orphan import die_with_parent
from kairos_ros.serving.calibration_file import find_calibration
from kairos_ros.share import share

LAUNCHER_PID = "KAIROS_LAUNCHER_PID"
"""Environment variable with the process id of a `Fleet`'s process."""

NOT_ASCII = re.compile(r"[^ -~]")
VLM_NODES = ("safety", "monitor", "planner", "vlm")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node process."""

    executable: str
    name: str
    namespace: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Override the values in `params_file`."""
    params_file: Path | None = None
    package: str = "kairos_ros"
    arguments: tuple[str, ...] = ()
    """Of the command line, before those of ROS."""


def serving(**parameters: Any) -> NodeSpec:
    """The edge serving node, active as soon as its engine is warm unless `autostart=False`."""
    return NodeSpec(
        "serving_node",
        "serving",
        namespace="kairos",
        parameters={"policy": str(shipped_policy())} | parameters,
        params_file=share() / "config" / "serving.yaml",
    )


def cloud_bridge(engines: str, *, edge: bool = True, **parameters: Any) -> NodeSpec:
    """The serving node with engines elsewhere, for what would wait longer at the edge.

    Args:
        engines: what parameter `engines` lists (docs/cloud.md), separated by `;`.
        edge: also run an engine on this host. Without one, everything is served elsewhere.
        parameters: of the serving node.

    Raises ConfigError where no engine is named, and for a policy of an engine that is not run.
    """
    named = [text.strip() for text in engines.split(";") if text.strip()]
    if not named:
        raise ConfigError("name at least one engine, for example cloud=tcp://HOST:7411")
    if not edge:
        if parameters.get("policy"):
            raise ConfigError("edge is false, but policy is what the edge serves: leave out one")
        parameters["policy"] = ""
    return serving(engines=named, **parameters)


def shipped_policy() -> Path:
    """The folder of the policy that is served where none is named."""
    return share() / "models" / "metaworld_flow"


def check_horizon(text: str, policy: str = "") -> None:
    """Raises ConfigError for a horizon policy that a server of `policy` would refuse."""
    parse_horizon(text, calibrated(policy or str(shipped_policy())))


def calibrated(policy: str) -> Calibrated | None:
    """What horizon policy `calibrated` is where this policy is served, if it has a calibration.

    Raises ConfigError for a file that is none.
    """
    calibration = find_calibration(policy)
    return Calibrated(calibration) if calibration else None


def robot(name: str, **parameters: Any) -> NodeSpec:
    """One robot node in the namespace `/<name>`.

    Raises ConfigError where `name` is no valid ROS 2 namespace.
    """
    if not (name.isascii() and name.isidentifier()):
        raise ConfigError(
            f"robot name {name!r} must be a ROS name: letters, digits and _, no digit first"
        )
    return NodeSpec(
        "robot_node",
        "robot",
        namespace=name,
        parameters=parameters,
        params_file=share() / "config" / "robot.yaml",
    )


def recorder(out: Path | str, **parameters: Any) -> NodeSpec:
    """The node that records the fleet into the new bag folder `out`, as /kairos/recorder."""
    return NodeSpec(
        "recorder_node",
        "recorder",
        parameters={"out": str(out)} | parameters,
        params_file=share() / "config" / "recorder.yaml",
    )


def vlm(component: str, **parameters: Any) -> NodeSpec:
    """A node of the models around the policy, /kairos/<component>: safety, monitor or planner, or
    `vlm` for all of them in one (docs/pipelines.md). Raises ConfigError for any other."""
    if component not in VLM_NODES:
        raise ConfigError(f"component {component!r} is none of {', '.join(VLM_NODES)}")
    return NodeSpec(
        f"{component}_node",
        component,
        parameters=parameters,
        params_file=share() / "config" / f"{component}.yaml",
    )


def viz(**parameters: Any) -> NodeSpec:
    """The node that draws the fleet for rviz, /kairos/viz (docs/rviz.md)."""
    return NodeSpec(
        "viz_node",
        "viz",
        parameters=parameters,
        params_file=share() / "config" / "viz.yaml",
    )


def rviz() -> NodeSpec:
    """rviz itself, of a ROS 2 installation, with the displays of this fleet."""
    config = share() / "config" / "kairos.rviz"
    return NodeSpec("rviz2", "rviz", package="rviz2", arguments=("-d", str(config)))


def rviz_line() -> str:
    """What to type to open rviz for nodes in this process's domain."""
    names = ("ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_DOMAIN_ID")
    here = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ".join([*here, "rviz2", *rviz().arguments])


def plan(
    robots: int | Sequence[str] = 8,
    *,
    record: Path | str = "",
    serve: Mapping[str, Any] | None = None,
    robot_parameters: Mapping[str, Any] | None = None,
    view: bool = False,
) -> list[NodeSpec]:
    """One serving node and its robots, and last what draws and what records them, if wanted.

    Args:
        robots: how many (named arm_1 ...), or their names.
        record: folder of the bag to record into; empty: no bag.
        serve: parameters of the serving node.
        robot_parameters: parameters of every robot node.
        view: with the viz node.
    """
    names = [f"arm_{i}" for i in range(1, robots + 1)] if isinstance(robots, int) else robots
    specs = [serving(**(serve or {})), *(robot(name, **(robot_parameters or {})) for name in names)]
    specs += [viz()] if view else []
    return [*specs, recorder(record)] if record else specs


def command(spec: NodeSpec) -> list[str]:
    """The command line that runs `spec` without ros2 launch.

    Raises ConfigError for a program of another package that is not on PATH.
    """
    if spec.package == "kairos_ros":
        program = program_path(spec.executable)
    else:
        found = shutil.which(spec.executable)
        if found is None:
            raise ConfigError(
                f"{spec.executable} is not on PATH; install its package, or "
                "source the setup file of the ROS 2 installation that has it"
            )
        program = found
    line = [program, *spec.arguments, "--ros-args"]
    line += ["-r", f"__node:={spec.name}"]
    if spec.namespace:
        line += ["-r", f"__ns:=/{spec.namespace}"]
    if spec.params_file is not None:
        line += ["--params-file", str(spec.params_file)]
    for key, value in spec.parameters.items():
        line += ["-p", f"{key}:={_yaml(value)}"]
    return line


def plan_text(specs: Sequence[NodeSpec]) -> str:
    """A plan as JSON, which `told_plan` reads."""
    return json.dumps([asdict(spec) for spec in specs], default=str, indent=1)


def told_plan(*command: str, arguments: Mapping[str, str]) -> list[NodeSpec]:
    """The plan that `kairos COMMAND NAME:=VALUE ...` prints.

    For launch files whose plan needs more than the standard library and numpy: `ros2 launch` runs
    with the system's Python, the command, as every node, with the one that the package was built
    with. Raises ConfigError with the command's own words.
    """
    given = [f"{name}:={value}" for name, value in arguments.items()]
    done = subprocess.run(
        [program_path("kairos"), *command, "--", *given],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(done.stderr.strip().removeprefix("kairos: "))
    return [_spec(**fields) for fields in json.loads(done.stdout)]


def _spec(params_file: str | None, arguments: Sequence[str], **fields: Any) -> NodeSpec:
    file = Path(params_file) if params_file else None
    return NodeSpec(params_file=file, arguments=tuple(arguments), **fields)


def program_path(name: str) -> str:
    """Where a program of this package is installed."""
    return str(share().parents[1] / "lib" / "kairos_ros" / name)


def _yaml(value: Any) -> str:
    """JSON with YAML's escapes: of an emoji JSON makes two halves, which are no YAML."""
    text = json.dumps(value, ensure_ascii=False)
    return NOT_ASCII.sub(lambda character: f"\\U{ord(character[0]):08x}", text)


def flag(name: str, text: str) -> bool:
    """What a launch argument says. Raises ConfigError for anything but true and false."""
    if text not in ("true", "false"):
        raise ConfigError(f"argument {name} is {text!r}; say true or false")
    return text == "true"


def launch_description(
    arguments: Mapping[str, tuple[str, str]],
    make_plan: Callable[[dict[str, str]], Sequence[NodeSpec]],
) -> Any:
    """A `launch.LaunchDescription` of a plan, for launch files (ours and users' own).

    Args:
        arguments: name -> (default value, description) of each launch argument.
        make_plan: from the arguments that are not empty, the nodes to run.
    """
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, OpaqueFunction
    from launch.substitutions import LaunchConfiguration
    from launch_ros.actions import Node

    def nodes(context: Any) -> list[Any]:
        values = {name: LaunchConfiguration(name).perform(context) for name in arguments}
        specs = make_plan({name: value for name, value in values.items() if value})
        return [
            Node(
                package=spec.package,
                executable=spec.executable,
                arguments=list(spec.arguments),
                name=spec.name,
                namespace=spec.namespace,
                parameters=[
                    *([str(spec.params_file)] if spec.params_file else []),
                    dict(spec.parameters),
                ],
                output="screen",
            )
            for spec in specs
        ]

    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in arguments.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=nodes)])


def leave_with_launcher() -> None:
    """Called by nodes: if a `Fleet` started this process, SIGTERM follows the end of that one."""
    if pid := os.environ.get(LAUNCHER_PID):
        die_with_parent(int(pid), signal.SIGTERM)


class Fleet:
    """Runs a plan: one process per node, each in a session of its own, with its output in a file.

    A context manager; leaving it ends every process it started, by pid. Should the thread that
    started them end in any other way, the nodes leave by themselves (`leave_with_launcher`).
    """

    def __init__(self, specs: Sequence[NodeSpec], logs: Path, env: Mapping[str, str] | None = None):
        self.specs = list(specs)
        self.logs = logs
        self.env = {**os.environ, **(env or {})}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> "Fleet":
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            for spec in self.specs:
                self.start(spec)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @staticmethod
    def key(spec: NodeSpec) -> str:
        """Name of the process and of its log file."""
        return spec.namespace or spec.name

    def log(self, key: str) -> Path:
        """Where a process writes its output."""
        return self.logs / f"{key}.log"

    def start(self, spec: NodeSpec) -> subprocess.Popen[bytes]:
        """Starts one node of the plan, or starts it again once it has ended.

        Raises ConfigError while another process has its key: nobody would look after that one.
        """
        key = self.key(spec)
        if key in self.processes and self.processes[key].poll() is None:
            raise ConfigError(f"two processes would be called {key!r}; give one another name")
        log = self.log(key).open("ab")
        self._files.append(log)
        self.processes[key] = subprocess.Popen(
            command(spec),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**self.env, LAUNCHER_PID: str(os.getpid())},
        )
        return self.processes[key]

    def dead(self) -> dict[str, int]:
        """Exit codes of the processes that ended."""
        codes = {key: process.poll() for key, process in self.processes.items()}
        return {key: code for key, code in codes.items() if code is not None}

    def tail(self, key: str, lines: int = 15) -> str:
        """The last lines that a process printed."""
        text = self.log(key).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL to every process, at once."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()

    def stop(self, grace_s: float = 8.0) -> None:
        """SIGINT to every process, SIGKILL to those that are still there after `grace_s`."""
        running = [p for p in self.processes.values() if p.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + grace_s
        for process in running:
            try:
                process.wait(max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for file in self._files:
            file.close()
        self._files.clear()
