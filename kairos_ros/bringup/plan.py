"""Which nodes make up a fleet, as a pure plan.

The launch files map the plan to `launch_ros` nodes; `kairos up`, `kairos demo` and the tests start
the very same plan with `bringup.processes.Fleet`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kairos_ros.bringup.process_spec import RVIZ, ProcessKind, ProcessSpec, fixed_frame
from kairos_ros.core.calls.dispatch import dispatch_called
from kairos_ros.core.calls.orders import order_called
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fit import camera_name
from kairos_ros.core.fleet_names import COMMON, ROOT, FleetNames, is_robot_name
from kairos_ros.core.horizons.policies import HorizonPolicy, parse_horizon
from kairos_ros.engine.policies.calibration_file import find_calibration
from kairos_ros.engine.policies.saved_policy import policy_inputs
from kairos_ros.host.share import share
from kairos_ros.robot.adapters.sim.metaworld_scenes import HAND_DIM
from kairos_ros.robot.cameras.cameras_text import parse_cameras

OWN_CAMERAS = "1"
"""In place of a list of cameras: those that the policy reads."""
VLM_NODES = ("safety", "monitor", "planner", "vlm")


def serving(**parameters: Any) -> ProcessSpec:
    """The edge serving node, active as soon as its engine is warm unless `autostart=False`. A
    standby (`standby_after_s`) has a name of its own."""
    shipped = {"policy": str(shipped_policy())}
    return ProcessSpec(
        "serving_node",
        "serving_standby" if parameters.get("standby_after_s") else "serving",
        namespace=COMMON,
        parameters=({} if {"policies", "plan"} & parameters.keys() else shipped) | parameters,
        params_file=share() / "config" / "serving.yaml",
    )


def cloud_bridge(engines: str, *, edge: bool = True, **parameters: Any) -> ProcessSpec:
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


def camera_policy() -> Path:
    """The folder of the policy that ships for arms with cameras and without the objects' poses."""
    return share() / "models" / "metaworld_cameras"


def own_cameras(cameras: str, policy: str) -> tuple[str, str]:
    """What `cameras` is where it says OWN_CAMERAS, those that the policy reads, and the policy: the
    one that ships for cameras where none is named. Anything else is left as it is.

    Raises ConfigError for a policy that is known to read none.
    """
    if cameras.strip() != OWN_CAMERAS:
        return cameras, policy
    policy = policy or str(camera_policy())
    read = policy_inputs(policy).cameras
    if not read:
        raise ConfigError(
            f"policy {policy!r} is not known to read cameras; name cameras of the arms, such as"
            " corner2,topview:480x640, or leave them out"
        )
    sizes = [f"{camera_name(name)}:{high}x{wide}" for name, (high, wide) in read.items()]
    return ",".join(sizes), policy


def reads_the_hand_only(policy: str) -> bool:
    """Whether this policy reads of Meta-World's arm what that knows of itself, and no poses of
    objects. Raises ConfigError for a folder without a policy."""
    return policy_inputs(policy).state_dim == HAND_DIM


def check_horizon(text: str, policy: str = "") -> None:
    """Raises ConfigError for a horizon policy that a server of `policy` would refuse."""
    parse_horizon(text, calibrated(policy or str(shipped_policy())))


def calibrated(policy: str) -> dict[str, HorizonPolicy]:
    """What `calibrated` and `static:tuned` are where this policy is served, as far as it has them.

    Raises ConfigError for a calibration file that is none.
    """
    calibration = find_calibration(policy)
    return calibration.policies() if calibration else {}


def robot(name: str, **parameters: Any) -> ProcessSpec:
    """One robot node in the namespace `/<name>`, which may be nested: `cell_1/arm_1`.

    Raises ConfigError where `name` is no valid ROS 2 namespace.
    """
    if not is_robot_name(name):
        raise ConfigError(
            f"robot name {name!r} must be a ROS name: letters, digits and _, no digit first; "
            f"several may be separated by /, and none of them is {COMMON}"
        )
    if "/" in name:
        parameters["name"] = name
    return ProcessSpec(
        "robot_node",
        "robot",
        namespace=name,
        parameters=parameters,
        params_file=share() / "config" / "robot.yaml",
    )


def body_text(spec: ProcessSpec) -> str:
    """What a robot node of a plan moves, in a sentence."""
    options = dict(text.split("=", 1) for text in spec.parameters.get("adapter_options", ()))
    match spec.parameters.get("adapter", "sim"):
        case "sim" if "env_id" in options:
            body = f"a simulated body, Gymnasium's {options['env_id']}"
        case "sim":
            seen = ", ".join(json.loads(options.get("images", "{}"))) or "none"
            body = f"a simulated Meta-World arm; cameras: {seen}"
        case "ros2":
            contract = options.get("contract", "").strip('"')
            body = f"the arm of contract {contract or '(none given)'}, behind its ROS 2 drivers"
        case other:
            said = ", ".join(f"{name}={value}" for name, value in options.items())
            body = f"a body of adapter {other}" + (f" ({said})" if said else "")
    return f"robot {spec.namespace} is {body}"


def images_option(cameras: str) -> str:
    """The adapter option of a simulated arm that gives it cameras. Raises ConfigError."""
    return f"images={json.dumps(parse_cameras(cameras))}"


def recorder(out: Path | str, **parameters: Any) -> ProcessSpec:
    """The node that records the fleet into the new bag folder `out`, as /kairos/recorder."""
    return ProcessSpec(
        "recorder_node",
        "recorder",
        namespace=COMMON,
        parameters={"out": str(out)} | parameters,
        params_file=share() / "config" / "recorder.yaml",
    )


def vlm(component: str, **parameters: Any) -> ProcessSpec:
    """A node of the models around the policy, /kairos/<component>: safety, monitor or planner, or
    `vlm` for all of them in one (docs/pipelines.md). Raises ConfigError for any other."""
    if component not in VLM_NODES:
        raise ConfigError(f"component {component!r} is none of {', '.join(VLM_NODES)}")
    return ProcessSpec(
        f"{component}_node",
        component,
        namespace=COMMON,
        parameters=parameters,
        params_file=share() / "config" / f"{component}.yaml",
    )


def gateway(
    servers: Sequence[str],
    *,
    order: str = "latest_start",
    dispatch: str = "fewest_calls",
    port: int = 8380,
) -> ProcessSpec:
    """The gateway before the models that judge and plan, `kairos gateway` of this host
    (docs/gateway.md).

    Raises ConfigError for what would end it as soon as it starts: whoever starts it again whenever
    it ends would do so for ever.
    """
    if not servers:
        raise ConfigError("a gateway needs servers: http://HOST:PORT/v1, or embedded:NAME")
    if port > 65_535:
        raise ConfigError(f"port is {port}; a port is 0 to 65535")
    order_called(order)
    dispatch_called(dispatch)
    listen = f"127.0.0.1:{port}"
    return ProcessSpec(
        "kairos",
        "gateway",
        namespace=COMMON,
        arguments=(
            *("gateway", *servers, "--listen", listen, "--order", order, "--dispatch", dispatch),
        ),
        kind=ProcessKind.GATEWAY,
    )


def viz(**parameters: Any) -> ProcessSpec:
    """The node that draws the fleet for rviz, /kairos/viz (docs/rviz.md)."""
    return ProcessSpec(
        "viz_node",
        "viz",
        namespace=COMMON,
        parameters=parameters,
        params_file=share() / "config" / "viz.yaml",
    )


def rviz() -> ProcessSpec:
    """rviz itself, of a ROS 2 installation, with the displays of this fleet."""
    config = share() / "config" / "kairos.rviz"
    return ProcessSpec("rviz2", "rviz", package=RVIZ, arguments=("-d", str(config)))


def rviz_line(names: FleetNames = ROOT) -> str:
    """What to type to open rviz for nodes in this process's domain."""
    variables = ("ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_DOMAIN_ID")
    here = [f"{name}={os.environ[name]}" for name in variables if name in os.environ]
    within = ["--ros-args", "-r", f"__ns:={names.namespace}"] if names.namespace else []
    spec = rviz()
    return " ".join([*here, "rviz2", *spec.arguments, *fixed_frame(spec, names), *within])


def plan(
    robots: int | Sequence[str] = 8,
    *,
    record: Path | str = "",
    serve: Mapping[str, Any] | None = None,
    robot_parameters: Mapping[str, Any] | None = None,
    view: bool = False,
    cameras: str = "",
) -> list[ProcessSpec]:
    """One serving node and its robots, and last what draws and what records them, if wanted.

    Args:
        robots: how many (named arm_1 ...), or their names.
        record: folder of the bag to record into; empty: no bag.
        serve: parameters of the serving node.
        robot_parameters: parameters of every robot node.
        view: with the viz node.
        cameras: of every arm, as `robot.cameras_text` reads them, or OWN_CAMERAS; empty: none.
    """
    parameters, serve = dict(robot_parameters or {}), dict(serve or {})
    if cameras:
        cameras, policy = own_cameras(cameras, serve.get("policy", ""))
        serve |= {"policy": policy} if policy else {}
        options = [*parameters.get("adapter_options", ()), images_option(cameras)]
        if policy and reads_the_hand_only(policy):
            options.append("proprioception=true")
        parameters["adapter_options"] = options
    names = [f"arm_{i}" for i in range(1, robots + 1)] if isinstance(robots, int) else robots
    specs = [serving(**serve), *(robot(name, **parameters) for name in names)]
    specs += [viz()] if view else []
    return [*specs, recorder(record)] if record else specs


def flag(name: str, text: str) -> bool:
    """What a launch argument says, true or false in any case: launch files of Python say True.

    Raises ConfigError for anything else.
    """
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"argument {name} is {text!r}; say true or false")
    return text.lower() == "true"


def whole_number(name: str, text: str) -> int:
    """What a launch argument says. Raises ConfigError for anything but a whole number from 0 up."""
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"argument {name} is {text!r}; say a whole number, such as 8")
    return int(text)
